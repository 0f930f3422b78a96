"""Files that lay the same tensors out differently: experts one by one, or all of a layer in one tensor."""

import pytest
import torch
import transformers

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.layouts import laid_out_as
from cobasin.checkpoints.typed import Typed
from command_line import edit_tensors, refused_by_both, run, stock, tensors_of
from sampling import one_in
from tiny_models import model

pytestmark = pytest.mark.usefixtures("few_rounds")

# of other names of the router, with a correction of it, with further names for what is fused, turned in place
CASES = [
    "mixtral/MixtralForCausalLM",
    "glm4moe/Glm4MoeForCausalLM",
    "granite-moe/GraniteMoeForCausalLM",
    "qwen3-vl-moe/Qwen3VLMoeForConditionalGeneration",
]


def turn(tensors):
    for name in [name for name in tensors if ".experts." in name]:
        tensors[name] = tensors[name].mT.contiguous()


def folders(folder, case):
    """Two models, each in a file as it is saved, and in one as it is in memory or, of Qwen3-VL-MoE, turned."""
    for seed, name in enumerate("ab"):
        made = model(case, seed, torch.float32)
        made.save_pretrained(folder / f"{name}-saved")
        made._weight_conversions = []
        made.save_pretrained(folder / f"{name}-other")
        if "vl-moe" in case:
            edit_tensors(folder / f"{name}-other", turn)
    return [folder / f"{name}-{layout}" for name in "ab" for layout in ("saved", "other")]


@pytest.mark.parametrize("case", one_in(2, CASES[1::2]))
def test_models_in_two_layouts(tmp_path, case):
    """They match and merge as in one, and what is written is laid out as the model that it is made from."""
    a, a_other, b, b_other = folders(tmp_path, case)
    assert {name: x.shape for name, x in tensors_of(a).items()} != {n: x.shape for n, x in tensors_of(a_other).items()}
    assert run("verify", a, a_other).code == 0
    alone = run("match", a, b, "--out", tmp_path / "alone", "--json").json["distance_after"]
    merged = ("merge", "--match", "none")
    assert run(*merged, a, b, "--out", tmp_path / "mean").code == 0
    for source, anchor, other in ((a, b_other, a_other), (a_other, b, a)):
        out, mean, again = (tmp_path / f"{source.name}-{what}" for what in ("out", "mean", "again"))
        found = run("match", source, anchor, "--out", out, "--json")
        assert found.json["distance_after"] == pytest.approx(alone, rel=1e-6)
        assert run(*merged, source, anchor, "--out", mean).code == 0
        for made in (out, mean):
            shapes = {name: x.shape for name, x in tensors_of(made).items()}
            assert {name: x.shape for name, x in tensors_of(source).items()}.items() <= shapes.items()
            stock(made)
        assert run("verify", source, out).code == 0
        assert run("verify", tmp_path / "mean", mean).code == 0
        assert run("apply", out, other, "--out", again).code == 0  # the element acts on either layout
        assert run("verify", out, again).code == 0
        assert run("compare", source, other, "--json").json["verdict"] == "same"


def test_every_number_has_its_place(tmp_path):
    a, a_other, *_ = folders(tmp_path, CASES[0])
    one, other = (Typed.of(load(folder)) for folder in (a, a_other))
    for model_, like in ((one, other), (other, one)):
        made = laid_out_as(model_, like.spec)
        assert {**made}.keys() == {**like}.keys()
        assert all(torch.equal(made[name], like[name]) for name in like)
        assert {name: (h.shape, h.dtype) for name, h in made.checkpoint.headers.items()} == {
            name: (h.shape, h.dtype) for name, h in like.checkpoint.headers.items()
        }


def test_other_sizes_in_another_layout(tmp_path):
    """It is the sizes that are told."""
    _, a_other, *_ = folders(tmp_path, CASES[0])
    config = model(CASES[0]).config
    config.intermediate_size += 2
    wide = transformers.MixtralForCausalLM(config)
    wide.save_pretrained(tmp_path / "wide")
    typed, other = Typed.of(load(tmp_path / "wide")), Typed.of(load(a_other))
    assert laid_out_as(typed, other.spec) is typed
    refused_by_both(tmp_path / "wide", a_other, "ffn has size")
