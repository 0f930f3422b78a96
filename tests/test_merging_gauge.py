"""A merge is of what models compute: what the anchor's norms hold, and what their readers do, makes no difference."""

from functools import cache
from itertools import cycle

import pytest
import torch

from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.checkpoints.probes import probe
from cobasin.checkpoints.running import instantiate, outputs
from cobasin.checkpoints.typed import Typed
from cobasin.fusion.registry import Method, find
from cobasin.merging.merge import merge
from cobasin.symmetry.canonical import gauge_shapes
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import form_of
from merge_cases import METHODS, PARAMETERS, matching_once
from sampling import one_in
from tiny_models import model, tolerance

pytestmark = pytest.mark.usefixtures("few_rounds")

GPT2, LLAMA, VIT = "gpt2/GPT2LMHeadModel", "llama-gqa/LlamaForCausalLM", "vit/ViTForImageClassification"
DATA_FREE = [name for name in METHODS if find(name).statistics is None and find(name).couple is None]
BENT = [name for name in DATA_FREE if find(name).in_canonical_form]


@cache  # the same objects are matched once
def loaded(case: str, seed: int) -> Checkpoint:
    """A model, or one that is not far from it: those of other seeds take long to match."""
    made, generator = model(case), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.add_(noise, alpha=0.05 * seed**0.5)
    return load(made)


@pytest.fixture(scope="module", autouse=True)
def quick_matches():
    with matching_once():
        yield


@cache
def rewritten(case: str) -> Checkpoint:
    """The same function with other gains, offsets and free biases, and so with other readers of the norms."""
    typed = Typed.of(loaded(case, 0)).untied()
    form, generator = form_of(typed.spec, folded=True), torch.Generator().manual_seed(7)
    gauge = {
        name: 0.2 + torch.rand(shape, generator=generator, dtype=torch.float64)
        for name, shape in gauge_shapes(form).items()
    }
    return typed.derived(Element(form, {}, target=gauge).apply(typed))


def apart(case: str, name: str) -> tuple[float, float]:
    """How far the merge with a model is from that with the same model rewritten, and from that model: relative."""
    method, (anchor, other, third) = find(name), (loaded(case, seed) for seed in range(3))
    written = rewritten(case)
    assert max(float((written[name] - anchor[name]).abs().max()) for name in written if name in anchor) > 0.1
    inputs = probe(anchor.config, anchor.architecture, seed=3)
    found = []
    for one in (anchor, written):
        models, base = [one, other][: method.most], third if method.takes_base else None
        merged = merge(models, name, base=base, anchor=0, **PARAMETERS.get(name, {})).checkpoint
        found.append(outputs(instantiate(merged, torch.float64), inputs))
    function = outputs(instantiate(anchor, torch.float64), inputs)
    return tuple(float((found[0] - one).norm() / found[0].norm()) for one in (found[1], function))


@pytest.mark.parametrize(("name", "case"), one_in(4, list(zip(DATA_FREE, cycle([GPT2, LLAMA, VIT]), strict=False))))
def test_the_gauge_of_the_anchor_makes_no_difference(case, name):
    change, moved = apart(case, name)
    assert change < tolerance(case)
    assert moved > 0.05  # that it is merged at all


@pytest.mark.parametrize("name", BENT)
def test_it_would_where_tensors_were_fused_as_they_are_written(name, monkeypatch):
    monkeypatch.setattr(Method, "in_canonical_form", False)
    change, _ = apart(GPT2, name)
    assert change > 1e-3
