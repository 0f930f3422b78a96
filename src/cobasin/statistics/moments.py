"""Mean and deviation of what modules put out, channel by channel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cobasin.execution.devices import home
from cobasin.statistics.modules import writing
from cobasin.statistics.rows import TokenCalls, Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from cobasin.data import Batch


@dataclass(frozen=True)
class Moments:
    """Of the outputs of a module, over tokens.

    Attributes:
        mean: float64 [channels], on the CPU.
        deviation: the standard deviation, likewise.
        magnitude: the root mean square, likewise.
    """

    mean: Tensor
    deviation: Tensor
    magnitude: Tensor

    @classmethod
    def between(cls, ends: Sequence[Moments], shares: Sequence[float]) -> Moments:
        """Those that lie between several: every figure is interpolated by itself."""

        def mixed(name: str) -> Tensor:
            return sum(share * getattr(one, name) for share, one in zip(shares, ends, strict=True))  # type: ignore[return-value]

        return cls(mixed("mean"), mixed("deviation"), mixed("magnitude"))


class _Seen(Exception):
    """All that is watched has run."""


@torch.no_grad()
def moments(
    model: PreTrainedModel,
    modules: Mapping[str, list[nn.Module]],
    calls: TokenCalls,
    batches: Iterable[Batch],
) -> dict[str, Moments]:
    """The moments of modules over the tokens of all batches that count; runs end with the last of the modules.

    Args:
        model: on the device where it runs.
        modules: of the model, by name; those of one name count together.
        calls: which of their calls are about tokens, see `token_calls`.
        batches: inputs of the model.
    """
    sums: dict[str, Tensor] = {}

    def run(inputs: Mapping[str, Tensor]) -> None:
        tokens, about_tokens = Tokens(inputs), {name: iter(calls[name]) for name in modules}
        left = sum(len(calls[name]) for name in modules)

        def add(name: str, y: Tensor) -> None:
            nonlocal left
            if next(about_tokens[name]):
                x = tokens.counted(y).to(home(y.device), torch.float64)
                found = torch.stack([torch.full_like(x[0], len(x)), x.sum(0), x.square().sum(0)])
                sums[name] = sums[name] + found if name in sums else found
            left -= 1
            if not left:
                raise _Seen

        with writing(modules, add), suppress(_Seen):
            model(**inputs)

    for batch in batches:
        run(batch.to(model.device, model.dtype).inputs)
    return {name: _moments(*total) for name, total in sums.items()}


def _moments(count: Tensor, total: Tensor, squares: Tensor) -> Moments:
    mean, square = (total / count).cpu(), (squares / count).cpu()
    return Moments(mean, (square - mean.square()).clamp_min(0).sqrt(), square.sqrt())
