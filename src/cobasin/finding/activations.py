"""Matching two models by their weights and by what they compute on the same inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from cobasin.checkpoints.typed import Typed
from cobasin.matching.activations import ActivationPair, with_activations
from cobasin.matching.state import Match
from cobasin.matching.weights import ascend
from cobasin.progress import Looks
from cobasin.statistics.joint import joint_activations
from cobasin.statistics.modules import built, input_axis, linear_maps
from cobasin.symmetry.action import Values
from cobasin.symmetry.canonical import stored
from cobasin.symmetry.form import Form
from cobasin.symmetry.state import State


class Runnable:
    """A model in canonical form, in memory: its linear maps read and write what the groups act on.

    Attributes:
        model: in float32, on the device.
        maps: its linear maps by the spec name of their weight.
    """

    def __init__(self, typed: Typed, form: Form, state: State, device: torch.device):
        self.model, holders = built(typed, stored(form, state), torch.float32, device)
        self.model.requires_grad_(False)
        self.maps = linear_maps(holders)


def by_activations(
    match: Match,
    pair: Sequence[Runnable],
    batches: Iterable[Mapping[str, Tensor]],
    report: Looks,
) -> Values:
    """The element that brings weights and activations of the source closest to those of the anchor.

    Args:
        match: of the weights.
        pair: source and anchor.
        batches: inputs of both.
        report: see `cobasin.matching.weights.ascend`.

    Raises:
        InputError: the models overflow on these inputs.
    """
    maps = [{name: module for name, module in one.maps.items() if name in match.tensors} for one in pair]
    device = pair[0].model.device
    inputs = ({name: x.to(device) for name, x in batch.items()} for batch in batches)
    found = {}
    for name, sides in joint_activations([one.model for one in pair], maps, inputs).items():
        weight, side = name.rsplit(":", 1)
        into = input_axis(maps[0][weight])
        found[name] = ActivationPair(into if side == "in" else 1 - into, side == "in", sides)
    joint = with_activations(match, found)
    ascend(joint, report)
    return joint.values
