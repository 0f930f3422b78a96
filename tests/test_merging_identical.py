"""A model and copies of it that compute the same function in other weights: with matching, every merge is the model.

What a soft coupling of optimal transport mixes depends on its regularisation: the model comes back as that goes to 0.
"""

import json
from functools import cache

import numpy as np
import pytest
import torch

from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.probes import probe
from cobasin.checkpoints.running import instantiate, outputs
from cobasin.checkpoints.typed import Typed
from cobasin.finding.applying import transform
from cobasin.fusion.registry import find
from cobasin.merging.merge import merge
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import form_of
from merge_cases import CLASSIFIER, METHODS, PARAMETERS, matching_once, roles, token_rows
from sampling import one_in
from tiny_models import checkpoint, tolerance

SHARP = {"regularization": 1e-3}
ARGUMENTS = PARAMETERS | {"ot_wts": SHARP, "ot_acts": SHARP}
LLAMA = "llama-gqa/LlamaForCausalLM"
FEW = ["linear", "fisher", "regmean", "ot_acts_emd"]
CASES = [
    *((CLASSIFIER, name) for name in METHODS),
    *((LLAMA, name) for name in METHODS if find(name).statistics or name in ("ot_wts", "slerp", "dare_ties")),
    *(("gpt2/GPT2LMHeadModel", name) for name in FEW),
    *(("t5/T5ForConditionalGeneration", name) for name in FEW),
    *(("vit/ViTForImageClassification", name) for name in FEW),
    ("bert/BertForMaskedLM", "linear"),
    ("llama-mqa-tied/LlamaForCausalLM", "linear"),
]


@pytest.fixture(scope="module", autouse=True)
def once():
    with matching_once():
        yield


@cache
def copies(case: str, dtype: torch.dtype = torch.float64) -> list[Checkpoint]:
    """A model and two copies; a head that is tied stays so."""
    model = checkpoint(case, dtype=dtype)
    spec = Typed.of(model).spec
    form = form_of(spec, folded=not spec.unties)
    return [model, *(transform(Element.sample(form, seed), model) for seed in (1, 2))]


def change(model: Checkpoint, other: Checkpoint) -> float:
    """The relative change of the outputs on probe inputs."""
    inputs = probe(model.config, model.architecture, seed=3)
    a, b = (outputs(instantiate(one, torch.float64), inputs) for one in (model, other))
    return float((a - b).norm() / a.norm())


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A recipe's data for every kind of model."""
    folder = tmp_path_factory.mktemp("data")
    rows = token_rows(folder / "rows.jsonl")
    pairs = folder / "pairs.jsonl"
    read = [json.loads(line) for line in rows.read_text().splitlines()]
    pairs.write_text("".join(json.dumps({**row, "label": row["input_ids"][::-1]}) + "\n" for row in read))
    images = np.random.default_rng(0).integers(0, 256, (8, 8, 8, 3), dtype=np.uint8)
    np.savez(folder / "images.npz", image=images, label=np.arange(8) % 3)
    half = {"mean": [0.5] * 3, "std": [0.5] * 3}
    return {
        "t5": {"path": str(pairs)},
        "vit": {"path": str(folder / "images.npz"), **half},
        "": {"path": str(rows)},
    }


@pytest.mark.parametrize(("case", "name"), one_in(5, CASES))
def test_every_method_gives_the_function_back(data, case, name):
    model, *others = copies(case)
    models, base = roles(find(name), [model, *others])
    kind = next(kind for kind in data if case.startswith(kind))
    options = {"statistics": {"data": data[kind], "batch_size": 3}} if find(name).statistics else {}
    options |= ARGUMENTS.get(name, {})
    matched = merge(models, name, base=base, **options).checkpoint
    assert change(model, matched) < tolerance(case)
    plain = merge(models, name, base=base, symmetry="none", **options).checkpoint
    assert change(model, plain) > 0.05  # otherwise there was nothing to match


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_to_the_rounding_of_the_dtype(dtype):
    model, other, _ = copies(LLAMA, dtype)
    merged = merge([model, other]).checkpoint
    rounding = torch.finfo(dtype).eps
    assert change(model, merged) < 30 * rounding
    assert change(model, merged) > 0.1 * rounding
