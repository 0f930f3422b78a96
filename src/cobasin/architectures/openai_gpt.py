"""GPT-1: GPT-2's projections with LayerNorms behind the branches, whose gains sit in the stream."""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures.joining import without_keys
from cobasin.architectures.layernorm_decoder import layer_norm_decoder
from cobasin.architectures.parts import LAYER, attention, conv1d, decoder_stream, neurons, output_head
from cobasin.symmetry.gauges import KeyBias, ValueBias
from cobasin.symmetry.groups import Permutation
from cobasin.symmetry.spec import Space, Spec


@declares("OpenAIGPT", "openai-gpt", "Model", "LMHeadModel", "ForSequenceClassification")
def openai_gpt(request: Request) -> Spec:
    """GPT-1."""
    config = request.config
    fused, output, mlp = "h.{layer}.attn.c_attn", "h.{layer}.attn.c_proj", "h.{layer}.mlp"
    spec = layer_norm_decoder(
        request,
        output_head(request, "tokens_embed.weight"),
        attention(config.n_head, config.n_embd // config.n_head)
        | {
            "resid": decoder_stream(config.n_embd, request.head, Permutation()),
            "ffn": Space(4 * config.n_embd, neurons(config.afn), LAYER, part="ffn"),
            "pos": Space(config.n_positions),
        },
        {
            "tokens_embed.weight": "vocab resid",
            "positions_embed.weight": "pos resid",
            **conv1d(fused, "(head qk + head qk' + head vo)", "resid"),
            **conv1d(output, "resid", "(head vo')"),
            **conv1d(f"{mlp}.c_fc", "ffn", "resid"),
            **conv1d(f"{mlp}.c_proj", "resid", "ffn'"),
        },
        dict.fromkeys(("h.{layer}.ln_1", "h.{layer}.ln_2"), ()),
        (
            KeyBias(f"{fused}.bias", block=1),
            ValueBias(f"{fused}.bias", f"{output}.weight", f"{output}.bias", block=2),
        ),
        ("n_head", "afn", "layer_norm_epsilon"),
        "transformer.",
    )
    return without_keys(spec, "is_causal")  # it always is
