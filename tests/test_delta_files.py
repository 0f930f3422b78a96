"""Files of OLMo Hybrid and Kimi Linear as the hub has them.

Of OLMo Hybrid with other names of norms, and every convolution in a tensor of its own size; of Kimi Linear with another
name of FFNs without experts.
"""

import pytest
import torch
import transformers

from command_line import edit_tensors, refused, run, stock, tensors_of
from tiny_models import config, model

OLMO, KIMI = "olmo-hybrid/OlmoHybridForCausalLM", "kimi-linear/KimiLinearForCausalLM"
QUERIES, VALUES = 15, 24  # rows


def cut(folder, seed=0):
    """A model with more channels of values than of keys, as Transformers writes it: the convolution in three parts."""
    torch.manual_seed(seed)
    made = transformers.OlmoHybridForCausalLM(config(OLMO, linear_value_head_dim=8))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    made.save_pretrained(folder)
    return folder


def as_on_the_hub(tensors):
    """With queries, keys and values apart, and the norms of layers with attention named as Transformers has them."""
    name = "model.layers.1.linear_attn.{}_conv1d.weight"
    rows = torch.cat([tensors.pop(name.format(part)) for part in "qkv"])
    parts = rows.split([QUERIES, QUERIES, VALUES])
    tensors.update({name.format(part): rows.contiguous() for part, rows in zip("qkv", parts, strict=True)})
    tensors["model.layers.0.post_attention_layernorm.weight"] = tensors.pop(
        "model.layers.0.feedforward_layer_norm.weight"
    )


def test_files_of_the_hub_are_matched(tmp_path):
    for seed, name in enumerate(("source", "anchor")):
        edit_tensors(cut(tmp_path / name, seed), as_on_the_hub)
        stock(tmp_path / name)
    found = run("match", tmp_path / "source", tmp_path / "anchor", "--out", tmp_path / "out", "--json")
    assert found.json["distance_after"] < found.json["distance_before"]
    assert run("verify", tmp_path / "source", tmp_path / "out").code == 0
    stock(tmp_path / "out")
    shapes = [{name: one.shape for name, one in tensors_of(tmp_path / end).items()} for end in ("source", "out")]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("verb", ["match", "merge"])
def test_a_convolution_that_is_cut_elsewhere_is_refused(tmp_path, verb):
    ends = [cut(tmp_path / name, seed) for seed, name in enumerate(("source", "anchor"))]
    line = refused(tmp_path, verb, *ends, "--out", tmp_path / "out")
    assert f"{ends[0]}: a q_conv1d of 18 rows for {QUERIES} queries" in line
    assert "is not covered" in line


@pytest.mark.usefixtures("few_rounds")
def test_plain_ffns_of_kimi_linear_have_a_name_of_their_own(tmp_path):
    for seed, name in enumerate(("own", "hub", "anchor")):
        model(KIMI, seed // 2, torch.float32).save_pretrained(tmp_path / name)
    plain = "model.layers.0.block_sparse_moe."

    def rename(tensors):
        for name in [name for name in tensors if name.startswith(plain)]:
            tensors[f"model.layers.0.mlp.{name.removeprefix(plain)}"] = tensors.pop(name)

    edit_tensors(tmp_path / "hub", rename)
    assert run("verify", tmp_path / "own", tmp_path / "hub").code == 0
    assert run("match", tmp_path / "hub", tmp_path / "anchor", "--out", tmp_path / "out").code == 0
    assert tensors_of(tmp_path / "out").keys() == tensors_of(tmp_path / "hub").keys()
    assert run("verify", tmp_path / "own", tmp_path / "out").code == 0
    stock(tmp_path / "out")
