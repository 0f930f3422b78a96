"""MPNet: a post-norm encoder whose layers share one relative position bias, as in T5."""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures.encoder import HEADS, bert_spaces, roberta_head, unread
from cobasin.architectures.encoder_decoder import heads, multi_head
from cobasin.architectures.parts import layer_norm, linear, tie_keys
from cobasin.symmetry.gauges import KeyBias, SoftmaxShift, ValueBias
from cobasin.symmetry.spec import Space, Spec

LAYER = "encoder.layer.{layer}"
OWN = f"{LAYER}.attention.attn"
POSITION = "encoder.relative_attention_bias.weight"


@declares("MPNet", "mpnet", *HEADS)
def mpnet(request: Request) -> Spec:
    """MPNet. The position bias serves all layers, and so ties the order of their heads."""
    config = request.config
    count, width = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    head, ties = roberta_head(request)
    kept = unread(request, "pooler.dense", head)
    return Spec(
        request.architecture,
        bert_spaces(request)
        | heads("", count, width, "layer", tied=True)
        | {"bucket": Space(config.relative_attention_num_buckets)},
        {
            "embeddings.word_embeddings.weight": "vocab resid",
            "embeddings.position_embeddings.weight": "pos resid",
            **layer_norm("embeddings.LayerNorm"),
            POSITION: "bucket head",
            **multi_head(OWN, "", names=("q", "k", "v", "o")),
            **layer_norm(f"{LAYER}.attention.LayerNorm"),
            **linear(f"{LAYER}.intermediate.dense", "ffn", "resid"),
            **linear(f"{LAYER}.output.dense", "resid", "ffn'"),
            **layer_norm(f"{LAYER}.output.LayerNorm"),
            **head,
            **kept,
        },
        prefix="mpnet.",
        tied=ties,
        biases=(
            KeyBias(f"{OWN}.k.bias"),
            ValueBias(f"{OWN}.v.bias", f"{OWN}.o.weight", f"{OWN}.o.bias"),
            SoftmaxShift(POSITION, "bucket", "attention"),
        ),
        buffers=(r"embeddings\.position_ids",),
        unread=tuple(kept),
        function_keys=("num_attention_heads", "hidden_act", "layer_norm_eps", *tie_keys(ties)),
    )
