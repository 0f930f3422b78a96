"""Decoders with an RMSNorm on queries and keys: Qwen3, Gemma 3, OLMo 2 and 3, EXAONE 4, HunYuan.

The norm stands between the projection and the rotary embedding, its gain differs from entry to entry. What passes
both is a sign per frequency, common to a KV group, and a scale per frequency on the gains, which queries multiply
and keys divide by. Left out, both finite: quarter turns, which exchange the two gains of a frequency, as no group here
acts on rows and gains at once; and a sign that goes from a single gain into the rows it meets: gains start at one, and
a match that turned one would let a merge average it to zero.
"""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures.parts import LAYER, require
from cobasin.architectures.rmsnorm_decoder import (
    HEADS,
    OWN,
    PER_GROUP,
    POST_NORMS,
    gated,
    gemma_sandwich,
    head_width,
    projections,
    rmsnorm_decoder,
)
from cobasin.symmetry.groups import Diagonal
from cobasin.symmetry.spec import Space, Spec


def normed_basis(width: int, shared: bool) -> dict[str, Space]:
    """Spaces of a Q-K basis behind a norm; ``shared``: all heads of a layer have the same gains."""
    scales = Diagonal(signed=True, scaled=True)
    return {
        "pair": Space(2),
        "freq": Space(width // 2, Diagonal(signed=True), PER_GROUP, part="attention"),
        "gain": Space(width // 2, scales, LAYER if shared else PER_GROUP, part="attention"),
    }


def normed_projections(bias: bool, shared: bool) -> dict[str, str]:
    """Projections of attention and the gains on queries and keys."""
    query, key = ("(pair gain)", "(pair gain')") if shared else ("(kv rep pair gain)", "(kv pair gain')")
    return projections(bias, bias, key="(kv pair freq)") | {
        f"{OWN}.q_norm.weight": query,
        f"{OWN}.k_norm.weight": key,
    }


@declares("Qwen3", "qwen3", *HEADS)
def qwen3(request: Request) -> Spec:
    """Qwen3."""
    return qwen3_decoder(request, "sliding_window", "layer_types")


def qwen3_decoder(request: Request, *keys: str) -> Spec:
    """The decoder of Qwen3, whose windows are said by ``keys``."""
    config = request.config
    attention = normed_projections(config.attention_bias, shared=True)
    return rmsnorm_decoder(request, normed_basis(head_width(config), shared=True), attention, gated(), keys=keys)


@declares("Gemma3", "gemma3_text", "ForCausalLM")
@declares("Gemma3Text", "gemma3_text", "Model", "ForSequenceClassification")
def gemma3(request: Request) -> Spec:
    """Gemma 3 without its vision tower."""
    config = request.config
    attention = normed_projections(config.attention_bias, shared=True)
    return gemma_sandwich(request, normed_basis(head_width(config), shared=True), attention)


def _olmo(request: Request, keys: tuple[str, ...] = ()) -> Spec:
    """Norms behind attention and FFN only, and over all queries and all keys of a layer."""
    config = request.config
    attention = normed_projections(config.attention_bias, shared=False)
    basis = normed_basis(head_width(config), shared=False)
    return rmsnorm_decoder(request, basis, attention, gated(), pre_norms=(), post_norms=POST_NORMS, keys=keys)


@declares("Olmo2", "olmo2", "Model", "ForCausalLM", "ForSequenceClassification")
def olmo2(request: Request) -> Spec:
    """OLMo 2."""
    return _olmo(request)


@declares("Olmo3", "olmo3", "Model", "ForCausalLM", "ForSequenceClassification")
def olmo3(request: Request) -> Spec:
    """OLMo 3: in most layers a window slides."""
    return _olmo(request, ("sliding_window", "layer_types"))


@declares("Exaone4", "exaone4", *HEADS)
def exaone4(request: Request) -> Spec:
    """EXAONE 4 where every layer has a rotary embedding: with a window, only the layers in which it slides have one."""
    config = request.config
    turned = config.sliding_window is None or set(config.layer_types) == {"sliding_attention"}
    require(turned, "sliding_window with layers of full attention, which have no rotary embedding,")
    attention, basis = normed_projections(False, shared=True), normed_basis(head_width(config), shared=True)
    keys = ("sliding_window", "layer_types")
    return rmsnorm_decoder(request, basis, attention, gated(), pre_norms=(), post_norms=POST_NORMS, keys=keys)


@declares("HunYuanDenseV1", "hunyuan_v1_dense", "Model", "ForCausalLM", "ForSequenceClassification")
def hunyuan_v1_dense(request: Request) -> Spec:
    """HunYuan without experts: the norm stands behind the rotary embedding, so that every coordinate has a scale."""
    config = request.config
    gain = Space(head_width(config), Diagonal(signed=True, scaled=True), LAYER, part="attention")
    basis = normed_basis(head_width(config), shared=True) | {"gain": gain}
    attention = projections(config.attention_bias, config.attention_bias, key="(kv pair freq)") | {
        f"{OWN}.query_layernorm.weight": "gain",
        f"{OWN}.key_layernorm.weight": "gain'",
    }
    return rmsnorm_decoder(request, basis, attention, gated())
