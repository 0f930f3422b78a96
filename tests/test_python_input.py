"""What the Python API is given by mistake is refused in one line, as on the command line."""

import pytest
import torch

import cobasin
from cobasin.errors import InputError
from tiny_models import checkpoint, model

CASE = "llama-gqa/LlamaForCausalLM"


def sparse():
    made = checkpoint(CASE)
    made.config.architectures = [made.architecture]
    return {**made, "lm_head.weight": made["lm_head.weight"].to_sparse()}, made.config


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a, b: cobasin.match(a, b, symmetry=["ffn", "heads"]), "expected a text, like 'ffn,heads'"),
        (lambda a, b: cobasin.match(a, b, layers=[0]), "layers \\[0\\]: expected a text"),
        (lambda _, b: cobasin.merge("model-a"), "models: model-a is one model; expected a list"),
        (lambda *_: cobasin.load(*sparse()), "lm_head.weight is of layout torch.sparse_coo; expected a dense tensor"),
    ],
)
def test_refused(call, message):
    with pytest.raises(InputError, match=message):
        call(checkpoint(CASE, 0), checkpoint(CASE, 1))


def test_an_element_is_read_from_the_folder_of_its_model(tmp_path):
    element = cobasin.match(model(CASE, 1), model(CASE, 0), symmetry="ffn")
    (tmp_path / "matched").mkdir()
    element.save(tmp_path / "matched" / "cobasin.safetensors")
    for path in (tmp_path / "matched", tmp_path / "matched" / "cobasin.safetensors"):
        again = cobasin.Element.load(path)
        assert all(
            torch.equal(x, again.values[key][part]) for key, v in element.values.items() for part, x in v.items()
        )
    with pytest.raises(InputError, match="not a readable element file"):
        cobasin.Element.load(tmp_path)
