"""CTRL: pre-LayerNorm layers on a stream to which the code adds sines and cosines, so that it is fixed."""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures.layernorm_decoder import layer_norm_decoder
from cobasin.architectures.parts import LAYER, attention, linear, neurons, output_head
from cobasin.symmetry.gauges import KeyBias, ValueBias
from cobasin.symmetry.spec import Space, Spec


@declares("CTRL", "ctrl", "Model", "LMHeadModel", "ForSequenceClassification")
def ctrl(request: Request) -> Spec:
    """CTRL."""
    config, own, ffn = request.config, "h.{layer}.multi_head_attention", "h.{layer}.ffn"
    head, ties = output_head(request, "w.weight", biased=True)
    if request.head == "ForSequenceClassification":
        head = linear("classifier", "label", "resid", bias=False)
    return layer_norm_decoder(
        request,
        (head, ties),
        attention(config.n_head, config.n_embd // config.n_head)
        | {
            "resid": Space(config.n_embd, part="residual"),
            "ffn": Space(config.dff, neurons("relu"), LAYER, part="ffn"),
        },
        {
            "w.weight": "vocab resid",
            **linear(f"{own}.Wq", "(head qk)", "resid"),
            **linear(f"{own}.Wk", "(head qk')", "resid"),
            **linear(f"{own}.Wv", "(head vo)", "resid"),
            **linear(f"{own}.dense", "resid", "(head vo')"),
            **linear(f"{ffn}.0", "ffn", "resid"),
            **linear(f"{ffn}.2", "resid", "ffn'"),
        },
        dict.fromkeys(("h.{layer}.layernorm1", "h.{layer}.layernorm2"), ()),
        (KeyBias(f"{own}.Wk.bias"), ValueBias(f"{own}.Wv.bias", f"{own}.dense.weight", f"{own}.dense.bias")),
        ("n_head", "layer_norm_epsilon"),
        "transformer.",
        "layernorm",
    )
