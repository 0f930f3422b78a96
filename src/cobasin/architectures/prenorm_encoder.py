"""Pre-LayerNorm encoders with the heads of BERT and RoBERTa: MegatronBERT, XLM-RoBERTa-XL, RoBERTa-PreLayerNorm, ESM.

Without a LayerNorm right behind the embeddings the stream can turn. A masked-LM head that repeats the embeddings is
untied for it: what it reads has passed an activation, so that it can only be reordered.
"""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.encoder import (
    HEADS,
    PAIRED,
    bert_embeddings,
    bert_head,
    bert_masked_lm,
    bert_spaces,
    roberta_head,
    rotated,
    unread,
)
from cobasin.architectures.parts import layer_norm, require, tie_keys
from cobasin.architectures.vision import Names, free_stream, norm_before, pre_norm
from cobasin.symmetry.gauges import Norm
from cobasin.symmetry.spec import Space, Spec

BERT = Names(
    "encoder.layer.{layer}",
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "attention.LayerNorm",
    "LayerNorm",
    "intermediate.dense",
    "output.dense",
)


def _encoder(
    request: Request,
    names: Names,
    final: str,
    embeddings: dict[str, str],
    spaces: dict[str, Space],
    head: tuple[dict[str, str], dict[str, str]],
    masked: tuple[str, str],
    keys: tuple[str, ...],
    **options,
) -> Spec:
    """The whole. ``masked`` names the norm and the decoder of a masked-LM head; the norm ``final`` precedes any head.

    Norms fold where the embeddings have none behind them, and the model has a head.
    """
    config, (templates, ties), decoder = request.config, head, f"{masked[1]}.weight"
    require(not config.add_cross_attention, "add_cross_attention")
    norms: tuple[Norm, ...] = ()
    if request.head != "Model" and not any("norm" in name.lower() for name in embeddings):
        spaces = spaces | {"resid": free_stream(config.hidden_size)}
        readers = [name for name, type_ in templates.items() if type_.endswith(" resid") and name != decoder]
        norms = (norm_before(readers, final),)
        if decoder in templates:
            behind = norm_before([decoder], masked[0], stream=templates[f"{masked[0]}.weight"])
            norms += (replace(behind, keeps_mean=True),)
    spec = pre_norm(
        request.architecture,
        config,
        names,
        spaces,
        embeddings,
        final,
        {},
        norms=norms,
        tied=ties,
        function_keys=(
            "num_attention_heads",
            "layer_norm_eps",
            "is_decoder",
            *(("is_causal",) if config.is_decoder else ()),
            *tie_keys(ties),
            *keys,
        ),
        **options,
    )
    return replace(spec, templates={**spec.templates, **templates})


@declares("MegatronBert", "megatron-bert", *HEADS, *PAIRED, "ForCausalLM")
def megatron_bert(request: Request) -> Spec:
    """MegatronBERT."""
    head, ties = bert_head(request, "pooler.dense", bert_masked_lm(request))
    kept = unread(request, "pooler.dense", head)
    return _encoder(
        request,
        BERT._replace(before="attention.ln", after="ln"),
        "encoder.ln",
        {name: type_ for name, type_ in bert_embeddings().items() if "LayerNorm" not in name},
        bert_spaces(request),
        (head | kept, ties),
        ("cls.predictions.transform.LayerNorm", "cls.predictions.decoder"),
        ("hidden_act",),
        prefix="bert.",
        buffers=(r"embeddings\.position_ids",),
        unread=tuple(kept),
    )


@declares("XLMRobertaXL", "xlm-roberta-xl", *HEADS, "ForCausalLM")
@declares("RobertaPreLayerNorm", "roberta-prelayernorm", *HEADS, "ForCausalLM")
def roberta_pre_norm(request: Request) -> Spec:
    """XLM-RoBERTa-XL and RoBERTa-PreLayerNorm; in the latter the gain behind the embeddings sits in the stream."""
    wide = request.config.model_type == "xlm-roberta-xl"
    before, after = ("self_attn_layer_norm", "LayerNorm") if wide else ("LayerNorm", "intermediate.LayerNorm")
    head, ties = roberta_head(request)
    kept = unread(request, "pooler.dense", head)
    return _encoder(
        request,
        BERT._replace(before=f"attention.{before}", after=after),
        "encoder.LayerNorm" if wide else "LayerNorm",
        {name: type_ for name, type_ in bert_embeddings().items() if not (wide and "LayerNorm" in name)},
        bert_spaces(request),
        (head | kept, ties),
        ("lm_head.layer_norm", "lm_head.decoder"),
        ("hidden_act", "pad_token_id"),  # positions are counted from it
        prefix="roberta." if wide else "roberta_prelayernorm.",
        buffers=(r"embeddings\.(position_ids|token_type_ids)",),
        unread=tuple(kept),
    )


@declares("Esm", "esm", "Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
def esm(request: Request) -> Spec:
    """ESM-1b and ESM-2, of proteins. A head for contacts, which is asked for apart, knows heads by their numbers."""
    config, size = request.config, request.config.hidden_size
    heads, kind, p = config.num_attention_heads, config.position_embedding_type, "lm_head"
    require(kind in ("absolute", "rotary"), f"position_embedding_type {kind!r}")
    turned, positions = kind == "rotary", "embeddings.position_embeddings.weight"
    table = {positions: "pos resid"} if not turned or request.has(positions) else {}  # ESM-2 has it, and never reads it
    head, ties = roberta_head(request)
    if request.head == "ForMaskedLM":  # the decoder's bias has no other name
        head.pop(f"{p}.decoder.bias")
        ties.pop(f"{p}.decoder.bias", None)
    kept = {"contact_head.regression.weight": "1 contact", "contact_head.regression.bias": "1"}
    kept |= unread(request, "pooler.dense", head)
    spaces = bert_spaces(request) | {"contact": Space(heads * config.num_hidden_layers)}
    spec = _encoder(
        request,
        BERT,
        "encoder.emb_layer_norm_after",
        {"embeddings.word_embeddings.weight": "vocab resid"}
        | table
        | (layer_norm("embeddings.layer_norm") if config.emb_layer_norm_before else {}),
        spaces | {"head": replace(spaces["head"], group=None)},
        (head | kept, ties),
        (f"{p}.layer_norm", f"{p}.decoder"),
        (
            "position_embedding_type",
            "token_dropout",
            *(("mask_token_id",) if config.token_dropout else ()),
            *(("rope_theta",) if turned else ("pad_token_id",)),
        ),
        prefix="esm.",
        buffers=(r"embeddings\.position_ids", r"(encoder\.layer\..+\.self\.)?rotary_embeddings\.inv_freq"),
        unread=(*kept, *(table if turned else ())),
    )
    return rotated(spec, size // heads) if turned else spec
