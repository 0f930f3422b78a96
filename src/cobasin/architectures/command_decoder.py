"""Cohere's decoders, Command and Aya: attention and a gated FFN in parallel, behind a LayerNorm without an offset."""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures import interleaved_decoder as interleaved
from cobasin.architectures.layernorm_decoder import Templates, layer_norm_decoder, layers_of
from cobasin.architectures.no_rope_decoder import somewhere_rotary
from cobasin.architectures.parallel_decoder import KEYS
from cobasin.architectures.parts import LAYER, NEURONS, PER_GROUP, groups, head_bases, output_head, rope_keys
from cobasin.architectures.rmsnorm_decoder import OWN, VALUE_BIAS, gated, head_width, projections
from cobasin.symmetry.gauges import FreeGauge
from cobasin.symmetry.groups import Diagonal
from cobasin.symmetry.spec import Space, Spec


def _command(
    request: Request,
    spaces: dict[str, Space],
    attention: Templates,
    biases: tuple[FreeGauge, ...] = (),
    keys: tuple[str, ...] = (),
) -> Spec:
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
    spaces, query, key = head_bases(width, PER_GROUP, width, "freq pair")
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
    parts = somewhere_rotary(config, turned, interleaved.QUERY, interleaved.KEY)
    return _command(request, *parts, keys=("sliding_window", "layer_types"))
