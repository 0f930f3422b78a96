"""Decoders with an RMSNorm on queries and keys: Qwen3, Gemma 3, OLMo 2 and 3, EXAONE 4, HunYuan, Doge.

The norm stands between the projection and the rotary embedding, its gain differs from entry to entry. What passes
both is a sign per frequency, common to a KV group, and a scale per frequency on the gains, which queries multiply
and keys divide by. Coordinates that no embedding turns have an order, too, which is that of their gains. Left out, both
finite: quarter turns, which exchange the two gains of a frequency, as no group here acts on rows and gains at once; and
a sign that goes from a single gain into the rows it meets: gains start at one, and a match that turned one would let a
merge average it to zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cobasin.architectures import Request, declares
from cobasin.architectures.parts import LAYER, PER_GROUP, Parts, layers_of_kinds, linear, require
from cobasin.architectures.rmsnorm_decoder import (
    ANSWERING,
    OWN,
    POST_NORMS,
    gated,
    gemma_sandwich,
    head_width,
    projections,
    rmsnorm_decoder,
)
from cobasin.symmetry.groups import Diagonal, Permutation, SignedPermutation
from cobasin.symmetry.spec import Space, Spec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def normed_basis(width: int, shared: bool, rotated: int | None = None) -> dict[str, Space]:
    """Spaces of a Q-K basis behind a norm; ``shared``: all heads of a layer have the same gains.

    Of a head all coordinates, or the first ``rotated``, pass the rotary embedding. The others may change order with
    their gains, and each has a sign in every KV group. Left out: the scales of such gains where they are not shared.
    """
    scales, over = Diagonal(signed=True, scaled=True), LAYER if shared else PER_GROUP
    rotated = width if rotated is None else rotated
    spaces = {
        "pair": Space(2),
        "freq": Space(rotated // 2, Diagonal(signed=True), PER_GROUP, part="attention"),
        "gain": Space(rotated // 2, scales, over, part="attention"),
    }
    if rotated < width and shared:
        spaces["nope"] = Space(width - rotated, Permutation(), LAYER, part="attention")
        spaces["sign"] = Space(1, Diagonal(signed=True), (*PER_GROUP, "nope"), part="attention")
        spaces["still"] = Space(1, scales, (*LAYER, "nope"), part="attention")
    elif rotated < width:
        spaces["nope"] = Space(width - rotated, SignedPermutation, PER_GROUP, part="attention")
    return spaces


def normed_projections(bias: bool, shared: bool, out_bias: bool | None = None, partly: bool = False) -> dict[str, str]:
    """Projections of attention and the gains on queries and keys; ``partly`` as `normed_basis` has coordinates left."""
    turned, gain, divided = "pair freq", "pair gain", "pair gain'"
    if partly and shared:
        turned, gain, divided = f"({turned} + nope sign)", f"({gain} + nope still)", f"({divided} + nope still')"
    elif partly:
        turned, gain, divided = f"({turned} + nope)", f"({gain} + nope~)", f"({divided} + nope~)"
    query, key = (gain, divided) if shared else (f"kv rep {gain}", f"kv {divided}")
    out_bias = bias if out_bias is None else out_bias
    projected = projections(bias, out_bias, key=f"(kv {turned})", query=f"(kv rep {turned})")
    return projected | {f"{OWN}.q_norm.weight": f"({query})", f"{OWN}.k_norm.weight": f"({key})"}


def normed(config: PreTrainedConfig, shared: bool = True) -> Parts:
    """Spaces and templates of attention behind such norms, all of whose coordinates are rotated."""
    return normed_basis(head_width(config), shared), normed_projections(config.attention_bias, shared)


def somewhere_turned(config: PreTrainedConfig, turned: Sequence[bool], bias: bool = False) -> Parts:
    """Spaces and templates of attention behind shared gains; ``turned`` says of each layer whether it is rotary."""
    width = head_width(config)
    spaces = normed_basis(width, shared=True, rotated=0) | normed_basis(width, shared=True)
    spaces |= layers_of_kinds(turned, turned_layer=True, still_layer=False)
    normed = normed_projections(bias, shared=True)
    split = [f"{OWN}.{part}" for part in ("q_proj", "k_proj", "q_norm", "k_norm")]
    attention = {name: type_ for name, type_ in normed.items() if name.rpartition(".")[0] not in split}
    for name, type_ in ((name, type_) for name, type_ in normed.items() if name not in attention):
        attention[name.replace("{layer}", "{turned_layer}")] = type_
        still = type_.replace("pair gain", "nope still").replace("pair freq", "nope sign")
        attention[name.replace("{layer}", "{still_layer}")] = still
    return spaces, attention


def rotary_halves(
    kind: str, width: int, rope: Mapping[str, Any], over: tuple[str, ...], kv: str = "kv"
) -> tuple[dict[str, Space], str, str, str]:
    """Spaces of heads behind shared gains, whose names begin with ``kind``; types of their basis, and of both gains.

    A proportional ``rope`` takes its pairs from the whole head and turns the first. Coordinates that are not turned,
    those of either half, have an order that heads share with the gains.
    """
    turned = width // 2
    if rope["rope_type"] == "proportional":
        turned = int(rope.get("partial_rotary_factor", 1.0) * width // 2)
    spaces, basis, gains = {}, [], []
    left, signs, scales = width // 2 - turned, Diagonal(signed=True), Diagonal(signed=True, scaled=True)
    for name, size in (("freq", turned), ("low", left), ("freq", turned), ("high", left)):
        space, sign, gain = (f"{kind}_{name}{end}" for end in ("", "_sign", "_gain"))
        if size and name == "freq":
            spaces[space] = Space(size, signs, (*over, kv), part="attention")
            spaces[gain] = Space(size, scales, over, part="attention")
            basis, gains = [*basis, space], [*gains, gain]
        elif size:
            spaces[space] = Space(size, Permutation(), over, part="attention")
            spaces[sign] = Space(1, signs, (*over, kv, space), part="attention")
            spaces[gain] = Space(1, scales, (*over, space), part="attention")
            basis, gains = [*basis, f"{space} {sign}"], [*gains, f"{space} {gain}"]
    summed, gained, divided = (f"({' + '.join(parts)})" for parts in (basis, gains, [f"{gain}'" for gain in gains]))
    return spaces, summed, gained, divided


def turned_where_it_slides(config: PreTrainedConfig) -> Parts:
    """The same of EXAONE: with a window, only the layers in which it slides have a rotary embedding."""
    slides = config.sliding_window is not None
    return somewhere_turned(config, [not slides or kind == "sliding_attention" for kind in config.layer_types])


@declares("Qwen3", "qwen3", *ANSWERING)
def qwen3(request: Request) -> Spec:
    """Qwen3."""
    return qwen3_decoder(request, "sliding_window", "layer_types")


def qwen3_decoder(request: Request, *keys: str) -> Spec:
    """The decoder of Qwen3, whose windows are said by ``keys``."""
    return rmsnorm_decoder(request, *normed(request.config), gated(), keys=keys)


@declares("Gemma3", "gemma3_text", "ForCausalLM")
@declares("Gemma3Text", "gemma3_text", "Model", "ForSequenceClassification")
def gemma3(request: Request) -> Spec:
    """Gemma 3 without its vision tower."""
    return gemma_sandwich(request, *normed(request.config))


def _olmo(request: Request, keys: tuple[str, ...] = ()) -> Spec:
    """Norms behind attention and FFN only, and over all queries and all keys of a layer."""
    parts = *normed(request.config, shared=False), gated()
    return rmsnorm_decoder(request, *parts, pre_norms=(), post_norms=POST_NORMS, keys=keys)


@declares("Olmo2", "olmo2", "Model", "ForCausalLM", "ForSequenceClassification")
def olmo2(request: Request) -> Spec:
    """OLMo 2."""
    return _olmo(request)


@declares("Olmo3", "olmo3", "Model", "ForCausalLM", "ForSequenceClassification")
def olmo3(request: Request) -> Spec:
    """OLMo 3: in most layers a window slides."""
    return _olmo(request, ("sliding_window", "layer_types"))


@declares("Exaone4", "exaone4", *ANSWERING)
def exaone4(request: Request) -> Spec:
    """EXAONE 4."""
    basis, attention = turned_where_it_slides(request.config)
    keys = ("sliding_window", "layer_types")
    return rmsnorm_decoder(request, basis, attention, gated(), pre_norms=(), post_norms=POST_NORMS, keys=keys)


def turned_and_normed(config: PreTrainedConfig) -> Parts:
    """HunYuan's attention: the norm stands behind the rotary embedding, so that every coordinate has a scale."""
    gain = Space(head_width(config), Diagonal(signed=True, scaled=True), LAYER, part="attention")
    attention = projections(config.attention_bias, config.attention_bias, key="(kv pair freq)") | {
        f"{OWN}.query_layernorm.weight": "gain",
        f"{OWN}.key_layernorm.weight": "gain'",
    }
    return normed_basis(head_width(config), shared=True) | {"gain": gain}, attention


