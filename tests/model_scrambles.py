"""Copies of models scrambled by general invertible maps."""

import torch

from cobasin.checkpoints.typed import Typed
from cobasin.symmetry.balance import in_frames
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import form_of


def invertible(shape: tuple[int, ...], condition: float, seed: int) -> dict[str, torch.Tensor]:
    """Random invertible maps of a given condition number, with their contragredients."""
    generator = torch.Generator().manual_seed(seed)
    left, right = (
        torch.linalg.qr(torch.randn(*shape, shape[-1], generator=generator, dtype=torch.float64)).Q for _ in range(2)
    )
    sizes = condition ** torch.linspace(-0.5, 0.5, shape[-1], dtype=torch.float64)
    return {"matrix": (left * sizes) @ right.mT, "dual": (left / sizes) @ right.mT}


def general_scramble(typed: Typed, condition: float, seed: int = 0):
    """A copy with random invertible maps on every Q-K and V-O pair, and permuted FFNs."""
    spec = typed.spec
    keys = [key for key in spec.sites if key[0] in spec.invertible]
    frames = {
        key: invertible((*spec.batch(key[0]), spec.spaces[key[0]].size), condition, seed + i)
        for i, key in enumerate(keys)
    }
    permuted = Element.sample(form_of(spec), seed, part="ffn").apply(typed)
    return typed.derived(in_frames(form_of(spec), permuted, frames))
