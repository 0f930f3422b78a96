"""Decoders with LayerNorms and rotary embeddings: Falcon, Phi, StableLM, StarCoder2, OLMo 1, Persimmon.

Most of them have attention and FFN in parallel, behind one LayerNorm.
"""

from __future__ import annotations

from collections.abc import Mapping

from cobasin.architectures import Request, declares
from cobasin.architectures.layernorm_decoder import Templates, layer_norm_decoder, megatron_layer
from cobasin.architectures.parts import (
    LAYER,
    NEURONS,
    PER_GROUP,
    PER_HEAD,
    base_prefix,
    decoder_stream,
    groups,
    head_bases,
    layer_norm,
    linear,
    neurons,
    output_head,
    require,
    rope_keys,
    rotated_size,
)
from cobasin.architectures.rmsnorm_decoder import (
    ANSWERING,
    HEADS,
    MLP,
    OWN,
    VALUE_BIAS,
    gated,
    head_width,
    projections,
    rotary,
    rotary_attention,
)
from cobasin.symmetry.gauges import FreeGauge, KeyBias, ValueBias
from cobasin.symmetry.groups import Diagonal, Orthogonal, Permutation
from cobasin.symmetry.spec import Space, Spec

PROJECTIONS = tuple(f"{OWN}.{name}_proj" for name in "qkv")


def _normed(spaces: Mapping[str, Space], over: tuple[str, ...]) -> dict[str, Space]:
    """What becomes of the basis of queries and keys, a part of which is rotated, behind norms with gains."""
    found = {"pair": Space(2)}
    for name, group in (("freq", Diagonal(signed=True, scaled=True)), ("nope", NEURONS)):
        if name in spaces:
            found[name] = Space(spaces[name].size, group, over, part="attention")
    return found


def _key_gains(query: str) -> str:
    return query.replace("freq", "freq'").replace("nope", "nope'")


def _shared_norms(query: str) -> Templates:
    """Norms whose gains all heads share, of type ``query``."""
    return layer_norm(f"{OWN}.q_layernorm", query) | layer_norm(f"{OWN}.k_layernorm", _key_gains(query))


def grouped_attention(
    request: Request, output: str, biased: bool, out_biased: bool, shared: bool
) -> tuple[dict[str, Space], Templates, tuple[FreeGauge, ...]]:
    """Spaces, templates and free biases of grouped-query attention; a part of every head is rotated.

    Queries and keys may pass LayerNorms, whose gains all heads share (``shared``) or every head has for itself. Then
    coordinates keep their places, but for an order where there is no rotary embedding, and gains of queries and keys
    share scales. Left out: quarter turns of a rotary pair, and the mean over a head, which the norm ignores.
    """
    config = request.config
    width = head_width(config)
    rotated = rotated_size(config, width)
    normed = config.qk_layernorm
    require(rotated > 0 or not normed, "qk_layernorm = true without a rotary embedding")
    spaces, query, key = head_bases(width, PER_GROUP, rotated)
    gains: Templates = {}
    key_bias = f"{OWN}.k_proj.bias" if biased else ""
    if normed:
        spaces |= _normed(spaces, LAYER if shared else PER_GROUP)
        gain, key_gain = query, _key_gains(query)
        query = key = query.replace("freq", "freq~").replace("nope", "nope~")
        if shared:
            gains = _shared_norms(gain)
            key_bias = f"{OWN}.k_layernorm.bias"
        else:
            gains[f"{OWN}.q_layernorm.norms.{{kv rep}}.weight"] = f"(kv rep) {gain}"
            gains[f"{OWN}.k_layernorm.norms.{{kv}}.weight"] = f"kv {key_gain}"
            key_bias = ""
    templates = {
        **linear(PROJECTIONS[0], f"(kv rep {query})", "resid", biased),
        **linear(PROJECTIONS[1], f"(kv {key})", "resid", biased),
        **gains,
        **linear(PROJECTIONS[2], "(kv vo)", "resid", biased),
        **linear(output, "resid", "(kv rep vo')", out_biased),
    }
    biases: tuple[FreeGauge, ...] = ()
    if key_bias and "nope" in spaces:
        biases += (KeyBias(key_bias, block=1),)
    if biased and out_biased:
        biases += (ValueBias(f"{OWN}.v_proj.bias", f"{output}.weight", f"{output}.bias"),)
    return spaces, templates, biases