@declares("HunYuanDenseV1", "hunyuan_v1_dense", "Model", "ForCausalLM", "ForSequenceClassification")
def hunyuan_v1_dense(request: Request) -> Spec:
    """HunYuan without experts."""
    return rmsnorm_decoder(request, *turned_and_normed(request.config), gated())


@declares("Doge", "doge", "Model", "ForCausalLM", "ForSequenceClassification")
def doge(request: Request) -> Spec:
    """Doge without experts: a gain of its own on all that goes on beside a branch, so that the stream cannot turn.

    What a token's values say of it is added to all scores that it gets: one number for every KV group, made of the
    values of all. As the order of groups would be on both sides of one tensor, they stay in their places.
    """
    config = request.config
    require(not config.is_moe, "is_moe = true")
    places = Space(config.num_key_value_heads)
    basis, attention = normed(config)
    attention |= {f"{OWN}.A": "noted", **linear(f"{OWN}.dt_proj", "noted", "(kv vo')", config.attention_bias)}
    spec = rmsnorm_decoder(
        request,
        {**basis, "kv": places, "noted": places},
        attention,
        gated(bias=config.mlp_bias),
        keys=("sliding_window", "keep_window_size"),
    )
    kept = dict.fromkeys(("layers.{layer}.input_residual", "layers.{layer}.post_attention_residual"), "resid~")
    return replace(
        spec,
        spaces={**spec.spaces, "resid": replace(spec.spaces["resid"], folded=None)},
        templates={**spec.templates, **kept},
        # folded, the last one would untie the head, for nothing
        norms=tuple(norm for norm in spec.norms if not (spec.tied and norm.weight == "norm.weight")),
        biases=(),  # what all values have in common would have to go into two biases
    )
