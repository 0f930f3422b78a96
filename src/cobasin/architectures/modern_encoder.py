"""ModernBERT: pre-LayerNorm, RoPE, GeGLU.

A LayerNorm right after the embeddings puts its gain in the stream, and the first attention reads the stream without
a norm: the stream is permuted only, and its mean counts. Gains and offsets of the other norms fold into their readers.
The norm in front of a tied decoder stays: the decoder is the embedding.
"""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures.encoder import HEADS, stream
from cobasin.architectures.parts import LAYER, NEURONS, attention, labels, linear, rope_keys, tie_keys
from cobasin.symmetry.gauges import Norm, ValueBias
from cobasin.symmetry.groups import Permutation
from cobasin.symmetry.spec import Space, Spec

OWN, MLP = "layers.{layer}.attn", "layers.{layer}.mlp"


@declares("ModernBert", "modernbert", *HEADS)
def modernbert(request: Request) -> Spec:
    """ModernBERT. Queries, keys and values are fused, and so are the gate of an FFN and what it multiplies."""
    config = request.config
    width = config.hidden_size // config.num_attention_heads
    templates, ties = _templates(request)
    value = ValueBias(f"{OWN}.Wqkv.bias", f"{OWN}.Wo.weight", f"{OWN}.Wo.bias", block=2)
    return Spec(
        request.architecture,
        {
            "layer": Space(config.num_hidden_layers),
            "resid": stream(config.hidden_size, request.head),
            **attention(config.num_attention_heads, width, rotated=width),
            "ffn": Space(config.intermediate_size, NEURONS, LAYER, part="ffn"),
            "trans": Space(config.hidden_size, Permutation(), part="ffn"),
            "vocab": Space(config.vocab_size),
            "label": labels(config),
        },
        templates,
        prefix="model.",
        absent=(r"layers\.0\.attn_norm\..*",),
        tied=ties,
        norms=_norms(request, templates, tied=bool(ties)),
        biases=(value,) if config.attention_bias else (),
        function_keys=(
            "num_attention_heads",
            "hidden_activation",
            "norm_eps",
            "layer_types",
            "local_attention",
            *tie_keys(ties),
            *rope_keys(config),
            *(() if request.head == "Model" else ("classifier_activation",)),
            *(("classifier_pooling",) if request.head == "ForSequenceClassification" else ()),
        ),
    )


def _templates(request: Request) -> tuple[dict[str, str], dict[str, str]]:
    """All tensors, and the ties."""
    config = request.config

    def norm(name: str, space: str = "resid") -> dict[str, str]:
        return {f"{name}.weight": space} | ({f"{name}.bias": space} if config.norm_bias else {})

    body = {
        "embeddings.tok_embeddings.weight": "vocab resid",
        **norm("embeddings.norm"),
        **norm(f"{OWN}_norm"),
        **linear(f"{OWN}.Wqkv", "(head pair freq + head pair' freq + head vo)", "resid", config.attention_bias),
        **linear(f"{OWN}.Wo", "resid", "(head vo')", config.attention_bias),
        **norm(f"{MLP}_norm"),
        **linear(f"{MLP}.Wi", "(ffn~ + ffn)", "resid", config.mlp_bias),
        **linear(f"{MLP}.Wo", "resid", "ffn'", config.mlp_bias),
        **norm("final_norm"),
    }
    if request.head == "Model":
        return body, {}
    masked = request.head == "ForMaskedLM"
    ties = {"decoder.weight": "embeddings.tok_embeddings.weight"} if masked and config.tie_word_embeddings else {}
    hidden = "resid" if ties else "trans"
    out = linear("decoder", "vocab", hidden, config.decoder_bias) if masked else linear("classifier", "label", hidden)
    return body | linear("head.dense", hidden, "resid", config.classifier_bias) | norm("head.norm", hidden) | out, ties


def _norms(request: Request, templates: dict[str, str], tied: bool) -> tuple[Norm, ...]:
    """The norms that fold, each into the one linear layer that reads it; none of a model whose output is the stream."""
    if request.head == "Model":
        return ()
    readers = {f"{OWN}_norm": f"{OWN}.Wqkv", f"{MLP}_norm": f"{MLP}.Wi", "final_norm": "head.dense"}
    if not tied:
        readers["head.norm"] = "decoder" if request.head == "ForMaskedLM" else "classifier"
    return tuple(
        Norm(
            f"{norm}.weight",
            (f"{reader}.weight",),
            f"{norm}.bias" if request.config.norm_bias else None,
            stream=templates[f"{norm}.weight"],
            keeps_mean=True,
        )
        for norm, reader in readers.items()
    )
