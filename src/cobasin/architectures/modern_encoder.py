"""ModernBERT, and the decoders made like it: pre-LayerNorm, RoPE, GeGLU.

A LayerNorm right after the embeddings puts its gain in the stream, and the first attention reads the stream without
a norm: the stream is permuted only, and its mean counts. Gains and offsets of the other norms fold into their readers.
The norm in front of a tied decoder stays: the decoder is the embedding.
"""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures.encoder import HEADS, POOLED, classes, stream
from cobasin.architectures.parts import LAYER, NEURONS, PADDING_READ, attention, linear, rope_keys, tie_keys
from cobasin.symmetry.gauges import Norm, ValueBias
from cobasin.symmetry.groups import Permutation
from cobasin.symmetry.spec import Space, Spec

OWN, MLP = "layers.{layer}.attn", "layers.{layer}.mlp"
WORDS = ("ForMaskedLM", "ForCausalLM")


@declares("ModernBert", "modernbert", *HEADS)
@declares("ModernBertDecoder", "modernbert-decoder", "Model", "ForCausalLM", "ForSequenceClassification")
def modernbert(request: Request) -> Spec:
    """ModernBERT, and decoders such as Ettin's. The gate of an FFN and what it multiplies are fused.

    So are queries, keys and values of the encoder.
    """
    config, causal = request.config, _causal(request)
    width = config.hidden_size // config.num_attention_heads
    templates, ties = _templates(request)
    fused, block = ("v_proj", 0) if causal else ("Wqkv", 2)
    value = ValueBias(f"{OWN}.{fused}.bias", f"{OWN}.Wo.weight", f"{OWN}.Wo.bias", block=block)
    return Spec(
        request.architecture,
        {
            "layer": Space(config.num_hidden_layers),
            "resid": stream(config.hidden_size, request.head),
            **attention(config.num_attention_heads, width, rotated=width),
            "ffn": Space(config.intermediate_size, NEURONS, LAYER, part="ffn"),
            "trans": Space(config.hidden_size, Permutation(), part="ffn"),
            "vocab": Space(config.vocab_size),
            "label": classes(request),
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
            "sliding_window" if causal else "local_attention",
            *tie_keys(ties),
            *rope_keys(config),
            *(() if request.head == "Model" else ("classifier_activation",)),
            *(("classifier_pooling",) if request.head in POOLED and not causal else ()),
            *(PADDING_READ.get(request.head, ()) if causal else ()),
        ),
    )


def _causal(request: Request) -> bool:
    return request.config.model_type == "modernbert-decoder"


def _attention(biased: bool, causal: bool) -> dict[str, str]:
    query, key, value = "head pair freq", "head pair' freq", "head vo"
    output = linear(f"{OWN}.Wo", "resid", "(head vo')", biased)
    if not causal:
        return linear(f"{OWN}.Wqkv", f"({query} + {key} + {value})", "resid", biased) | output
    for name, heads in (("q", query), ("k", key), ("v", value)):
        output |= linear(f"{OWN}.{name}_proj", f"({heads})", "resid", biased)
    return output


def _templates(request: Request) -> tuple[dict[str, str], dict[str, str]]:
    """All tensors, and the ties."""
    config, causal = request.config, _causal(request)

    def norm(name: str, space: str = "resid") -> dict[str, str]:
        return {f"{name}.weight": space} | ({f"{name}.bias": space} if config.norm_bias else {})

    body = {
        "embeddings.tok_embeddings.weight": "vocab resid",
        **norm("embeddings.norm"),
        **norm(f"{OWN}_norm"),
        **_attention(config.attention_bias, causal),
        **norm(f"{MLP}_norm"),
        **linear(f"{MLP}.Wi", "(ffn~ + ffn)", "resid", config.mlp_bias),
        **linear(f"{MLP}.Wo", "resid", "ffn'", config.mlp_bias),
        **norm("final_norm"),
    }
    if request.head == "Model":
        return body, {}
    head, words = _head(request), request.head in WORDS
    ties = {"decoder.weight": "embeddings.tok_embeddings.weight"} if words and config.tie_word_embeddings else {}
    hidden = "resid" if ties else "trans"
    if words:
        out = linear("decoder", "vocab", hidden, config.decoder_bias)
    else:
        out = linear("classifier", "label", hidden, not causal or config.classifier_bias)
    read = linear(f"{head}.dense", hidden, "resid", config.classifier_bias) | norm(f"{head}.norm", hidden)
    return body | read | out, ties


def _head(request: Request) -> str:
    """The name of the layer in front of the decoder, or of a classifier."""
    return "lm_head" if request.head == "ForCausalLM" else "head"


def _norms(request: Request, templates: dict[str, str], tied: bool) -> tuple[Norm, ...]:
    """The norms that fold, each into the linear layers that read it; none of a model whose output is the stream."""
    if request.head == "Model":
        return ()
    head = _head(request)
    own = [f"{OWN}.{name}_proj" for name in "qkv"] if _causal(request) else [f"{OWN}.Wqkv"]
    readers = {f"{OWN}_norm": own, f"{MLP}_norm": [f"{MLP}.Wi"], "final_norm": [f"{head}.dense"]}
    if not tied:
        readers[f"{head}.norm"] = ["decoder" if request.head in WORDS else "classifier"]
    return tuple(
        Norm(
            f"{norm}.weight",
            tuple(f"{reader}.weight" for reader in read),
            f"{norm}.bias" if request.config.norm_bias else None,
            stream=templates[f"{norm}.weight"],
            keeps_mean=True,
        )
        for norm, read in readers.items()
    )
