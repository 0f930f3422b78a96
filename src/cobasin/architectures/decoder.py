"""GPT-2: a pre-LayerNorm decoder with learned positions."""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures.layernorm_decoder import layer_norm_decoder, layers_of
from cobasin.architectures.parts import LAYER, attention, conv1d, neurons, output_head, require
from cobasin.symmetry.gauges import KeyBias, ValueBias
from cobasin.symmetry.spec import Space, Spec


@declares("GPT2", "gpt2", "Model", "LMHeadModel", "ForSequenceClassification", "ForTokenClassification")
def gpt2(request: Request) -> Spec:
    """GPT-2: fused and transposed projections. Folding the final gain unties the head from the embedding."""
    config = request.config
    require(not config.add_cross_attention, "add_cross_attention")
    head, ties = output_head(request, "wte.weight", classifier="classifier")
    fused, output, mlp = "h.{layer}.attn.c_attn", "h.{layer}.attn.c_proj", "h.{layer}.mlp"
    return layer_norm_decoder(
        request,
        (head, ties),
        attention(config.n_head, config.n_embd // config.n_head)
        | {
            "layer": Space(config.n_layer),
            "ffn": Space(config.n_inner or 4 * config.n_embd, neurons(config.activation_function), LAYER, part="ffn"),
            "pos": Space(config.n_positions),
        },
        {
            "wte.weight": "vocab resid",
            "wpe.weight": "pos resid",
            **conv1d(fused, "(head qk + head qk' + head vo)", "resid"),
            **conv1d(output, "resid", "(head vo')"),
            **conv1d(f"{mlp}.c_fc", "ffn", "resid"),
            **conv1d(f"{mlp}.c_proj", "resid", "ffn'"),
        },
        {"h.{layer}.ln_1": (fused,), "h.{layer}.ln_2": (f"{mlp}.c_fc",), "ln_f": layers_of(head)},
        (
            KeyBias(f"{fused}.bias", block=1),
            ValueBias(f"{fused}.bias", f"{output}.weight", f"{output}.bias", block=2),
        ),
        (
            "n_head",
            "activation_function",
            "layer_norm_epsilon",
            "scale_attn_weights",
            "scale_attn_by_inverse_layer_idx",
        ),
        "transformer.",
    )
