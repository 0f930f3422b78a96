"""Copies of models with permuted neurons, and what the modules of a model put out."""

import torch

from cobasin.checkpoints.probes import probe
from cobasin.checkpoints.running import instantiate
from cobasin.checkpoints.typed import Typed
from cobasin.coupling.uses import uses_of
from cobasin.statistics.modules import holders_of, writing
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import form_of
from cobasin.symmetry.groups import Orthogonal


def permuted(typed: Typed, seed: int = 0) -> Typed:
    """A copy with another order of everything that a coupling runs over: the same function, other tensors."""
    form, generator = form_of(typed.spec), torch.Generator().manual_seed(seed)
    keys = {key for entry in typed.spec.entries.values() for use in uses_of(typed.spec, entry) for key in use.basis}
    values = {}
    for key in sorted(keys, key=str):
        batch, n = typed.spec.batch(key[0]), typed.spec.spaces[key[0]].size
        value = form.group(key).identity(batch, n)
        order = torch.rand(*batch, n, generator=generator).argsort(-1)
        if isinstance(form.group(key), Orthogonal):
            value["matrix"] = torch.nn.functional.one_hot(order, n).mT.double()
        else:
            value["perm"] = order
        values[key] = value
    return Typed.of(typed.derived(Element(form, values).apply(typed)))


def activations(typed: Typed, seeds: int = 6) -> dict[str, torch.Tensor]:
    """Outputs of the modules of a model on random inputs, by the spec names of their weights."""
    model, found = instantiate(typed.checkpoint, torch.float64), {}

    def keep(name: str, output: torch.Tensor) -> None:
        found.setdefault(name, []).append(output.flatten(0, -2).float())

    holders = {name: modules[:1] for name, modules in holders_of(model, typed).items()}  # of tied weights the embedding
    with writing(holders, keep), torch.no_grad():
        for seed in range(seeds):
            inputs = probe(typed.checkpoint.config, typed.checkpoint.architecture, seed)
            model(**{key: x.double() if x.is_floating_point() else x for key, x in inputs.items()})
    return {name: torch.cat(outputs) for name, outputs in found.items()}
