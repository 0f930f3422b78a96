"""Post-LayerNorm encoders: BERT, ERNIE, RoBERTa, XLM-R, CamemBERT, data2vec-text.

The gain of a post-norm sits in the residual stream, so one permutation acts on the stream of the whole model.
A bare encoder shows its stream as output: there it is fixed. That a post-norm ignores the mean of what is written
to it is left out: no group gains by it.
"""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.parts import (
    LAYER,
    PER_HEAD,
    attention,
    head_bases,
    labels,
    layer_norm,
    linear,
    neurons,
    require,
    tie_keys,
)
from cobasin.symmetry.gauges import KeyBias, ValueBias
from cobasin.symmetry.groups import Permutation, SignedPermutation
from cobasin.symmetry.spec import Space, Spec

ANSWERING = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
HEADS = (*ANSWERING, "ForMultipleChoice")
CAUSAL = ("ForCausalLM", "LMHeadModel")  # the masked-LM head, on a stack that may look back only
VOCABULARY = ("ForMaskedLM", *CAUSAL)
PAIRED = ("ForPreTraining", "ForNextSentencePrediction")  # tell whether two sentences follow each other
POOLED = ("ForSequenceClassification", "ForMultipleChoice")  # read one vector of a text
SAME_FUNCTION = ("is_decoder", "add_cross_attention")
SENTENCES = ("cls.seq_relationship", "sop_classifier.classifier")  # read the pooler, tell the order of sentences


def stream(size: int, head: str) -> Space:
    """The residual stream of a post-norm encoder; fixed where it is the output."""
    return Space(size, None if head == "Model" else Permutation(), part="residual")


def masked_lm(
    tied: bool, dense: str, norm: str, decoder: str, bias: str, embed: str = "resid"
) -> tuple[dict[str, str], dict[str, str]]:
    """A masked-LM head (templates, ties): dense, activation, norm, decoder over the vocabulary.

    The decoder repeats the word embedding, so that the head's hidden space is that of the embeddings, ``embed``;
    untied, it is a space of its own, ``trans``.
    """
    hidden = embed if tied else "trans"
    templates = linear(dense, hidden, "resid") | layer_norm(norm, hidden) | {bias: "vocab"}
    templates |= {f"{decoder}.weight": f"vocab {hidden}", f"{decoder}.bias": "vocab"}
    if not tied:
        return templates, {}
    ties = {f"{decoder}.weight": "embeddings.word_embeddings.weight", f"{decoder}.bias": bias}
    return templates, {name: twin for name, twin in ties.items() if name != twin}


def bert_head(
    request: Request, pooler: str, masked: tuple[dict[str, str], dict[str, str]]
) -> tuple[dict[str, str], dict[str, str]]:
    """A task head (templates, ties): on the pooled first token, on every token, or the masked-LM head ``masked``."""
    if request.head in VOCABULARY:
        return masked
    if request.head in PAIRED:
        templates, ties = masked if request.head == "ForPreTraining" else ({}, {})
        return templates | linear(pooler, "pool", "resid") | linear(SENTENCES[0], "order", "pool"), ties
    if request.head in POOLED:
        return linear(pooler, "pool", "resid") | linear("classifier", "label", "pool"), {}
    return token_head(request) | bare_pooler(request, pooler), {}


def classes(request: Request) -> Space:
    """The rows of a classifier: the labels, or the one that scores each of several texts, whatever a config says."""
    return Space(1) if request.head == "ForMultipleChoice" else labels(request.config)


def token_head(request: Request) -> dict[str, str]:
    """A head on every token: over the labels, or over the start and the end of an answer."""
    answer = linear("qa_outputs", "span", "resid")
    heads = {
        "ForTokenClassification": linear("classifier", "label", "resid"),
        "ForQuestionAnswering": answer,
        "ForQuestionAnsweringSimple": answer,  # beside one that searches beams
    }
    return heads.get(request.head, {})


