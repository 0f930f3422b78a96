"""Matching on a device: elements are kept on the CPU, all else is where the tensors are."""

from itertools import product

import pytest
import torch

from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from cobasin.finding import match as api
from cobasin.finding.applying import transform
from cobasin.matching import neurons, weights
from cobasin.matching.choice import Choice
from cobasin.matching.learned_orders import pairs
from cobasin.matching.state import Match
from cobasin.symmetry.form import form_of
from cobasin.verification import verify
from fake_gpu import CPU, GPU, FakeGpu, on_gpu
from sampling import one_in
from tiny_models import checkpoint

LLAMA = "llama-gqa/LlamaForCausalLM"
CASES = [LLAMA, "gpt2-untied/GPT2LMHeadModel", "bert/BertForMaskedLM", "mixtral/MixtralForCausalLM"]
CASES += ["qwen3/Qwen3ForCausalLM", "t5/T5ForConditionalGeneration"]
ACTIVATIONS = {"method": "activations", "samples": 8, "seed": 0}


def match_of(case, symmetry):
    """The match of two models of a case."""
    ends, choice = [Typed.of(checkpoint(case, seed)) for seed in (1, 2)], Choice.parse(symmetry)
    ends = [end.untied() if end.spec.unties else end for end in ends]
    form = form_of(
        ends[0].spec,
        parts=choice.parts,
        folded=choice.folded and bool(ends[0].spec.norms),
        free_biases=not choice.paper,
        balanced=choice.general,
    )
    return Match.of(form, choice, *ends)


@pytest.mark.usefixtures("few_rounds")
@pytest.mark.parametrize(
    ("case", "symmetry"),
    one_in(4, [*product(CASES[::2], ["full"]), *product(CASES[::3], ["gl"]), *product(CASES[1::3], ["paper"])]),
)
def test_nothing_is_mixed(case, symmetry, monkeypatch):
    """Tensors on a GPU never meet what is kept on the CPU, and the result is that of the CPU."""
    monkeypatch.setattr(neurons, "TABLE", 200)  # so that tables are made in several parts
    here = match_of(case, symmetry)
    weights.ascend(here)
    with FakeGpu():
        there = Match(here.form, here.choice, here.source, here.anchor, device=GPU)
        weights.ascend(there)
        assert {x.device for name in there.tensors for x in (there.source[name], there.anchor[name])} == {GPU}
        scores = pairs(there)
    assert there.total == pytest.approx(here.total, rel=1e-12)
    assert not any(on_gpu(x) for values in (there.values, scores) for value in values.values() for x in value.values())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("symmetry", ["full", "gl", "paper"])
@pytest.mark.parametrize("case", CASES)
def test_on_a_gpu(case, symmetry):
    """The result is that of the CPU."""
    here = match_of(case, symmetry)
    there = Match(here.form, here.choice, here.source, here.anchor, device=torch.device("cuda"))
    for one in (here, there):
        weights.ascend(one)
    assert there.total == pytest.approx(here.total, rel=1e-9)
    assert not any(x.is_cuda for value in there.values.values() for x in value.values())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("options", [{}, ACTIVATIONS, {**ACTIVATIONS, "method": "learned", "steps": 8}])
def test_every_method_on_a_gpu(options):
    """The element keeps the function, and the objective is that of the CPU."""
    pair = [checkpoint(LLAMA, seed, dtype=torch.float32) for seed in (1, 2)]
    here, there = (api.match(*pair, device=device, **options) for device in ("cpu", "cuda"))
    assert there.report["objective"] == pytest.approx(here.report["objective"], rel=1e-3)
    assert verify(pair[0], transform(there, pair[0], torch.float64), 5e-6).same


def test_what_is_mixed_is_seen():
    with FakeGpu():
        x, y = torch.ones(3, 3).to(GPU), torch.ones(3, 3)
        assert (x.device, y.device, (x + 1).device, x.cpu().device) == (GPU, CPU, GPU, CPU)
        for mixed in (lambda: x @ y, lambda: x.index_select(0, torch.arange(3)), lambda: torch.stack([x, y])):
            with pytest.raises(RuntimeError, match="on the GPU and on the CPU"):
                mixed()


@pytest.mark.usefixtures("few_rounds")
def test_a_device_for_weights():
    pair = checkpoint(LLAMA, 1), checkpoint(LLAMA, 2)
    element, named = api.match(*pair), api.match(*pair, device="cpu")
    assert named.report["objective"] == element.report["objective"]
    with pytest.raises(InputError, match="device 'cuda:99' cannot be used here"):
        api.match(*pair, device="cuda:99")
