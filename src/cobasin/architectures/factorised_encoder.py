"""Post-LayerNorm encoders whose embeddings have a width of their own: ELECTRA, RemBERT, ALBERT.

A LayerNorm stands between the embeddings and the linear map into the stream. With its gain and offset folded into
that map, any orthogonal map that fixes the ones vector acts on the embeddings. Not under a tied masked-LM head: an
activation comes before its decoder, so the embeddings that repeat it are permuted only.
"""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.encoder import (
    ANSWERING,
    HEADS,
    SAME_FUNCTION,
    VOCABULARY,
    bert_embeddings,
    bert_head,
    bert_spaces,
    bert_spec,
    masked_lm,
    rotated,
    token_head,
    unread,
    with_tables,
)
from cobasin.architectures.parts import check_summary, layer_norm, linear, neurons, require, tie_keys
from cobasin.symmetry.gauges import KeyBias, Norm, ValueBias
from cobasin.symmetry.groups import Orthogonal, Permutation
from cobasin.symmetry.spec import Space, Spec


def _embedding_spaces(size: int, tied: bool) -> dict[str, Space]:
    """The embeddings, and what a masked-LM head of its own compares with the vocabulary."""
    folded = None if tied else Orthogonal(fix_ones=True)
    return {
        "embed": Space(size, Permutation(), part="residual", folded=folded),
        "trans": Space(size, Permutation(), part="ffn"),
    }


def _embedding_norm(into_stream: str, tied: bool = False) -> Norm:
    """The norm of the embeddings, whose mean a ``tied`` decoder reads, too."""
    weight, bias = "embeddings.LayerNorm.weight", "embeddings.LayerNorm.bias"
    return Norm(weight, (f"{into_stream}.weight",), bias, not tied, stream="embed")


@declares("Electra", "electra", "ForPreTraining", *HEADS, "ForCausalLM")
def electra(request: Request) -> Spec:
    """ELECTRA, discriminators and generators; embeddings as wide as the stream are written to it directly."""
    config = request.config
    narrow = config.embedding_size != config.hidden_size
    embed = "embed" if narrow else "resid"
    p, decoder, tied = "discriminator_predictions", "generator_lm_head", config.tie_word_embeddings
    head = {
        "ForPreTraining": linear(f"{p}.dense", "pool", "resid") | linear(f"{p}.dense_prediction", "1", "pool'"),
        "ForSequenceClassification": linear("classifier.dense", "pool", "resid")
        | linear("classifier.out_proj", "label", "pool"),
        "ForMultipleChoice": linear("sequence_summary.summary", "pool", "resid")
        | linear("classifier", "label", "pool'"),
    }.get(request.head, token_head(request))
    ties: dict[str, str] = {}
    if request.head in VOCABULARY:
        names = ("generator_predictions.dense", "generator_predictions.LayerNorm", decoder, f"{decoder}.bias")
        head, ties = masked_lm(tied, *names, embed)
    spec = bert_spec(request, head, ties, "electra.", embed)
    # the classification head has a gelu, whatever the config says
    pool, keys = neurons(config.hidden_act if request.head == "ForPreTraining" else "gelu"), ()
    if request.head == "ForMultipleChoice":
        check_summary(config)
        pool, keys = neurons(config.summary_activation), ("summary_type", "summary_activation")
    spec = replace(spec, function_keys=(*spec.function_keys, *keys))
    return _projected(request, spec, pool)


def _projected(request: Request, spec: Spec, pool: Permutation) -> Spec:
    """The same with a map into the stream, where embeddings have a width of their own; ``pool`` acts in the head."""
    config, project = request.config, "embeddings_project"
    narrow, tied = config.embedding_size != config.hidden_size, bool(spec.tied)
    own = _embedding_spaces(config.embedding_size, tied)
    return replace(
        spec,
        spaces={**spec.spaces, **own, "pool": Space(config.hidden_size, pool, part="ffn")},
        templates={**(linear(project, "resid", "embed") if narrow else {}), **spec.templates},
        norms=(_embedding_norm(project, tied),) if narrow else (),
    )