def bare_pooler(request: Request, pooler: str) -> dict[str, str]:
    """The pooler of a bare model, which its file may lack. It is an output."""
    found = request.head == "Model" and request.has(f"{pooler}.weight")
    return linear(pooler, "pooled", "resid") if found else {}


def unread(request: Request, pooler: str, head: dict[str, str]) -> dict[str, str]:
    """What files of pre-training keep that their class does not read: the pooler, and what reads the pooler.

    With the pooler's output fixed, whoever reads the file as another class finds it unchanged.
    """
    if f"{pooler}.weight" in head:
        return {}
    found = linear(pooler, "pooled", "resid")
    for name in SENTENCES:
        found |= linear(name, "order", "pooled")
    return {name: type_ for name, type_ in found.items() if request.has(name)}


def bert_layer(prefix: str) -> dict[str, str]:
    """Attention output, FFN and norms of a BERT layer; BERT, RoBERTa and DeBERTa share them."""
    return (
        linear(f"{prefix}.attention.output.dense", "resid", "(head vo')")
        | layer_norm(f"{prefix}.attention.output.LayerNorm")
        | linear(f"{prefix}.intermediate.dense", "ffn", "resid")
        | linear(f"{prefix}.output.dense", "resid", "ffn'")
        | layer_norm(f"{prefix}.output.LayerNorm")
    )


def bert_spaces(request: Request, layers: tuple[str, ...] = LAYER) -> dict[str, Space]:
    """Spaces of BERT, RoBERTa, MPNet and DeBERTa; ``layers`` are the index spaces in a layer's name."""
    config = request.config
    width = config.hidden_size // config.num_attention_heads
    if config.model_type == "deberta-v2":  # the others ignore the key
        width = getattr(config, "attention_head_size", width)
    return attention(config.num_attention_heads, width, layers) | {
        "layer": Space(config.num_hidden_layers),
        "resid": stream(config.hidden_size, request.head),
        # ESM has a GELU, and no key for it
        "ffn": Space(config.intermediate_size, neurons(getattr(config, "hidden_act", "gelu")), layers, part="ffn"),
        "vocab": Space(config.vocab_size),
        "pos": Space(config.max_position_embeddings),
        "type": Space(getattr(config, "type_vocab_size", 0)),  # MPNet has none
        "label": classes(request),
        "trans": Space(config.hidden_size, Permutation(), part="ffn"),
        "span": Space(2),
        "order": Space(2),
        "pool": Space(config.hidden_size, SignedPermutation, part="ffn"),  # tanh is odd
        "pooled": Space(config.hidden_size),
    }


def bert_embeddings(space: str = "resid") -> dict[str, str]:
    """The three embedding tables and their norm."""
    return {
        "embeddings.word_embeddings.weight": f"vocab {space}",
        "embeddings.position_embeddings.weight": f"pos {space}",
        "embeddings.token_type_embeddings.weight": f"type {space}",
        **layer_norm("embeddings.LayerNorm", space),
    }


def bert_spec(
    request: Request,
    head: dict[str, str],
    ties: dict[str, str],
    prefix: str,
    embed: str = "resid",
    pooler: str = "pooler.dense",
) -> Spec:
    """A model with BERT's layers, its embeddings in the space ``embed``."""
    layer, config = "encoder.layer.{layer}", request.config
    require(not getattr(config, "add_cross_attention", False), "add_cross_attention")
    kept = unread(request, pooler, head)
    templates = {
        **bert_embeddings(embed),
        **linear(f"{layer}.attention.self.query", "(head qk)", "resid"),
        **linear(f"{layer}.attention.self.key", "(head qk')", "resid"),
        **linear(f"{layer}.attention.self.value", "(head vo)", "resid"),
        **bert_layer(layer),
        **head,
        **kept,
    }
    attention_ = f"{layer}.attention"
    return Spec(
        request.architecture,
        bert_spaces(request),
        templates,
        prefix=prefix,
        tied=ties,
        biases=(
            KeyBias(f"{attention_}.self.key.bias"),
            ValueBias(
                f"{attention_}.self.value.bias",
                f"{attention_}.output.dense.weight",
                f"{attention_}.output.dense.bias",
            ),
        ),
        buffers=(r"embeddings\.position_ids", r"embeddings\.token_type_ids"),
        unread=tuple(kept),
        function_keys=(
            "num_attention_heads",
            "hidden_act",
            "layer_norm_eps",
            "position_embedding_type",
            "is_decoder",
            *(("is_causal",) if getattr(config, "is_decoder", False) else ()),
            *tie_keys(ties),
        ),
    )


