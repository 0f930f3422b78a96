"""Decoders with layers that have no rotary embedding (NoPE): SmolLM3, Command R7B and A; beside these Command R."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cobasin.architectures import Request, declares
from cobasin.architectures.layernorm_decoder import Templates, layer_norm_decoder, layers_of
from cobasin.architectures.parallel_decoder import KEYS, groups
from cobasin.architectures.parts import LAYER, head_bases, layers_of_kinds, output_head, rope_keys
from cobasin.architectures.rmsnorm_decoder import (
    ANSWERING,
    NEURONS,
    OWN,
    PER_GROUP,
    VALUE_BIAS,
    gated,
    head_width,
    projections,
    rmsnorm_decoder,
)
from cobasin.symmetry.gauges import FreeGauge, KeyBias
from cobasin.symmetry.groups import Diagonal
from cobasin.symmetry.spec import Space, Spec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

NEIGHBOURS = "freq pair"


def partly_turned(
    config: PreTrainedConfig, turned: Sequence[bool], order: str = "pair freq"
) -> tuple[dict[str, Space], Templates, tuple[FreeGauge, ...]]:
    """Spaces, templates and free biases of attention that only some layers (``turned``) rotate.

    In the others Q-K has a whole basis, and the softmax cancels key biases. ``order`` is how a rotary pair lies in a
    head.
    """
    width, biased = head_width(config), config.attention_bias
    bases, query, key = head_bases(width, PER_GROUP, width, order)
    still_bases, still_query, still_key = head_bases(width, PER_GROUP)
    still = projections(biased, biased, f"(kv {still_key})", f"(kv rep {still_query})")
    attention: Templates = {}
    for name, type_ in projections(biased, biased, f"(kv {key})", f"(kv rep {query})").items():
        if type_ == still[name]:
            attention[name] = type_
        else:
            attention[name.replace("{layer}", "{turned_layer}")] = type_
            attention[name.replace("{layer}", "{still_layer}")] = still[name]
    kinds = layers_of_kinds(turned, turned_layer=True, still_layer=False)
    biases = (KeyBias("layers.{still_layer}.self_attn.k_proj.bias"),) if biased else ()
    return bases | still_bases | kinds, attention, biases


@declares("SmolLM3", "smollm3", *ANSWERING)
def smollm3(request: Request) -> Spec:
    """SmolLM3."""
    config = request.config
    spaces, attention, biases = partly_turned(config, config.no_rope_layers)
    keys = ("sliding_window", "layer_types", "use_sliding_window", "no_rope_layers")
    return rmsnorm_decoder(request, spaces, attention, gated(bias=config.mlp_bias), biases=biases, keys=keys)


def _command(
    request: Request,
    spaces: dict[str, Space],
    attention: Templates,
    biases: tuple[FreeGauge, ...] = (),
    keys: tuple[str, ...] = (),
) -> Spec:
    """Attention and a gated FFN in parallel, behind one LayerNorm without an offset."""
    config = request.config
    head, ties = output_head(request, "embed_tokens.weight")
    layer = attention | gated()
    readers = layers_of({name: type_ for name, type_ in layer.items() if type_.endswith(" resid")})
    return layer_norm_decoder(
        request,
        (head, ties),
        groups(config.num_attention_heads, config.num_key_value_heads)
        | {"ffn": Space(config.intermediate_size, NEURONS, LAYER, part="ffn")}
        | spaces,
        {"embed_tokens.weight": "vocab resid", **layer},
        {"layers.{layer}.input_layernorm": readers, "norm": layers_of(head)},
        biases + ((VALUE_BIAS,) if config.attention_bias else ()),
        (*KEYS, "logit_scale", *rope_keys(config), *keys),
        "model.",
        offsets=False,
    )


@declares("Cohere", "cohere", "Model", "ForCausalLM")
def cohere(request: Request) -> Spec:
    """Command R and R+, Aya: with a LayerNorm over queries and keys, whose gains every head has for itself, or none.

    Then gains of queries and keys share scales. Left out: quarter turns of a rotary pair, and the mean over a head,
    which the norm ignores.
    """
    config, width = request.config, head_width(request.config)
    spaces, query, key = head_bases(width, PER_GROUP, width, NEIGHBOURS)
    gains: Templates = {}
    if config.use_qk_norm:
        scales = Diagonal(signed=True, scaled=True)
        spaces |= {"pair": Space(2), "freq": Space(width // 2, scales, PER_GROUP, part="attention")}
        gains = {f"{OWN}.q_norm.weight": "(kv rep) (freq pair)", f"{OWN}.k_norm.weight": "kv (freq' pair)"}
        query = key = "(freq~ pair)"
    biased = config.attention_bias
    attention = projections(biased, biased, f"(kv {key})", f"(kv rep {query})")
    return _command(request, spaces, attention | gains)


@declares("Cohere2", "cohere2", "Model", "ForCausalLM")
def cohere2(request: Request) -> Spec:
    """Command R7B and A: a rotary embedding in the layers whose window slides."""
    config = request.config
    turned = [kind == "sliding_attention" for kind in config.layer_types]
    return _command(request, *partly_turned(config, turned, NEIGHBOURS), keys=("sliding_window", "layer_types"))
