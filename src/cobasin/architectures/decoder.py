"""GPT-2, GPT-BigCode, GPT-Neo and BioGPT: pre-LayerNorm decoders with learned positions; MPT, without any."""

from __future__ import annotations

from collections.abc import Callable

from cobasin.architectures import Request, declares
from cobasin.architectures.layernorm_decoder import layer_norm_decoder, opt_layer, separate_attention
from cobasin.architectures.parts import (
    LAYER,
    PER_GROUP,
    attention,
    conv1d,
    groups,
    head_bases,
    linear,
    neurons,
    output_head,
    require,
)
from cobasin.architectures.rmsnorm_decoder import ANSWERING
from cobasin.symmetry.gauges import KeyBias, ValueBias
from cobasin.symmetry.spec import Space, Spec


def _fused(
    request: Request,
    layer: Callable[[str, str, str], dict[str, str]],
    heads: dict[str, Space],
    rows: str,
    written: str,
    *keys: str,
) -> Spec:
    """A decoder whose queries, keys and values are ``rows`` of one ``layer``; what heads put out is ``written``."""
    config = request.config
    require(not config.add_cross_attention, "add_cross_attention")
    fused, output, mlp = "h.{layer}.attn.c_attn", "h.{layer}.attn.c_proj", "h.{layer}.mlp"
    return layer_norm_decoder(
        request,
        output_head(request, "wte.weight", classifier="classifier"),
        {
            **heads,
            "ffn": Space(config.n_inner or 4 * config.n_embd, neurons(config.activation_function), LAYER, part="ffn"),
            "pos": Space(config.n_positions),
        },
        {
            "wte.weight": "vocab resid",
            "wpe.weight": "pos resid",
            **layer(fused, rows, "resid"),
            **layer(output, "resid", written),
            **layer(f"{mlp}.c_fc", "ffn", "resid"),
            **layer(f"{mlp}.c_proj", "resid", "ffn'"),
        },
        {"h.{layer}.ln_1": (fused,), "h.{layer}.ln_2": (f"{mlp}.c_fc",)},
        (
            KeyBias(f"{fused}.bias", block=1),
            ValueBias(f"{fused}.bias", f"{output}.weight", f"{output}.bias", block=2),
        ),
        ("n_head", "activation_function", "layer_norm_epsilon", "scale_attn_weights", *keys),
        "transformer.",
        "ln_f",
    )


@declares("GPT2", "gpt2", "Model", "LMHeadModel", "ForSequenceClassification", "ForTokenClassification")
@declares("GPT2", "gpt2", "ForQuestionAnswering")
def gpt2(request: Request) -> Spec:
    """GPT-2: fused and transposed projections. Folding the final gain unties the head from the embedding."""
    heads = attention(request.config.n_head, request.config.n_embd // request.config.n_head)
    rows = "(head qk + head qk' + head vo)"
    return _fused(request, conv1d, heads, rows, "(head vo')", "scale_attn_by_inverse_layer_idx")


@declares("GPTBigCode", "gpt_bigcode", "Model", "ForCausalLM", "ForSequenceClassification", "ForTokenClassification")
def gpt_bigcode(request: Request) -> Spec:
    """StarCoder and SantaCoder: one key and value for all heads, or, fused head by head, one for each."""
    config, heads = request.config, request.config.n_head
    bases, query, key = head_bases(config.n_embd // heads, PER_GROUP)
    rows = f"(kv rep {query} + kv {key} + kv vo)" if config.multi_query else f"(kv (rep {query} + {key} + vo))"
    spaces = bases | groups(heads, 1 if config.multi_query else heads)
    return _fused(request, linear, spaces, rows, "(kv rep vo')")


@declares("GPTNeo", "gpt_neo", *ANSWERING)
def gpt_neo(request: Request) -> Spec:
    """GPT-Neo: projections without a bias, but for the output's; some layers see a window only."""
    config, own, mlp = request.config, "h.{layer}.attn.attention", "h.{layer}.mlp"
    width = config.hidden_size // config.num_attention_heads
    ffn = config.intermediate_size or 4 * config.hidden_size
    return layer_norm_decoder(
        request,
        output_head(request, "wte.weight", classifier="classifier"),
        attention(config.num_attention_heads, width)
        | {
            "ffn": Space(ffn, neurons(config.activation_function), LAYER, part="ffn"),
            "pos": Space(config.max_position_embeddings),
        },
        {
            "wte.weight": "vocab resid",
            "wpe.weight": "pos resid",
            **separate_attention(own, "qk", "qk'", biased=False),
            f"{own}.out_proj.bias": "resid",
            **linear(f"{mlp}.c_fc", "ffn", "resid"),
            **linear(f"{mlp}.c_proj", "resid", "ffn'"),
        },
        {"h.{layer}.ln_1": tuple(f"{own}.{name}_proj" for name in "qkv"), "h.{layer}.ln_2": (f"{mlp}.c_fc",)},
        (),
        ("num_heads", "activation_function", "layer_norm_epsilon", "attention_layers", "window_size"),
        "transformer.",
        "ln_f",
    )


@declares("BioGpt", "biogpt", "Model", "ForCausalLM", "ForSequenceClassification", "ForTokenClassification")
def biogpt(request: Request) -> Spec:
    """BioGPT: OPT's layers. The first two rows of its positions are not read."""
    config = request.config
    layer, reads, biases = opt_layer("layers.{layer}", biased=True)
    return layer_norm_decoder(
        request,
        output_head(request, "embed_tokens.weight", "output_projection", classifier="classifier"),
        attention(config.num_attention_heads, config.hidden_size // config.num_attention_heads)
        | {
            "ffn": Space(config.intermediate_size, neurons(config.hidden_act), LAYER, part="ffn"),
            "pos": Space(config.max_position_embeddings + 2),
        },
        {"embed_tokens.weight": "vocab resid", "embed_positions.weight": "pos resid", **layer},
        reads,
        biases,
        ("num_attention_heads", "hidden_act", "scale_embedding"),
        "biogpt.",
        "layer_norm",
    )


@declares("Mpt", "mpt", *ANSWERING)
def mpt(request: Request) -> Spec:
    """MPT: no offsets and no biases. Every head has a slope of its own in ALiBi: their order is fixed."""
    config = request.config
    require(not config.attn_config.clip_qkv, "attn_config.clip_qkv")
    block = "blocks.{layer}"
    return layer_norm_decoder(
        request,
        output_head(request, "wte.weight", classifier="classifier"),
        attention(config.n_heads, config.d_model // config.n_heads)
        | {"head": Space(config.n_heads), "ffn": Space(4 * config.d_model, neurons("gelu"), LAYER, part="ffn")},
        {
            "wte.weight": "vocab resid",
            **linear(f"{block}.attn.Wqkv", "(head qk + head qk' + head vo)", "resid", bias=False),
            **linear(f"{block}.attn.out_proj", "resid", "(head vo')", bias=False),
            **linear(f"{block}.ffn.up_proj", "ffn", "resid", bias=False),
            **linear(f"{block}.ffn.down_proj", "resid", "ffn'", bias=False),
        },
        {f"{block}.norm_1": (f"{block}.attn.Wqkv",), f"{block}.norm_2": (f"{block}.ffn.up_proj",)},
        (),
        ("n_heads", "layer_norm_epsilon", "attn_config.softmax_scale"),
        "transformer.",
        "norm_f",
        offsets=False,
    )