def rotated(spec: Spec, width: int, order: str = "pair freq") -> Spec:
    """The same with queries and keys that pass a rotary embedding, by which no key bias is free."""
    own, (bases, query, key) = "encoder.layer.{layer}.attention.self", head_bases(width, PER_HEAD, width, order)
    turned = linear(f"{own}.query", f"(head {query})", "resid") | linear(f"{own}.key", f"(head {key})", "resid")
    return replace(
        spec,
        spaces={**spec.spaces, **bases},
        templates={**spec.templates, **turned},
        biases=tuple(bias for bias in spec.biases if not isinstance(bias, KeyBias)),
    )


def bert_masked_lm(request: Request) -> tuple[dict[str, str], dict[str, str]]:
    """BERT's masked-LM head (templates, ties)."""
    p, tied = "cls.predictions", request.config.tie_word_embeddings
    return masked_lm(tied, f"{p}.transform.dense", f"{p}.transform.LayerNorm", f"{p}.decoder", f"{p}.bias")


def with_tables(spec: Spec, tables: dict[str, str], **rows: int) -> Spec:
    """The same with further embedding tables, and the spaces of their rows by size."""
    spaces = {**spec.spaces, **{name: Space(size) for name, size in rows.items()}}
    return replace(spec, spaces=spaces, templates={**tables, **spec.templates})


@declares("Bert", "bert", *HEADS, *PAIRED, "LMHeadModel")
def bert(request: Request) -> Spec:
    """BERT."""
    return bert_spec(request, *bert_head(request, "pooler.dense", bert_masked_lm(request)), "bert.")


@declares("Ernie", "ernie", *HEADS, *PAIRED, "ForCausalLM")
def ernie(request: Request) -> Spec:
    """ERNIE 1 to 3: BERT, where its config says so with embeddings of tasks."""
    config = request.config
    spec = bert_spec(request, *bert_head(request, "pooler.dense", bert_masked_lm(request)), "ernie.")
    tasks = {"embeddings.task_type_embeddings.weight": "task resid"} if config.use_task_id else {}
    return with_tables(spec, tasks, task=config.task_type_vocab_size)


def roberta_head(request: Request) -> tuple[dict[str, str], dict[str, str]]:
    """A task head (templates, ties) of RoBERTa and MPNet: the pooler is read where choices are scored, as in BERT."""
    if request.head == "ForMultipleChoice":
        return bert_head(request, "pooler.dense", ({}, {}))
    if request.head == "ForSequenceClassification":
        return linear("classifier.dense", "pool", "resid") | linear("classifier.out_proj", "label", "pool"), {}
    if request.head in VOCABULARY:
        tied = request.config.tie_word_embeddings
        return masked_lm(tied, "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias")
    return token_head(request) | bare_pooler(request, "pooler.dense"), {}


@declares("Roberta", "roberta", *HEADS, "ForCausalLM")
@declares("XLMRoberta", "xlm-roberta", *HEADS, "ForCausalLM")
@declares("Camembert", "camembert", *HEADS, "ForCausalLM")
@declares("Data2VecText", "data2vec-text", *HEADS, "ForCausalLM")
def roberta(request: Request) -> Spec:
    """RoBERTa, XLM-R, CamemBERT, data2vec for text."""
    prefix = "data2vec_text." if request.config.model_type == "data2vec-text" else "roberta."
    spec = bert_spec(request, *roberta_head(request), prefix)
    return replace(spec, function_keys=(*spec.function_keys, "pad_token_id"))  # positions are counted from it
