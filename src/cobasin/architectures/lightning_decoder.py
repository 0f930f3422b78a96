"""MiniMax: experts in all layers, and lightning attention in some, each of whose heads forgets at a pace of its own.

What goes on beside a branch comes from the norm in front of it, so that the gains sit in the stream.
"""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.moe import NUMBERED, SPARSE, experts, moe_spaces
from cobasin.architectures.parts import LAYER, Parts, layers_of_kinds, neurons, require
from cobasin.architectures.rmsnorm_decoder import ANSWERING, PRE_NORMS, head_width, projections, rmsnorm_decoder, rotary
from cobasin.symmetry.gauges import Norm, SoftmaxShift
from cobasin.symmetry.groups import Permutation
from cobasin.symmetry.spec import Space, Spec

LIGHT = "layers.{light_layer}.self_attn"
FACTORS = tuple(
    f"{kind}_{factor}_factor" for kind in ("full_attn", "linear_attn", "mlp") for factor in ("alpha", "beta")
)


def _lightning(request: Request) -> Parts:
    """Spaces and templates of lightning attention: an activation is behind queries, keys and values."""
    config, width, over = request.config, head_width(request.config), (*LAYER, "paced_head")
    spaces = {
        "paced_head": Space(config.num_attention_heads),
        "key": Space(width, neurons(config.hidden_act), over, part="attention"),
        "value": Space(width, Permutation(), over, part="attention"),
    }
    return spaces, {
        f"{LIGHT}.qkv_proj.weight": "(paced_head (key + key' + value)) resid",
        f"{LIGHT}.output_gate.weight": "(paced_head value) resid",
        f"{LIGHT}.norm.weight": "(paced_head value)",
        f"{LIGHT}.out_proj.weight": "resid (paced_head value)",
    }


@declares("MiniMax", "minimax", *ANSWERING)
def minimax(request: Request) -> Spec:
    """MiniMax-Text-01. Files hold the paces of heads, and what is computed from them for a block of tokens."""
    config, (spaces, lightning) = request.config, _lightning(request)
    stored = request.shape("self_attn.diagonal_decay") or (config.block_size,)
    require(stored[-1] == config.block_size, "block_size other than that of what the file has for a block")
    attention = projections(own="layers.{full_layer}.self_attn") | lightning
    mlp = experts(request, SPARSE, NUMBERED)
    spec = rmsnorm_decoder(
        request,
        rotary(head_width(config))
        | moe_spaces(config.num_local_experts, config.intermediate_size)
        | spaces
        | layers_of_kinds(config.layer_types, full_layer="full_attention", light_layer="linear_attention"),
        attention,
        mlp,
        (),
        PRE_NORMS,
        biases=(SoftmaxShift(next(iter(mlp))),),
        keys=("num_experts_per_tok", "sliding_window", "layer_types", "block_size", *FACTORS),
    )
    norm = Norm(f"{LIGHT}.norm.weight", (f"{LIGHT}.out_proj.weight",), centred=False, stream="value")
    paces = r"layers\.\d+\.self_attn\.(slope_rate|(query|key|diagonal)_decay)"
    return replace(
        spec,
        norms=(*spec.norms, *(() if request.head == "Model" else (norm,))),
        buffers=(*spec.buffers, paces),
    )