def grouped_decoder(
    request: Request,
    spaces: Mapping[str, Space],
    attention: Templates,
    mlp: Templates,
    biases: tuple[FreeGauge, ...] = (),
    keys: tuple[str, ...] = (),
    last: str = "norm",
    parallel: bool = False,
    biased_head: bool = False,
    offsets: bool = True,
) -> Spec:
    """A decoder with LayerNorms whose tensors have the names of Llama's.

    Its two branches, ``attention`` and ``mlp``, read a norm each, or ``parallel`` the same one; without a ``last`` norm
    there is none at all. ``spaces`` are those of the Q-K basis and what is not as in Llama, ``keys`` the config keys
    that change the function besides heads, activation and rotary embedding.
    """
    config = request.config

    def readers(branch: Templates) -> tuple[str, ...]:
        return tuple(name.removesuffix(".weight") for name, type_ in branch.items() if type_.endswith(" resid"))

    first, second = "layers.{layer}.input_layernorm", "layers.{layer}.post_attention_layernorm"
    reads = {first: readers(attention | mlp)} if parallel else {first: readers(attention), second: readers(mlp)}
    if {f"{OWN}.v_proj.bias", f"{OWN}.o_proj.bias"} <= attention.keys():
        biases += (VALUE_BIAS,)
    heads = config.num_attention_heads
    return layer_norm_decoder(
        request,
        output_head(request, "embed_tokens.weight", biased=biased_head),
        {
            **groups(heads, config.num_key_value_heads or heads),
            "vo": Space(head_width(config), Orthogonal(scaled=True), PER_GROUP, part="attention"),
            "ffn": Space(config.intermediate_size, NEURONS, LAYER, part="ffn"),
            **spaces,
        },
        {"embed_tokens.weight": "vocab resid", **attention, **mlp},
        reads if last else {},
        biases,
        ("num_attention_heads", "num_key_value_heads", "hidden_act", *keys, *rope_keys(config)),
        base_prefix(request),
        last,
        offsets,
    )


