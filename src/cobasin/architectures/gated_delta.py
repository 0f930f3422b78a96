"""Decoders of which most layers are gated delta nets, the others gated attention: Qwen3.5, Qwen3-Next.

A delta net convolves the channels of queries, keys and values one by one, behind which is a SiLU: so they have an
order, and signs and scales between projection and convolution. Queries and keys have one order, as their product
counts. Values pass a norm with one gain for all heads, and a gate on the output entry by entry: once the output
projection has taken the gain over, every head has an order of its own.

Where attention does not rotate queries and keys, their coordinates have an order, which all heads share with the gains,
and in every group signs. Its values have an order, signs and scales, which the gate lets pass.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cobasin.architectures import Request, declares
from cobasin.architectures.moe import experts, moe_spaces, qwen_layers, shared_expert
from cobasin.architectures.parts import LAYER, NEURONS, PER_GROUP, Parts, layers_of_kinds, linear
from cobasin.architectures.qk_norm_decoder import normed_basis, normed_projections
from cobasin.architectures.rmsnorm_decoder import (
    ANSWERING,
    OWN,
    gated,
    head_width,
    partly_rotated,
    rmsnorm_decoder,
)
from cobasin.symmetry.gauges import Norm, SoftmaxShift
from cobasin.symmetry.groups import Diagonal, Permutation
from cobasin.symmetry.spec import Space, Spec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

FURTHER = r"mtp\..*"
BOTH = Permutation(signed=True, scaled=True, tied=True)  # queries and keys
DELTA = "layers.{delta_layer}.linear_attn"


def gated_attention(config: PreTrainedConfig) -> Parts:
    """Spaces and templates of attention whose queries come with a gate on the output, head by head."""
    width, rotated, biased = head_width(config), partly_rotated(config), config.attention_bias
    spaces = normed_basis(width, True, rotated) | {"vo": Space(width, NEURONS, PER_GROUP, part="attention")}
    turned = "pair freq + nope sign" if rotated < width else "pair freq"
    templates = normed_projections(biased, shared=True, partly=rotated < width)
    templates |= linear(f"{OWN}.q_proj", f"(kv rep ({turned} + vo~))", "resid", biased)
    return spaces, {name.replace("{layer}", "{full_layer}"): type_ for name, type_ in templates.items()}


def delta_net(config: PreTrainedConfig) -> Parts:
    """Spaces and templates of a gated delta net; a key has a group of values, all of them a place in its order."""
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads
    width, scales = config.linear_value_head_dim, Diagonal(signed=True, scaled=True)
    spaces = {
        "key_head": Space(keys, Permutation(), LAYER, part="heads"),
        "value_head": Space(values // keys, Permutation(), (*LAYER, "key_head"), part="heads"),
        "key": Space(config.linear_key_head_dim, BOTH, (*LAYER, "key_head", "side"), part="attention"),
        # the gain is one for all heads: their channels have orders of their own once what reads it has taken it over
        "value": Space(width, scales, (*LAYER, "key_head", "value_head"), part="attention", folded=NEURONS),
        "value_gain": Space(width),
        "side": Space(2),
        "tap": Space(config.linear_conv_kernel_dim),
    }
    head = "(key_head value_head)"
    templates = {
        f"{DELTA}.A_log": head,
        f"{DELTA}.dt_bias": head,
        f"{DELTA}.in_proj_qkv.weight": "(side key_head key + key_head value_head value) resid",
        f"{DELTA}.in_proj_z.weight": "(key_head value_head value~) resid",
        **linear(f"{DELTA}.in_proj_b", head, "resid", bias=False),
        **linear(f"{DELTA}.in_proj_a", head, "resid", bias=False),
        f"{DELTA}.conv1d.weight": "(side key_head key' + key_head value_head value') 1 tap",
        f"{DELTA}.norm.weight": "value_gain",
        f"{DELTA}.out_proj.weight": "resid (key_head value_head value~)",
    }
    return spaces, templates


def fused_delta_net(config: PreTrainedConfig) -> Parts:
    """The same whose projections are fused, key by key."""
    spaces, apart = delta_net(config)
    fused = {
        f"{DELTA}.in_proj_qkvz.weight": "(key_head (side key + value_head value + value_head value~)) resid",
        f"{DELTA}.in_proj_ba.weight": "(key_head side value_head) resid",
    }
    return spaces, {name: type_ for name, type_ in apart.items() if ".in_proj_" not in name} | fused


def mixed_decoder(
    request: Request, net: Parts, ffn: Parts, absent: tuple[str, ...] = (), keys: tuple[str, ...] = ()
) -> Spec:
    """The type of a decoder with delta nets in some layers."""
    config, (mlp_spaces, mlp) = request.config, ffn
    spaces, attention = gated_attention(config)
    spaces |= layers_of_kinds(config.layer_types, full_layer="full_attention", delta_layer="linear_attention")
    spec = rmsnorm_decoder(
        request,
        spaces | net[0] | mlp_spaces,
        attention | net[1],
        mlp,
        plus_one=True,
        biases=tuple(SoftmaxShift(name) for name, type_ in mlp.items() if type_ == "expert resid"),
        absent=absent,
        keys=("linear_num_key_heads", "linear_key_head_dim", "layer_types", *keys),
    )
    norm = Norm(f"{DELTA}.norm.weight", (f"{DELTA}.out_proj.weight",), centred=False, stream="value")
    return replace(
        spec,
        norms=(*spec.norms, norm),
        plus_one=tuple(name for name in spec.plus_one if name != norm.weight),
    )


def mixture(request: Request) -> Parts:
    """Spaces and templates of experts, one of which all tokens share."""
    config = request.config
    spaces, shared = shared_expert(config)
    # the layers that predict further tokens may have their experts in another layout
    own = replace(request, names=[name for name in request.names if not name.startswith("mtp.")])
    return spaces | moe_spaces(config.num_experts, config.moe_intermediate_size), experts(own) | shared


def qwen3_5_decoder(request: Request) -> Spec:
    """The decoder of Qwen3.5."""
    return mixed_decoder(request, delta_net(request.config), ({}, gated()))


def qwen3_5_moe_decoder(request: Request) -> Spec:
    """The decoder of Qwen3.5-MoE."""
    return mixed_decoder(request, delta_net(request.config), mixture(request), keys=("num_experts_per_tok",))


def _alone(spec: Spec) -> Spec:
    """A decoder whose file may be that of one that reads pictures."""
    return replace(spec, aliases={"language_model.": ""}, buffers=(*spec.buffers, r"visual\..*"), further=(FURTHER,))


@declares("Qwen3_5", "qwen3_5_text", "ForCausalLM")
@declares("Qwen3_5Text", "qwen3_5_text", "Model", "ForSequenceClassification")
def qwen3_5(request: Request) -> Spec:
    """Qwen3.5 without its vision tower."""
    return _alone(qwen3_5_decoder(request))


@declares("Qwen3_5Moe", "qwen3_5_moe_text", "ForCausalLM")
@declares("Qwen3_5MoeText", "qwen3_5_moe_text", "Model")
def qwen3_5_moe(request: Request) -> Spec:
    """Qwen3.5-MoE without its vision tower."""
    return _alone(qwen3_5_moe_decoder(request))


@declares("Qwen3Next", "qwen3_next", *ANSWERING)
def qwen3_next(request: Request) -> Spec:
    """Qwen3-Next: experts in all layers or some."""
    config = request.config
    dense, plain, absent = qwen_layers(config)
    spaces, mlp = mixture(request)
    keys = ("num_experts_per_tok", "norm_topk_prob")
    spec = mixed_decoder(request, fused_delta_net(config), (spaces | dense, mlp | plain), absent, keys)
    return replace(spec, further=(FURTHER,))
