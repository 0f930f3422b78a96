"""LUKE: RoBERTa, whose stream also carries entities, of which words ask in other queries than of words."""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.encoder import HEADS, bert_head, bert_spec, masked_lm
from cobasin.architectures.joining import without_keys
from cobasin.architectures.parts import layer_norm, linear
from cobasin.symmetry.gauges import KeyBias
from cobasin.symmetry.groups import Orthogonal, Permutation
from cobasin.symmetry.spec import Space, Spec

OWN, ENTITIES, TOLD = "encoder.layer.{layer}.attention.self", "entity_embeddings", "entity_predictions"
TABLE = f"{ENTITIES}.entity_embeddings.weight"
ABOUT = {"ForEntityClassification": 1, "ForEntityPairClassification": 2, "ForEntitySpanClassification": 3}


@declares("Luke", "luke", *HEADS, *ABOUT)
def luke(request: Request) -> Spec:
    """LUKE. A head that predicts entities and repeats their table leaves it an order and scales, as RoCBert's does."""
    config, tied = request.config, request.head == "ForMaskedLM" and request.config.tie_word_embeddings
    narrow, aware = config.entity_emb_size != config.hidden_size, config.use_entity_aware_attention
    embed = "embed" if narrow else "resid"
    spec = without_keys(bert_spec(request, *_head(request, embed), "luke."), "position_embedding_type", "is_decoder")
    words = {name: type_ for name, type_ in spec.templates.items() if name.startswith("embeddings.")}
    entities = {f"entity_{name}": type_ for name, type_ in words.items() if "word_embeddings" not in name}
    into_stream = linear(f"{ENTITIES}.entity_embedding_dense", "resid", "embed'", bias=False) if narrow else {}
    asked = dict[str, str]()
    for kind in ("w2e", "e2w", "e2e") if aware else ():
        asked |= linear(f"{OWN}.{kind}_query", "(head qk)", "resid")
    group = Permutation(scaled=True) if tied else Orthogonal(scaled=True)
    return replace(
        spec,
        spaces={
            **spec.spaces,
            "entity": Space(config.entity_vocab_size),
            "embed": Space(config.entity_emb_size, group, part="residual"),
            "guess": Space(config.entity_emb_size, Permutation(), part="ffn"),
            "place": Space(ABOUT.get(request.head, 0)),
        },
        templates={
            **spec.templates,
            **entities,
            TABLE: f"entity {embed}",
            **into_stream,
            **asked,
        },
        # what a key adds to the products with two queries of a word is not the same
        biases=tuple(bias for bias in spec.biases if not (aware and isinstance(bias, KeyBias))),
        function_keys=(*spec.function_keys, "pad_token_id"),  # positions are counted from it
    )


def _head(request: Request, embed: str) -> tuple[dict[str, str], dict[str, str]]:
    """A task head (templates, ties): on entities, or as RoBERTa's and BERT's are; the words' decoder is never tied."""
    if request.head in ABOUT:
        return linear("classifier", "label", "(place resid)", bias=request.head != "ForEntityPairClassification"), {}
    if request.head != "ForMaskedLM":
        return bert_head(request, "pooler.dense", ({}, {}))
    tied, transform, decoder = request.config.tie_word_embeddings, f"{TOLD}.transform", f"{TOLD}.decoder.weight"
    hidden = embed if tied else "guess"
    own, scaled = (f"{hidden}~", f"{hidden}'") if hidden == "embed" else (hidden, hidden)
    words, _ = masked_lm(False, "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias")
    entities = linear(f"{transform}.dense", own, "resid") | layer_norm(f"{transform}.LayerNorm", scaled)
    entities |= {decoder: f"entity {hidden}", f"{TOLD}.bias": "entity"}
    return words | entities, {decoder: TABLE, "lm_head.bias": "lm_head.decoder.bias"} if tied else {}
