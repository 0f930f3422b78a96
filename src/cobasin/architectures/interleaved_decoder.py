"""Decoders with RMSNorm whose rotary embedding turns neighbours, not halves: GLM, GLM-4, ERNIE 4.5, Helium."""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures.rmsnorm_decoder import (
    HEADS,
    PRE_NORMS,
    fused_gated,
    gated,
    head_width,
    partly_rotated,
    projections,
    rmsnorm_decoder,
    rotary,
    turned_attention,
)
from cobasin.symmetry.spec import Spec

QUERY, KEY = "(kv rep freq pair)", "(kv freq pair')"


def _glm(request: Request, post_norms: tuple[str, ...] = ()) -> Spec:
    """The output projection has no bias, so the value bias is no gauge. With pictures all others have one."""
    config = request.config
    basis, biased = (head_width(config), partly_rotated(config)), getattr(config, "attention_bias", True)
    spaces, attention, biases = turned_attention(*basis, biased, order="freq pair")
    return rmsnorm_decoder(request, spaces, attention, fused_gated(), PRE_NORMS, post_norms, biases=biases)


@declares("Glm", "glm", *HEADS)
def glm(request: Request) -> Spec:
    """GLM-4 of 2024."""
    return _glm(request)


@declares("Glm4", "glm4", *HEADS)
def glm4(request: Request) -> Spec:
    """GLM-4 of 2025: norms behind the branches, too."""
    return _glm(request, ("post_self_attn_layernorm", "post_mlp_layernorm"))


@declares("Ernie4_5", "ernie4_5", "Model", "ForCausalLM")
def ernie4_5(request: Request) -> Spec:
    """ERNIE 4.5 without experts: biases everywhere or nowhere."""
    biased = bool(request.config.use_bias)
    attention = projections(biased, biased, KEY, QUERY)
    return rmsnorm_decoder(request, rotary(head_width(request.config)), attention, gated(bias=biased))


@declares("Helium", "helium", *HEADS)
def helium(request: Request) -> Spec:
    """Helium. Without an output bias the value bias is no gauge."""
    config = request.config
    attention = projections(config.attention_bias, key=KEY, query=QUERY)
    return rmsnorm_decoder(request, rotary(head_width(config)), attention, gated(bias=config.mlp_bias))
