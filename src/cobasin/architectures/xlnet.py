"""XLNet: post-norm layers whose attention sees tokens, their distance, and whether two are of one segment.

All three meet one query, so a head's Q-K basis acts on what makes them, and on the three biases of the query.
"""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures.encoder import POOLED, stream, token_head
from cobasin.architectures.parts import (
    LAYER,
    attention,
    check_summary,
    labels,
    layer_norm,
    linear,
    neurons,
    require,
    tie_keys,
)
from cobasin.symmetry.gauges import SoftmaxShift
from cobasin.symmetry.spec import Space, Spec

HEADS = (
    "LMHeadModel",
    "Model",
    "ForSequenceClassification",
    "ForMultipleChoice",
    "ForTokenClassification",
    "ForQuestionAnsweringSimple",
)
OWN, FFN = "layer.{layer}.rel_attn", "layer.{layer}.ff"
SEGMENTS = f"{OWN}.seg_embed"
QUERIES = ("r_w_bias", "r_r_bias", "r_s_bias")  # beside tokens, distances and segments
HIDING = "mask_emb"  # read where a caller says which tokens are to be predicted
KEYS = ("ff_activation", "layer_norm_eps", "clamp_len")


def _head(request: Request) -> tuple[dict[str, str], dict[str, str], tuple[str, ...]]:
    """A task head: templates, ties, keys of the config that it reads."""
    config = request.config
    if request.head == "LMHeadModel":
        ties = {"lm_loss.weight": "word_embedding.weight"} if config.tie_word_embeddings else {}
        return linear("lm_loss", "vocab", "resid"), ties, tie_keys(ties)
    if request.head in POOLED:
        check_summary(config)
        summary = linear("sequence_summary.summary", "pool", "resid")
        return summary | linear("logits_proj", "label", "pool'"), {}, ("summary_type", "summary_activation")
    return token_head(request), {}, ()


@declares("XLNet", "xlnet", *HEADS)
def xlnet(request: Request) -> Spec:
    """XLNet. What the two segment vectors of a head share adds the same to all scores, which the softmax cancels."""
    config = request.config
    # Transformers runs neither on texts of different lengths, the second on an even number of texts alone
    require(config.attn_type == "bi", f"attn_type = {config.attn_type}")
    require(not config.bi_data, "bi_data")
    head, ties, keys = _head(request)
    spaces = attention(config.n_head, config.d_head) | {
        "layer": Space(config.n_layer),
        "resid": stream(config.d_model, request.head),
        "ffn": Space(config.d_inner, neurons(config.ff_activation), LAYER, part="ffn"),
        "pool": Space(config.d_model, neurons(config.summary_activation), part="ffn"),
        "wave": Space(config.d_model),
        "segment": Space(2),
        "vocab": Space(config.vocab_size),
        "label": Space(1) if request.head == "ForMultipleChoice" else labels(config),
        "span": Space(2),
    }
    return Spec(
        request.architecture,
        spaces,
        {
            "word_embedding.weight": "vocab resid",
            HIDING: "1 1 resid",
            f"{OWN}.q": "resid head qk",
            f"{OWN}.k": "resid head qk'",
            f"{OWN}.r": "wave head qk'",
            f"{OWN}.v": "resid head vo",
            f"{OWN}.o": "resid head vo'",
            **{f"{OWN}.{name}": "head qk" for name in QUERIES},
            SEGMENTS: "segment head qk'",
            **layer_norm(f"{OWN}.layer_norm"),
            **linear(f"{FFN}.layer_1", "ffn", "resid"),
            **linear(f"{FFN}.layer_2", "resid", "ffn'"),
            **layer_norm(f"{FFN}.layer_norm"),
            **head,
        },
        prefix="transformer.",
        tied=ties,
        biases=(SoftmaxShift(SEGMENTS, "segment", "attention"),),
        unread=(HIDING,),
        function_keys=(*KEYS, *keys),
    )
