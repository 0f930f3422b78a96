"""GPT-2: a pre-LayerNorm decoder with learned positions."""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures.parts import (
    LAYER,
    PADDING_READ,
    attention,
    conv1d,
    decoder_stream,
    labels,
    layer_norm,
    neurons,
    output_head,
    require,
)
from cobasin.symmetry.gauges import KeyBias, Norm, ValueBias
from cobasin.symmetry.groups import Orthogonal, Permutation
from cobasin.symmetry.spec import Space, Spec


@declares("GPT2", "gpt2", "Model", "LMHeadModel", "ForSequenceClassification", "ForTokenClassification")
def gpt2(request: Request) -> Spec:
    """GPT-2: fused and transposed projections. Folding the final gain unties the head from the embedding."""
    config = request.config
    require(not config.add_cross_attention, "add_cross_attention")
    head, ties = output_head(request, "wte.weight", classifier="classifier")
    fused, output = "h.{layer}.attn.c_attn", "h.{layer}.attn.c_proj"
    norms = (
        Norm("h.{layer}.ln_1.weight", (f"{fused}.weight",), "h.{layer}.ln_1.bias"),
        Norm("h.{layer}.ln_2.weight", ("h.{layer}.mlp.c_fc.weight",), "h.{layer}.ln_2.bias"),
        Norm("ln_f.weight", tuple(name for name in head if name.endswith("weight")), "ln_f.bias"),
    )
    return Spec(
        request.architecture,
        attention(config.n_head, config.n_embd // config.n_head)
        | {
            "layer": Space(config.n_layer),
            "resid": decoder_stream(config.n_embd, request.head, Permutation(), Orthogonal(fix_ones=True)),
            "ffn": Space(config.n_inner or 4 * config.n_embd, neurons(config.activation_function), LAYER, part="ffn"),
            "vocab": Space(config.vocab_size),
            "pos": Space(config.n_positions),
            "label": labels(config),
        },
        {
            "wte.weight": "vocab resid",
            "wpe.weight": "pos resid",
            **layer_norm("h.{layer}.ln_1"),
            **conv1d(fused, "(head qk + head qk' + head vo)", "resid"),
            **conv1d(output, "resid", "(head vo')"),
            **layer_norm("h.{layer}.ln_2"),
            **conv1d("h.{layer}.mlp.c_fc", "ffn", "resid"),
            **conv1d("h.{layer}.mlp.c_proj", "resid", "ffn'"),
            **layer_norm("ln_f"),
            **head,
        },
        prefix="transformer.",
        tied=ties,
        norms=() if request.head == "Model" else norms,
        biases=(
            KeyBias(f"{fused}.bias", block=1),
            ValueBias(f"{fused}.bias", f"{output}.weight", f"{output}.bias", block=2),
        ),
        buffers=(r"h\.\d+\.attn\.(bias|masked_bias)",),
        function_keys=(
            "n_head",
            "activation_function",
            "layer_norm_epsilon",
            "scale_attn_weights",
            "scale_attn_by_inverse_layer_idx",
            "reorder_and_upcast_attn",
            "tie_word_embeddings",
            *PADDING_READ.get(request.head, ()),
        ),
    )
