"""Tensors by name that are computed when asked for."""

import torch

from cobasin.symmetry.state import Lazy, Remembered


def test_what_finds_room_is_computed_once():
    asked, sizes = [], {"small": 3, "large": 5, "next": 1, "last": 1}
    given = Lazy(sizes, lambda name: asked.append(name) or torch.ones(sizes[name], dtype=torch.float64))
    state = Remembered(given, 4 * 8)
    assert list(state) == list(sizes)
    for _ in range(2):
        assert {name: tensor.numel() for name, tensor in state.items()} == sizes
    # of the four numbers that find room three are taken at first: not five more, but one, and then none
    assert asked == ["small", "large", "next", "last", "large", "last"]
