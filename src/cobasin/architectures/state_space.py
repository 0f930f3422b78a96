"""The mixer of Mamba-2: heads that carry a state from token to token, several to a group.

One projection puts out, for every head, a gate, what is written to the state and the length of a step; for every group,
where in the state that is written and where it is read. All but gate and step pass a convolution channel by channel,
behind which is a SiLU: so they have an order, and signs and scales between projection and convolution. The coordinates
of a group's state have one order on both sides, as their product counts. Those of a head have one order with the gate
and with the gain of the norm, which is over a group or comes before the gate, and which the output projection can take
over. Heads change places within their group, groups as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cobasin.architectures.parts import LAYER, linear
from cobasin.symmetry.gauges import Norm
from cobasin.symmetry.groups import Permutation
from cobasin.symmetry.spec import Space

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

CHANNELS = Permutation(signed=True, scaled=True)
SIDES = Permutation(signed=True, scaled=True, tied=True)  # where a state is written, and where it is read


@dataclass(frozen=True)
class StateSpace:
    """A mixer named ``name``, with as many ``heads`` and ``groups``, coordinates of a head and of the state.

    ``bias`` and ``out_bias`` are those of its two projections; ``normed``: there is a norm before or behind the gate.
    """

    name: str
    heads: int
    groups: int
    width: int
    states: int
    taps: int
    conv_bias: bool
    bias: bool
    out_bias: bool
    normed: bool = True

    @property
    def spaces(self) -> dict[str, Space]:
        """Its spaces."""
        heads = (*LAYER, "ssm_group")
        return {
            "ssm_group": Space(self.groups, Permutation(), LAYER, part="heads"),
            "ssm_head": Space(self.heads // self.groups, Permutation(), heads, part="heads"),
            "channel": Space(self.width, CHANNELS, (*heads, "ssm_head"), part="attention"),
            "state": Space(self.states, SIDES, (*heads, "side"), part="attention"),
            "side": Space(2),
            "tap": Space(self.taps),
        }

    @property
    def templates(self) -> dict[str, str]:
        """Its tensors."""
        head = "ssm_group ssm_head"
        gate, written, sides = f"{head} channel~", f"{head} channel", "side ssm_group state"
        found = {f"{self.name}.{number}": f"({head})" for number in ("A_log", "D", "dt_bias")}
        found |= linear(f"{self.name}.in_proj", f"({gate} + {written} + {sides} + {head})", "resid", self.bias)
        found |= {f"{self.name}.conv1d.weight": f"({written}' + {sides}') 1 tap"}
        found |= {f"{self.name}.conv1d.bias": f"({gate} + {sides}~)"} if self.conv_bias else {}
        found |= {f"{self.name}.norm.weight": f"({gate})"} if self.normed else {}
        return found | linear(f"{self.name}.out_proj", "resid", f"({gate})", self.out_bias)

    @property
    def norms(self) -> tuple[Norm, ...]:
        """Its norm, where it has one."""
        norm = Norm(f"{self.name}.norm.weight", (f"{self.name}.out_proj.weight",), centred=False, stream="channel")
        return (norm,) if self.normed else ()


def mamba(config: PreTrainedConfig, layer: str, out_bias: bool | None = None, normed: bool = True) -> StateSpace:
    """The mixers of decoders that have attention besides, in the layers ``layer``."""
    bias = bool(config.mamba_proj_bias)
    return StateSpace(
        f"layers.{{{layer}}}.mamba",
        heads=config.mamba_n_heads,
        groups=config.mamba_n_groups,
        width=int(config.mamba_d_head),
        states=config.mamba_d_state,
        taps=config.mamba_d_conv,
        conv_bias=bool(config.mamba_conv_bias),
        bias=bias,
        out_bias=bias if out_bias is None else out_bias,
        normed=normed,
    )
