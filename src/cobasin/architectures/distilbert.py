"""DistilBERT: a post-norm encoder with names of its own."""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures.encoder import HEADS, POOLED, SAME_FUNCTION, classes, masked_lm, stream, token_head
from cobasin.architectures.parts import LAYER, attention, layer_norm, linear, neurons, tie_keys
from cobasin.symmetry.gauges import KeyBias, ValueBias
from cobasin.symmetry.groups import Permutation
from cobasin.symmetry.spec import Space, Spec


@declares("DistilBert", "distilbert", *HEADS)
def distilbert(request: Request) -> Spec:
    """DistilBERT."""
    config, layer, own = request.config, "transformer.layer.{layer}", "transformer.layer.{layer}.attention"
    spaces = attention(config.n_heads, config.dim // config.n_heads) | {
        "layer": Space(config.n_layers),
        "resid": stream(config.dim, request.head),
        "ffn": Space(config.hidden_dim, neurons(config.activation), LAYER, part="ffn"),
        "pool": Space(config.dim, neurons("relu"), part="ffn"),
        "trans": Space(config.dim, Permutation(), part="ffn"),
        "vocab": Space(config.vocab_size),
        "pos": Space(config.max_position_embeddings),
        "label": classes(request),
        "span": Space(2),
    }
    head, ties = token_head(request), {}
    if request.head in POOLED:
        head = linear("pre_classifier", "pool", "resid") | linear("classifier", "label", "pool'")
    if request.head == "ForMaskedLM":
        names = ("vocab_transform", "vocab_layer_norm", "vocab_projector", "vocab_projector.bias")
        head, ties = masked_lm(config.tie_word_embeddings, *names)
    return Spec(
        request.architecture,
        spaces,
        {
            "embeddings.word_embeddings.weight": "vocab resid",
            "embeddings.position_embeddings.weight": "pos resid",
            **layer_norm("embeddings.LayerNorm"),
            **linear(f"{own}.q_lin", "(head qk)", "resid"),
            **linear(f"{own}.k_lin", "(head qk')", "resid"),
            **linear(f"{own}.v_lin", "(head vo)", "resid"),
            **linear(f"{own}.out_lin", "resid", "(head vo')"),
            **layer_norm(f"{layer}.sa_layer_norm"),
            **linear(f"{layer}.ffn.lin1", "ffn", "resid"),
            **linear(f"{layer}.ffn.lin2", "resid", "ffn'"),
            **layer_norm(f"{layer}.output_layer_norm"),
            **head,
        },
        prefix="distilbert.",
        tied=ties,
        biases=(
            KeyBias(f"{own}.k_lin.bias"),
            ValueBias(f"{own}.v_lin.bias", f"{own}.out_lin.weight", f"{own}.out_lin.bias"),
        ),
        buffers=(r"embeddings\.position_ids",),
        function_keys=("n_heads", "activation", *SAME_FUNCTION, *tie_keys(ties)),
    )
