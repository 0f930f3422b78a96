"""An adapter of every matrix of every declared family moves with its base; without PEFT, as a merged model."""

from dataclasses import replace

import pytest
import torch

from cobasin.adapters.folder import Adapter
from cobasin.adapters.merged import merged
from cobasin.adapters.move import move_adapter
from cobasin.checkpoints.probes import probe
from cobasin.checkpoints.running import instantiate, outputs
from cobasin.checkpoints.typed import Typed
from cobasin.checkpoints.weight_files import Header
from cobasin.symmetry.canonical import gauge_of
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import form_of
from sampling import one_in
from tiny_models import ONE_A_DECLARATION, checkpoint, tolerance


def everywhere(typed):
    """A random adapter of all matrices but those of fused experts and of tied tensors."""
    spec, generator, tensors = typed.spec, torch.Generator().manual_seed(0), {}
    for name, entry in spec.entries.items():
        shape = entry.layout.shape
        fused = entry.stack or (len(shape) == 3 and entry.layout.text.startswith("expert "))
        linear = name.endswith(".weight") and not name.endswith("_norm.weight")  # gains of all heads are a matrix, too
        if len(shape) < 2 or not linear or fused or name in {*spec.tied, *spec.tied.values()}:
            continue
        transposed = spec.architecture.startswith(("GPT2", "OpenAIGPT")) and name.startswith("h.")
        out, into = (shape[1], shape[:1]) if transposed else (shape[0], shape[1:])
        module = f"base_model.model.{name.removesuffix('.weight')}"
        for piece, size in (("A", (2, *into)), ("B", (out, 2, *[1] * (len(shape) - 2)))):
            random = torch.randn(size, generator=generator, dtype=torch.float64)
            tensors[f"{module}.lora_{piece}.weight"] = 0.3 * random
    headers = {name: Header(tensor.dtype, tuple(tensor.shape), "") for name, tensor in tensors.items()}
    return Adapter("random", {"lora_alpha": 2}, headers, tensors.__getitem__)


@pytest.mark.parametrize("case", one_in(8, ONE_A_DECLARATION[::4]))
def test_adapters_of_all_matrices_move_with_their_base(case):
    typed, other = (Typed.of(checkpoint(case, seed)) for seed in (0, 7))
    if typed.spec.unties:
        typed, other = typed.untied(), other.untied()
    form = form_of(typed.spec, folded=bool(typed.spec.norms), free_biases=True, balanced=True)
    gauges = {"source": gauge_of(form, typed), "target": gauge_of(form, other)}
    element = replace(Element.sample(form, 3), **gauges)
    adapter = everywhere(typed)
    moved = move_adapter(element, adapter, typed)
    new = Typed.of(typed.derived(element.apply(typed)))
    inputs = probe(typed.checkpoint.config, typed.checkpoint.architecture)

    def run(base, adapter):
        return outputs(instantiate(merged(base, adapter), torch.float64), inputs)

    reference = run(typed, adapter)
    assert (run(new, moved) - reference).abs().max() < tolerance(case) * reference.abs().max()
    assert (run(new, adapter) - reference).abs().max() > 0.01 * reference.abs().max()
