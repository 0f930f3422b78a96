"""XLM and FlauBERT: BERT's layers under names of their own, with a table of languages where there are several."""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures.encoder import stream, token_head
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
from cobasin.symmetry.gauges import KeyBias, ValueBias
from cobasin.symmetry.spec import Space, Spec

HEADS = (
    "WithLMHeadModel",
    "Model",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnsweringSimple",
)
OWN, FFN = "attentions.{layer}", "ffns.{layer}"
# what tokens see where a caller does not say it is told by the padding
KEYS = ("n_heads", "gelu_activation", "layer_norm_eps", "causal", "pad_token_id")


def _head(request: Request) -> tuple[dict[str, str], dict[str, str], tuple[str, ...]]:
    """A task head: templates, ties, keys of the config that it reads."""
    config = request.config
    if request.head == "WithLMHeadModel":
        require(not config.asm, "asm")
        ties = {"pred_layer.proj.weight": "embeddings.weight"} if config.tie_word_embeddings else {}
        return linear("pred_layer.proj", "vocab", "resid"), ties, tie_keys(ties)
    if request.head == "ForSequenceClassification":
        check_summary(config)
        require(config.summary_proj_to_labels, "summary_proj_to_labels = false")
        return linear("sequence_summary.summary", "label", "resid"), {}, ("summary_type", "summary_activation")
    return token_head(request), {}, ()


@declares("XLM", "xlm", *HEADS)
@declares("Flaubert", "flaubert", *HEADS)
def xlm(request: Request) -> Spec:
    """XLM and FlauBERT."""
    config = request.config
    require(not getattr(config, "pre_norm", False), "pre_norm")
    head, ties, keys = _head(request)
    languages = config.n_langs > 1 and config.use_lang_emb
    spaces = attention(config.n_heads, config.emb_dim // config.n_heads) | {
        "layer": Space(config.n_layers),
        "resid": stream(config.emb_dim, request.head),
        "ffn": Space(4 * config.emb_dim, neurons("gelu" if config.gelu_activation else "relu"), LAYER, part="ffn"),
        "vocab": Space(config.vocab_size),
        "pos": Space(config.max_position_embeddings),
        "language": Space(config.n_langs),
        "label": labels(config),
        "span": Space(2),
    }
    return Spec(
        request.architecture,
        spaces,
        {
            "embeddings.weight": "vocab resid",
            "position_embeddings.weight": "pos resid",
            **({"lang_embeddings.weight": "language resid"} if languages else {}),
            **layer_norm("layer_norm_emb"),
            **linear(f"{OWN}.q_lin", "(head qk)", "resid"),
            **linear(f"{OWN}.k_lin", "(head qk')", "resid"),
            **linear(f"{OWN}.v_lin", "(head vo)", "resid"),
            **linear(f"{OWN}.out_lin", "resid", "(head vo')"),
            **layer_norm("layer_norm1.{layer}"),
            **linear(f"{FFN}.lin1", "ffn", "resid"),
            **linear(f"{FFN}.lin2", "resid", "ffn'"),
            **layer_norm("layer_norm2.{layer}"),
            **head,
        },
        prefix="transformer.",
        tied=ties,
        biases=(
            KeyBias(f"{OWN}.k_lin.bias"),
            ValueBias(f"{OWN}.v_lin.bias", f"{OWN}.out_lin.weight", f"{OWN}.out_lin.bias"),
        ),
        buffers=(r"position_ids",),
        function_keys=(*KEYS, *keys),
    )
