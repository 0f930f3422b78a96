"""Layers stacked as a recipe says: with the embeddings of the first one's model, and what follows of the last's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from torch import Tensor

from cobasin.checkpoints.relayered import depth_of, relayered
from cobasin.checkpoints.typed import Typed
from cobasin.merging.owners import owners
from cobasin.recipe import Recipe
from cobasin.symmetry.keys import after_layers
from cobasin.symmetry.state import State


def as_fused(
    recipe: Recipe, typed: Sequence[Typed], states: Sequence[State]
) -> tuple[Sequence[Typed], Sequence[State]]:
    """The models and their tensors as they are fused: of layers that are stacked, the stack is in the place of each.

    Raises:
        InputError: as `stacked`.
    """
    if not recipe.method.stacks:
        return typed, states
    stacks = [stacked(recipe, typed, states)] * len(typed)
    return stacks, stacks


def stacked(recipe: Recipe, typed: Sequence[Typed], states: Sequence[State]) -> Typed:
    """The stack, its tensors read from those of the models as they are asked for, in whatever dtype they have there.

    Where the embedding and a head that is tied to it would be of two models, the head is untied.

    Args:
        recipe: of a method that stacks.
        typed, states: the models that it refers to, and their tensors.

    Raises:
        InputError: as `relayered`.
    """
    owner = owners(recipe)[0]
    spec, layers = typed[owner].spec, recipe.stacked(depth_of(typed[owner]))
    after, heads = after_layers(spec.entries), set(typed[owner].task_heads) if recipe.head else set()

    def giver(name: str) -> int:
        """The model of a tensor outside the layers."""
        return owner if name in heads else layers[-1 if name in after else 0][0]

    apart = any(giver(tied) != giver(twin) for tied, twin in spec.tied.items())
    like = typed[owner].untied() if apart else typed[owner]
    # a file asks for the tensors of a stack of experts one by one, mostly in turn with those of two others
    experts = lru_cache(maxsize=4)(lambda model, name: states[model][name])

    def read(part: str, layer: int | None) -> Tensor:
        name, place = like.spec.file_entries[part]
        model = giver(name) if layer is None else layers[layer][0]
        state, tied = states[model], typed[model].spec.tied
        if place is None:
            return state[tied.get(name, name)]
        return state.part(part) if isinstance(state, Typed) else experts(model, name)[place].clone()

    return relayered(like, [layer for _, layer in layers], read)
