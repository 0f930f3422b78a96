"""DiffLlama: a Llama whose attention is the difference of two, head by head.

A head of the first half of the queries and keys has its counterpart in the second, so that both have one order. Both
look at the same values: a head of the first half of these and its counterpart, side by side, whose norm has no gain.
Each of the two may turn; left out is what mixes them, as their rows lie apart. Of the vectors that say how much is
subtracted only two products count: either pair may turn.
"""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.parts import LAYER, PER_GROUP, groups, linear, require, rotary_basis
from cobasin.architectures.rmsnorm_decoder import ANSWERING, OWN, VALUE_BIAS, gated, head_width, rmsnorm_decoder
from cobasin.symmetry.groups import Orthogonal
from cobasin.symmetry.spec import Space, Spec


@declares("DiffLlama", "diffllama", *ANSWERING)
def diffllama(request: Request) -> Spec:
    """DiffLlama. The norm behind its values reads their bias, which is no gauge."""
    config = request.config
    width, heads, kv = head_width(config), config.num_attention_heads, config.num_key_value_heads
    require(kv % 2 == 0, "num_key_value_heads that is odd")
    biased = config.attention_bias
    spaces = {
        **groups(heads // 2, kv // 2),
        **rotary_basis(width, (*PER_GROUP, "side")),
        "vo": Space(width, Orthogonal(), (*PER_GROUP, "half"), part="attention"),
        "side": Space(2),  # what is subtracted from, and what is subtracted
        "half": Space(2),  # of the values
        **{f"factor_{side}": Space(width, Orthogonal(), LAYER, part="attention") for side in (1, 2)},
    }
    attention = {
        **linear(f"{OWN}.q_proj", "(side kv rep pair freq)", "resid", biased),
        **linear(f"{OWN}.k_proj", "(side kv pair' freq)", "resid", biased),
        **linear(f"{OWN}.v_proj", "(half kv vo)", "resid", biased),
        **linear(f"{OWN}.o_proj", "resid", "(kv rep half vo)", biased),
        **{f"{OWN}.lambda_{of}{side}": f"factor_{side}" for of in "qk" for side in (1, 2)},
    }
    spec = rmsnorm_decoder(request, spaces, attention, gated())
    return replace(spec, biases=tuple(bias for bias in spec.biases if bias != VALUE_BIAS))