@declares("Falcon", "falcon", *ANSWERING)
def falcon(request: Request) -> Spec:
    """Falcon: multi-query (7B), grouped-query with two LayerNorms (40B) or one (11B), ALiBi in sequence (RW).

    Every head has a slope of its own in ALiBi: their order is fixed.
    """
    config = request.config
    heads, new = config.num_attention_heads, config.new_decoder_architecture
    kv = config.num_kv_heads if new else 1 if config.multi_query else heads
    norms = config.num_ln_in_parallel_attn
    require(not new or (config.parallel_attn and norms in (None, 1, 2)), "this order of branches and norms")
    require(new or norms in (None, 1), "num_ln_in_parallel_attn without new_decoder_architecture")
    require(new or config.multi_query or config.num_kv_heads == heads, "num_kv_heads without multi_query")
    width = config.hidden_size // heads
    bases, query, key = head_bases(width, PER_GROUP, 0 if config.alibi else width)
    own, mlp = "h.{layer}.self_attention", "h.{layer}.mlp"
    layer, biases = megatron_layer(own, mlp, "kv rep", query, key, config.bias, config.bias)
    attention, ffn = (f"{own}.query_key_value",), (f"{mlp}.dense_h_to_4h",)
    if new and norms != 1:
        reads = {"h.{layer}.ln_attn": attention, "h.{layer}.ln_mlp": ffn}
    elif new or config.parallel_attn:
        reads = {"h.{layer}.input_layernorm": attention + ffn}
    else:
        reads = {"h.{layer}.input_layernorm": attention, "h.{layer}.post_attention_layernorm": ffn}
    return layer_norm_decoder(
        request,
        output_head(request, "word_embeddings.weight", classifier="classifier"),
        bases
        | ({"kv": Space(kv), "rep": Space(heads // kv)} if config.alibi else groups(heads, kv))
        | {"ffn": Space(config.ffn_hidden_size, neurons(config.activation), LAYER, part="ffn")},
        {"word_embeddings.weight": "vocab resid", **layer},
        reads,
        biases,
        ("num_attention_heads", "alibi", "activation", "layer_norm_epsilon", *rope_keys(config)),
        "transformer.",
        "ln_f",
    )


@declares("Phi", "phi", *HEADS)
def phi(request: Request) -> Spec:
    """Phi-1, 1.5 and 2: one LayerNorm for attention and FFN, biases everywhere, also in the LM head."""
    config = request.config
    spaces, attention, biases = grouped_attention(request, f"{OWN}.dense", True, True, shared=True)
    spaces["ffn"] = Space(config.intermediate_size, neurons(config.hidden_act), LAYER, part="ffn")
    mlp = linear(f"{MLP}.fc1", "ffn", "resid") | linear(f"{MLP}.fc2", "resid", "ffn'")
    parts = spaces, attention, mlp, biases, ("layer_norm_eps",)
    return grouped_decoder(request, *parts, last="final_layernorm", parallel=True, biased_head=True)


@declares("StableLm", "stablelm", *HEADS)
def stablelm(request: Request) -> Spec:
    """StableLM: SwiGLU, with branches in parallel behind one LayerNorm or one after the other."""
    config = request.config
    spaces, attention, biases = grouped_attention(request, f"{OWN}.o_proj", config.use_qkv_bias, False, shared=False)
    parts = spaces, attention, gated(), biases, ("layer_norm_eps",)
    return grouped_decoder(request, *parts, parallel=config.use_parallel_residual)


@declares("Starcoder2", "starcoder2", *HEADS)
def starcoder2(request: Request) -> Spec:
    """StarCoder2: one branch after the other, an FFN without a gate; all of a head is rotated."""
    config, biased = request.config, request.config.use_bias
    spaces = rotary(head_width(config))
    spaces["ffn"] = Space(config.intermediate_size, neurons(config.hidden_act), LAYER, part="ffn")
    mlp = linear(f"{MLP}.c_fc", "ffn", "resid", biased) | linear(f"{MLP}.c_proj", "resid", "ffn'", biased)
    keys = ("norm_epsilon", "sliding_window")
    return grouped_decoder(request, spaces, projections(biased, biased), mlp, keys=keys)


@declares("Olmo", "olmo", "Model", "ForCausalLM", "ForSequenceClassification")
def olmo(request: Request) -> Spec:
    """OLMo of 2024: its LayerNorms have no gains and no offsets, so that its stream turns as it is."""
    config = request.config
    require(config.clip_qkv is None, "clip_qkv")
    spaces, attention = rotary_attention(config)
    spaces["resid"] = decoder_stream(config.hidden_size, request.head, Orthogonal(fix_ones=True))
    return grouped_decoder(request, spaces, attention, gated(), last="")


@declares("Persimmon", "persimmon", *HEADS)
def persimmon(request: Request) -> Spec:
    """Persimmon: GPT-NeoX's fused projections, whose queries and keys pass norms with gains that all heads share."""
    config = request.config
    width = config.hidden_size // config.num_attention_heads
    rotated = rotated_size(config, width)
    bases, query, key = head_bases(width, PER_HEAD, rotated)
    gains: Templates = {}
    if config.qk_layernorm:
        require(rotated > 0, "qk_layernorm = true without a rotary embedding")
        bases |= _normed(bases, LAYER)
        gains = _shared_norms(query)
        query = key = query.replace("freq", "freq~").replace("nope", "nope~")
    layer, biases = megatron_layer(OWN, MLP, "head", query, key)
    if gains:
        biases = tuple(bias for bias in biases if not isinstance(bias, KeyBias))
        biases += (KeyBias(f"{OWN}.k_layernorm.bias", block=1),) if "nope" in bases else ()
    return layer_norm_decoder(
        request,
        output_head(request, "embed_tokens.weight"),
        bases
        | {
            "head": Space(config.num_attention_heads, Permutation(), LAYER, part="heads"),
            "ffn": Space(config.intermediate_size, neurons(config.hidden_act), LAYER, part="ffn"),
        },
        {"embed_tokens.weight": "vocab resid", **layer, **gains},
        {
            "layers.{layer}.input_layernorm": (f"{OWN}.query_key_value",),
            "layers.{layer}.post_attention_layernorm": (f"{MLP}.dense_h_to_4h",),
        },
        biases,
        ("num_attention_heads", "hidden_act", "layer_norm_eps", *rope_keys(config)),
        base_prefix(request),
        "final_layernorm",
    )
