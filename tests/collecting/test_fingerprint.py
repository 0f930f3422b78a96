"""One hash for one model, however it is stored."""

import copy

import pytest
import torch

import tiny_models
from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.fingerprint import fingerprint, tensor_hash

CASE = "bert/BertForMaskedLM"


@pytest.fixture(scope="module")
def model():
    return tiny_models.model(CASE, dtype=torch.float32)


def test_the_same_model(model, tmp_path):
    reference = fingerprint(load(model))
    assert len(reference) == 64
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "shards", max_shard_size="10KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    assert fingerprint(load(tmp_path / "one")) == reference
    assert fingerprint(load(tmp_path / "shards")) == reference
    assert fingerprint(load(tiny_models.model(CASE, dtype=torch.float32))) == reference


def test_other_models(model):
    reference = fingerprint(load(model))
    changed = {"seed": load(tiny_models.model(CASE, seed=1, dtype=torch.float32))}
    changed["dtype"] = load(tiny_models.model(CASE, dtype=torch.float64))
    moved = copy.deepcopy(model)
    with torch.no_grad():
        moved.get_input_embeddings().weight[3, 2] += 1e-6
    changed["one entry"] = load(moved)
    other = copy.deepcopy(model)
    other.config.hidden_act = "relu"
    changed["config"] = load(other)
    assert reference not in {name: fingerprint(one) for name, one in changed.items()}.values()


def test_keys_that_say_nothing_of_the_function(model):
    other = copy.deepcopy(model)
    other.config._name_or_path = "elsewhere"
    other.config.transformers_version = "4.0"
    assert fingerprint(load(other)) == fingerprint(load(model))


def test_the_bytes_of_a_tensor():
    values = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    assert tensor_hash(values) == tensor_hash(values.T.contiguous().T)
    assert tensor_hash(values) != tensor_hash(values.T)
    assert tensor_hash(torch.tensor(1.0)) != tensor_hash(torch.tensor(2.0))
