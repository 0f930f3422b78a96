"""The mixer of Mamba-1: channels that each carry a state from token to token, which all write and read alike.

One projection puts out what the channels take in, and a gate for each. What they take in passes a convolution channel
by channel, behind which is a SiLU: so they have an order, and signs and scales between projection and convolution. From
behind the SiLU another projection makes where in the state is written and where it is read, whose coordinates have one
order, as their product counts, and signs and scales against each other; and the length of a step, by way of a few
coordinates on which any invertible map may act. Where these three are normed the maps are rotations, once the gain of
their norm is in what reads them, and the coordinates have no scales.
"""

from __future__ import annotations

from dataclasses import dataclass

from cobasin.architectures.parts import LAYER, linear
from cobasin.architectures.state_space import CHANNELS
from cobasin.symmetry.gauges import Norm
from cobasin.symmetry.groups import Orthogonal, SignedPermutation
from cobasin.symmetry.spec import Space


@dataclass(frozen=True)
class SelectiveState:
    """A mixer named ``name`` with as many ``channels``, coordinates of a state and of a step.

    ``bias`` is that of what reads and writes the stream; ``normed``: steps and states pass norms, ``gains``: that have
    gains.
    """

    name: str
    channels: int
    states: int
    rank: int
    taps: int
    conv_bias: bool
    bias: bool
    normed: bool
    gains: bool = False

    @property
    def spaces(self) -> dict[str, Space]:
        """Its spaces."""
        state = SignedPermutation if self.normed else CHANNELS
        step, folded = Orthogonal(scaled=not self.normed), None
        if self.gains:
            step, folded = SignedPermutation, Orthogonal()
        return {
            "channel": Space(self.channels, CHANNELS, LAYER, part="ffn"),
            "state": Space(self.states, state, LAYER, part="attention"),
            "step": Space(self.rank, step, LAYER, part="attention", folded=folded),
            "tap": Space(self.taps),
        }

    @property
    def templates(self) -> dict[str, str]:
        """Its tensors."""
        found = linear(f"{self.name}.in_proj", "(channel + channel~)", "resid", self.bias)
        found |= {f"{self.name}.conv1d.bias": "channel~"} if self.conv_bias else {}
        found |= {
            f"{self.name}.conv1d.weight": "channel' 1 tap",
            f"{self.name}.x_proj.weight": "(step + state + state') channel~",
            f"{self.name}.A_log": "channel~ state~",
            f"{self.name}.D": "channel~",
        }
        found |= linear(f"{self.name}.dt_proj", "channel~", "step'")
        if self.gains:
            gains = {"dt": "step~", "b": "state~", "c": "state~"}
            found |= {f"{self.name}.{of}_layernorm.weight": type_ for of, type_ in gains.items()}
        return found | linear(f"{self.name}.out_proj", "resid", "channel~", self.bias)

    @property
    def norms(self) -> tuple[Norm, ...]:
        """The norm whose gain what reads it can take over."""
        norm = Norm(f"{self.name}.dt_layernorm.weight", (f"{self.name}.dt_proj.weight",), centred=False, stream="step")
        return (norm,) if self.gains else ()