@declares("RoFormer", "roformer", *ANSWERING, "ForCausalLM")
def roformer(request: Request) -> Spec:
    """RoFormer: a rotary embedding, whose sines and cosines are in the file, turns neighbours in a head."""
    config = request.config
    require(not config.rotary_value, "rotary_value")
    width, p = config.hidden_size // config.num_attention_heads, "cls.predictions"
    embed = "resid" if config.embedding_size == config.hidden_size else "embed"
    names = (f"{p}.transform.dense", f"{p}.transform.LayerNorm", f"{p}.decoder", f"{p}.bias")
    head, ties = token_head(request), {}
    if request.head in VOCABULARY:
        head, ties = masked_lm(config.tie_word_embeddings, *names, embed)
    if request.head == "ForSequenceClassification":
        head = linear("classifier.dense", "pool", "resid") | linear("classifier.out_proj", "label", "pool'")
    spec = _projected(request, bert_spec(request, head, ties, "roformer.", embed), neurons(config.hidden_act))
    waves = {"encoder.embed_positions.weight": "pos (wave freq)"} if request.has("embed_positions.weight") else {}
    templates = {name: type_ for name, type_ in spec.templates.items() if "position_embeddings" not in name}
    return with_tables(rotated(replace(spec, templates=templates), width, "freq pair"), waves, wave=2)


@declares("RemBert", "rembert", *HEADS, "ForCausalLM")
def rembert(request: Request) -> Spec:
    """RemBERT. What its masked-LM head compares with the vocabulary has a width of its own, too."""
    config, p, project = request.config, "cls.predictions", "encoder.embedding_hidden_mapping_in"
    masked = masked_lm(False, f"{p}.dense", f"{p}.LayerNorm", f"{p}.decoder", f"{p}.decoder.bias")
    spec = bert_spec(request, *bert_head(request, "pooler.dense", masked), "rembert.", "embed")
    own = {
        "embed": Space(config.input_embedding_size, Permutation(), part="residual", folded=Orthogonal(fix_ones=True)),
        "trans": Space(config.output_embedding_size, Permutation(), part="ffn"),
    }
    return replace(
        spec,
        spaces={**spec.spaces, **own},
        templates={**linear(project, "resid", "embed"), **spec.templates},
        norms=(_embedding_norm(project),),
    )


@declares("Albert", "albert", *HEADS, "ForPreTraining")
def albert(request: Request) -> Spec:
    """ALBERT: a ``layer`` is a group of layers with the same weights, a ``sublayer`` one of the layers of a group."""
    config = request.config
    layer = "encoder.albert_layer_groups.{layer}.albert_layers.{sublayer}"
    own, project = f"{layer}.attention", "encoder.embedding_hidden_mapping_in"
    p, tied = "predictions", config.tie_word_embeddings
    masked = masked_lm(tied, f"{p}.dense", f"{p}.LayerNorm", f"{p}.decoder", f"{p}.bias", "embed")
    head, ties = bert_head(request, "pooler", masked)
    if request.head == "ForPreTraining":  # tells as many orders of sentences as there are labels
        (head, ties), sentences = masked, "sop_classifier.classifier"
        head = head | linear("pooler", "pool", "resid") | linear(sentences, "label", "pool")
    kept = unread(request, "pooler", head)
    return Spec(
        request.architecture,
        bert_spaces(request, ("layer", "sublayer"))
        | _embedding_spaces(config.embedding_size, bool(ties))
        | {"layer": Space(config.num_hidden_groups), "sublayer": Space(config.inner_group_num)},
        {
            **bert_embeddings("embed"),
            **linear(project, "resid", "embed"),
            **linear(f"{own}.query", "(head qk)", "resid"),
            **linear(f"{own}.key", "(head qk')", "resid"),
            **linear(f"{own}.value", "(head vo)", "resid"),
            **linear(f"{own}.dense", "resid", "(head vo')"),
            **layer_norm(f"{own}.LayerNorm"),
            **linear(f"{layer}.ffn", "ffn", "resid"),
            **linear(f"{layer}.ffn_output", "resid", "ffn'"),
            **layer_norm(f"{layer}.full_layer_layer_norm"),
            **head,
            **kept,
        },
        prefix="albert.",
        tied=ties,
        norms=(_embedding_norm(project, bool(ties)),),
        biases=(KeyBias(f"{own}.key.bias"), ValueBias(f"{own}.value.bias", f"{own}.dense.weight", f"{own}.dense.bias")),
        buffers=(r"embeddings\.position_ids", r"embeddings\.token_type_ids"),
        unread=tuple(kept),
        function_keys=(
            "num_attention_heads",
            "num_hidden_layers",
            "hidden_act",
            "layer_norm_eps",
            *SAME_FUNCTION,
            *tie_keys(ties),
        ),
    )
