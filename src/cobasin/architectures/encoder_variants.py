"""BERT and RoBERTa with other tables, masks or heads: LayoutLM, TAPAS, BigBird, Longformer, DPR, BertGeneration."""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.encoder import (
    ANSWERING,
    HEADS,
    bert_head,
    bert_masked_lm,
    bert_spec,
    roberta_head,
    with_tables,
)
from cobasin.architectures.joining import without_keys
from cobasin.architectures.parts import PER_HEAD, linear, neurons, require
from cobasin.symmetry.gauges import KeyBias
from cobasin.symmetry.groups import Orthogonal
from cobasin.symmetry.spec import Space, Spec

WORDS = "embeddings.word_embeddings.weight"
OF_BERT = ("is_decoder", "position_embedding_type")  # config keys that not all of these read
BIG_BIRD = ("ForPreTraining", *(head for head in HEADS if head != "ForQuestionAnswering"), "ForCausalLM")


@declares("LayoutLM", "layoutlm", *ANSWERING)
def layoutlm(request: Request) -> Spec:
    """LayoutLM 1: BERT, with embeddings of where on a page a word is, and how wide and high it is."""
    spec = bert_spec(request, *bert_head(request, "pooler.dense", bert_masked_lm(request)), "layoutlm.")
    tables = {f"embeddings.{side}_position_embeddings.weight": "place resid" for side in "xyhw"}
    return without_keys(with_tables(spec, tables, place=request.config.max_2d_position_embeddings), *OF_BERT)


@declares("Tapas", "tapas", "Model", "ForMaskedLM", "ForSequenceClassification")
def tapas(request: Request) -> Spec:
    """TAPAS: BERT, with several tables of kinds of tokens: their row and column in a table, their rank, and others."""
    config, table = request.config, "embeddings.token_type_embeddings"
    spec = bert_spec(request, *bert_head(request, "pooler.dense", bert_masked_lm(request)), "tapas.")
    rows = {f"type_{i}": size for i, size in enumerate(config.type_vocab_sizes)}
    templates = {name: type_ for name, type_ in spec.templates.items() if name != f"{table}.weight"}
    spec = replace(spec, templates=templates, function_keys=(*spec.function_keys, "reset_position_index_per_cell"))
    tables = {f"{table}_{i}.weight": f"{kind} resid" for i, kind in enumerate(rows)}
    return without_keys(with_tables(spec, tables, **rows), *OF_BERT, "is_causal")


@declares("BigBird", "big_bird", *BIG_BIRD)
def big_bird(request: Request) -> Spec:
    """BigBird. What a head looks at is drawn for every head in training only."""
    config, pooler = request.config, "pooler"
    require(config.use_bias, "use_bias = false")
    head, ties = bert_head(request, pooler, bert_masked_lm(request))
    if request.head == "ForSequenceClassification":
        head = linear("classifier.dense", "dense", "resid") | linear("classifier.out_proj", "label", "dense'")
    spec = without_keys(bert_spec(request, head, ties, "bert.", pooler=pooler), "position_embedding_type")
    sparse = ("block_size", "num_random_blocks") if config.attention_type == "block_sparse" else ()
    return replace(
        spec,
        spaces={**spec.spaces, "dense": Space(config.hidden_size, neurons(config.hidden_act), part="ffn")},
        function_keys=(*spec.function_keys, "attention_type", "rescale_embeddings", *sparse),
    )


@declares("Longformer", "longformer", *HEADS)
def longformer(request: Request) -> Spec:
    """Longformer: RoBERTa, whose tokens that see all others have queries, keys and values of their own for it.

    Both kinds of values pass one output projection, so that no value bias could move there alone.
    """
    spec = without_keys(bert_spec(request, *roberta_head(request), "longformer."), *OF_BERT)
    own, width = "encoder.layer.{layer}.attention.self", spec.spaces["qk"].size
    # which tokens see all others, where a caller does not say it
    told = ("sep_token_id",) if request.head in ("ForQuestionAnswering", "ForMultipleChoice") else ()
    afar = {"query": "(head far)", "key": "(head far')", "value": "(head vo)"}
    return replace(
        spec,
        spaces={**spec.spaces, "far": Space(width, Orthogonal(scaled=True), PER_HEAD, part="attention")},
        templates={
            **spec.templates,
            **{k: v for name, type_ in afar.items() for k, v in linear(f"{own}.{name}_global", type_, "resid").items()},
        },
        biases=(KeyBias(f"{own}.key.bias"), KeyBias(f"{own}.key_global.bias")),
        function_keys=(*spec.function_keys, "pad_token_id", "attention_window", *told),
    )


@declares("DPR", "dpr", "ContextEncoder", "QuestionEncoder", "Reader")
def dpr(request: Request) -> Spec:
    """DPR: BERTs whose first token is compared with that of another, and one that reads."""
    require(not request.config.projection_dim, "projection_dim")
    name = {"ContextEncoder": "ctx_encoder", "QuestionEncoder": "question_encoder"}.get(request.head)
    if name:
        spec = bert_spec(replace(request, head="Model"), {}, {}, f"{name}.bert_model.")
        # what tokens see, where a caller does not say it
        return replace(spec, function_keys=(*spec.function_keys, "pad_token_id"))
    reader = "span_predictor"
    head = linear(f"{reader}.qa_outputs", "span", "resid") | linear(f"{reader}.qa_classifier", "1", "resid")
    return bert_spec(request, head, {}, f"{reader}.encoder.bert_model.")


@declares("BertGeneration", "bert-generation", "Encoder", "Decoder")
def bert_generation(request: Request) -> Spec:
    """BertGeneration: BERT without segments; its decoder's head reads the stream as it is."""
    tied, head = request.config.tie_word_embeddings, "lm_head.decoder"
    if request.head == "Encoder":
        request, templates = replace(request, head="Model"), {}
    else:
        templates = linear(head, "vocab", "resid") | {"lm_head.bias": "vocab"}
    ties = {f"{head}.weight": WORDS, f"{head}.bias": "lm_head.bias"} if templates and tied else {}
    spec = without_keys(bert_spec(request, templates, ties, "bert."), "position_embedding_type")
    segments = "embeddings.token_type_embeddings.weight"
    return replace(spec, templates={name: type_ for name, type_ in spec.templates.items() if name != segments})
