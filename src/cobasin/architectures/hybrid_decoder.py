"""Decoders with attention and mixers of Mamba-2: Granite 4.0, Bamba, in some layers either; Falcon-H1, in all both.

Jamba has mixers of Mamba-1, in most layers, and in some layers experts.
"""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.joining import without_keys
from cobasin.architectures.moe import experts, granite_ffn, moe_spaces
from cobasin.architectures.parts import LAYER, NEURONS, Parts, layers_of_kinds
from cobasin.architectures.rmsnorm_decoder import (
    GRANITE_KEYS,
    PRE_NORMS,
    gated,
    head_width,
    partly_rotated,
    projections,
    rmsnorm_decoder,
    rotary,
    turned_attention,
)
from cobasin.architectures.selective_state import SelectiveState
from cobasin.architectures.state_space import mamba
from cobasin.symmetry.gauges import SoftmaxShift, ValueBias
from cobasin.symmetry.spec import Space, Spec

# equal shapes say how large the states of all groups are together
MIXER_KEYS = ("mamba_n_groups", "mamba_d_state", "time_step_limit")
FALCON_FACTORS = (
    "embedding_multiplier",
    "attention_in_multiplier",
    "key_multiplier",
    "attention_out_multiplier",
    "ssm_in_multiplier",
    "ssm_multipliers",
    "ssm_out_multiplier",
    "mlp_multipliers",
    "lm_head_multiplier",
)
FFN = "layers.{layer}.feed_forward"
NORMS = {"pre_norms": ("input_layernorm", "pre_ff_layernorm"), "last": "final_layernorm"}


def alternating(
    request: Request,
    rotated: int,
    ffn: Parts,
    keys: tuple[str, ...],
    pre_norms: tuple[str, ...] = PRE_NORMS,
    last: str = "norm",
) -> Spec:
    """The type of a decoder with a mixer or attention in every layer; the arguments are those of `rmsnorm_decoder`."""
    config, mixer = request.config, mamba(request.config, "mamba_layer")
    own, biased = "layers.{attention_layer}.self_attn", config.attention_bias
    spaces, attention, biases = turned_attention(head_width(config), rotated, biased, biased, own=own)
    if biased:
        biases += (ValueBias(f"{own}.v_proj.bias", f"{own}.o_proj.weight", f"{own}.o_proj.bias"),)
    spaces |= layers_of_kinds(
        config.layers_block_type, mamba_layer="linear_attention", attention_layer="full_attention"
    )
    routers = tuple(SoftmaxShift(name) for name, type_ in ffn[1].items() if type_ == "expert resid")
    spec = rmsnorm_decoder(
        request,
        spaces | mixer.spaces | ffn[0],
        attention | mixer.templates,
        ffn[1],
        pre_norms,
        biases=(*biases, *routers),
        keys=(*(MIXER_KEYS if spaces["mamba_layer"].size else ()), *keys),
        last=last,
    )
    return replace(spec, norms=(*spec.norms, *mixer.norms))


@declares("GraniteMoeHybrid", "granitemoehybrid", "Model", "ForCausalLM")
def granitemoehybrid(request: Request) -> Spec:
    """Granite 4.0: with experts or without; attention in all layers or some, with a rotary embedding or without."""
    config = request.config
    turned = config.position_embedding_type == "rope"
    keys = (*GRANITE_KEYS, "layer_types", "position_embedding_type")
    keys += ("num_experts_per_tok",) if config.num_local_experts else ()
    spec = alternating(request, head_width(config) if turned else 0, granite_ffn(request), keys)
    unread = () if turned else ("rope_parameters", "max_position_embeddings")
    return without_keys(spec, *unread)


@declares("Bamba", "bamba", "Model", "ForCausalLM")
def bamba(request: Request) -> Spec:
    """Bamba: of a head that has a rotary embedding it turns a part."""
    config = request.config
    ffn = {}, gated(FFN, bias=config.mlp_bias)
    return alternating(request, partly_rotated(config), ffn, ("attn_layer_indices",), **NORMS)


@declares("FalconH1", "falcon_h1", "Model", "ForCausalLM")
def falcon_h1(request: Request) -> Spec:
    """Falcon-H1: attention beside a mixer, perhaps without a norm. Its factors are the same for all coordinates."""
    config, biased = request.config, request.config.attention_bias
    mixer = mamba(config, "layer", out_bias=config.projectors_bias, normed=config.mamba_rms_norm)
    spec = rmsnorm_decoder(
        request,
        rotary(head_width(config)) | mixer.spaces,
        projections(biased, biased) | mixer.templates,
        gated(FFN, bias=config.mlp_bias),
        keys=(*MIXER_KEYS, *FALCON_FACTORS, *(("mamba_norm_before_gate",) if config.mamba_rms_norm else ())),
        **NORMS,
    )
    return replace(spec, norms=(*spec.norms, *mixer.norms))


@declares("Jamba", "jamba", "Model", "ForCausalLM", "ForSequenceClassification")
def jamba(request: Request) -> Spec:
    """Jamba: nothing turns its queries and keys."""
    config = request.config
    mixer = SelectiveState(
        "layers.{mamba_layer}.mamba",
        config.mamba_expand * config.hidden_size,
        config.mamba_d_state,
        int(config.mamba_dt_rank),
        config.mamba_d_conv,
        conv_bias=config.mamba_conv_bias,
        bias=config.mamba_proj_bias,
        normed=True,
        gains=True,
    )
    spaces, attention, _ = turned_attention(head_width(config), 0, own="layers.{attention_layer}.self_attn")
    spaces |= layers_of_kinds(config.layer_types, mamba_layer="linear_attention", attention_layer="full_attention")
    spaces["dense"] = Space(config.intermediate_size, NEURONS, LAYER, part="ffn")
    mixed, mixture, block = [count > 1 for count in config.layers_num_experts], {}, "layers.{moe_layer}.feed_forward"
    if any(mixed):
        spaces |= moe_spaces(config.num_experts, config.intermediate_size)
        mixture = experts(request, block, router="router", fused=block)
    spec = rmsnorm_decoder(
        request,
        spaces | mixer.spaces | layers_of_kinds(mixed, moe_layer=True, dense_layer=False),
        attention | mixer.templates,
        mixture | gated("layers.{dense_layer}.feed_forward", "dense"),
        biases=(SoftmaxShift(f"{block}.router.weight"),) if mixture else (),
        keys=("num_experts_per_tok",) if mixture else (),
        **NORMS,
    )
    return replace(spec, norms=(*spec.norms, *mixer.norms))
