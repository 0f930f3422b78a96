"""MobileBERT: a BERT whose layers run in a narrow stream of their own, between bottlenecks.

Its "norms" are gains and offsets alone, entry by entry, so that both streams may change their order and signs. Where
they are LayerNorms, as in its teacher, only their order.
"""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures.encoder import HEADS, PAIRED, VOCABULARY, bert_head, classes, unread
from cobasin.architectures.parts import LAYER, attention, linear, neurons, require, tie_keys
from cobasin.symmetry.gauges import KeyBias, ValueBias
from cobasin.symmetry.groups import Orthogonal, Permutation, SignedPermutation
from cobasin.symmetry.spec import Space, Spec

BLOCK, PREDICTIONS = "encoder.layer.{layer}", "cls.predictions"
TABLE = "embeddings.word_embeddings.weight"


def _gain(name: str, space: str) -> dict[str, str]:
    return {f"{name}.weight": f"{space}~", f"{name}.bias": space}


def _masked_lm(tied: bool) -> tuple[dict[str, str], dict[str, str]]:
    """The masked-LM head (templates, ties): a part of what it compares with the vocabulary is as wide as embeddings."""
    first = "embed" if tied else "trans"
    transform, both = f"{PREDICTIONS}.transform", f"({first} + rest)"
    templates = linear(f"{transform}.dense", both, "resid") | linear(f"{PREDICTIONS}.decoder", "vocab", first)
    templates |= {f"{transform}.LayerNorm.weight": both, f"{transform}.LayerNorm.bias": both}
    templates |= {f"{PREDICTIONS}.dense.weight": "rest vocab", f"{PREDICTIONS}.bias": "vocab"}
    ties = {f"{PREDICTIONS}.decoder.weight": TABLE, f"{PREDICTIONS}.decoder.bias": f"{PREDICTIONS}.bias"}
    return templates, ties if tied else {}


def _layer() -> dict[str, str]:
    own, further = f"{BLOCK}.attention", f"{BLOCK}.ffn.{{inner}}"
    return {
        **linear(f"{BLOCK}.bottleneck.input.dense", "narrow", "resid"),
        **_gain(f"{BLOCK}.bottleneck.input.LayerNorm", "narrow"),
        **linear(f"{BLOCK}.bottleneck.attention.dense", "shared", "resid"),
        **_gain(f"{BLOCK}.bottleneck.attention.LayerNorm", "shared"),
        **linear(f"{own}.self.query", "(head qk)", "shared"),
        **linear(f"{own}.self.key", "(head qk')", "shared"),
        **linear(f"{own}.self.value", "(head vo)", "resid"),
        **linear(f"{own}.output.dense", "narrow", "(head vo')"),
        **_gain(f"{own}.output.LayerNorm", "narrow"),
        **linear(f"{further}.intermediate.dense", "inner_ffn", "narrow"),
        **linear(f"{further}.output.dense", "narrow", "inner_ffn'"),
        **_gain(f"{further}.output.LayerNorm", "narrow"),
        **linear(f"{BLOCK}.intermediate.dense", "ffn", "narrow"),
        **linear(f"{BLOCK}.output.dense", "narrow", "ffn'"),
        **_gain(f"{BLOCK}.output.LayerNorm", "narrow"),
        **linear(f"{BLOCK}.output.bottleneck.dense", "resid", "narrow"),
        **_gain(f"{BLOCK}.output.bottleneck.LayerNorm", "resid"),
    }


@declares("MobileBert", "mobilebert", *PAIRED, *HEADS)
def mobilebert(request: Request) -> Spec:
    """MobileBERT, with bottlenecks around every layer, of which queries and keys share one."""
    config, own = request.config, f"{BLOCK}.attention"
    require(config.use_bottleneck, "use_bottleneck = false")
    require(config.key_query_shared_bottleneck, "key_query_shared_bottleneck = false")
    require(not config.use_bottleneck_attention, "use_bottleneck_attention = true")
    require(config.trigram_input or config.embedding_size != config.hidden_size, "an embedding that is not transformed")
    require(config.classifier_activation, "classifier_activation = false")
    head, ties = bert_head(request, "pooler.dense", _masked_lm(config.tie_word_embeddings))
    kept = unread(request, "pooler.dense", head)
    written = request.head in (*VOCABULARY, "ForPreTraining") and config.tie_word_embeddings
    group = SignedPermutation if config.normalization_type == "no_norm" else Permutation()
    narrow, ffn = config.intra_bottleneck_size, (config.intermediate_size, neurons(config.hidden_act))
    return Spec(
        request.architecture,
        attention(config.num_attention_heads, narrow // config.num_attention_heads)
        | {
            "layer": Space(config.num_hidden_layers),
            "inner": Space(config.num_feedforward_networks - 1),
            "resid": Space(config.hidden_size, None if request.head == "Model" else group, part="residual"),
            "narrow": Space(narrow, group, LAYER, part="residual"),
            "shared": Space(narrow, group, LAYER, part="attention"),
            "ffn": Space(*ffn, LAYER, part="ffn"),
            "inner_ffn": Space(*ffn, ("layer", "inner"), part="ffn"),
            "embed": Space(
                config.embedding_size, Permutation() if written else Orthogonal(scaled=True), part="residual"
            ),
            "gram": Space(3 if config.trigram_input else 1),
            "vocab": Space(config.vocab_size),
            "pos": Space(config.max_position_embeddings),
            "type": Space(config.type_vocab_size),
            "trans": Space(config.embedding_size, Permutation(), part="ffn"),
            "rest": Space(config.hidden_size - config.embedding_size, Permutation(), part="ffn"),
            "label": classes(request),
            "span": Space(2),
            "order": Space(2),
            "pool": Space(config.hidden_size, SignedPermutation, part="ffn"),
            "pooled": Space(config.hidden_size),
        },
        {
            TABLE: "vocab embed",
            "embeddings.position_embeddings.weight": "pos resid",
            "embeddings.token_type_embeddings.weight": "type resid",
            **linear("embeddings.embedding_transformation", "resid", "(gram embed')"),
            **_gain("embeddings.LayerNorm", "resid"),
            **_layer(),
            **head,
            **kept,
        },
        prefix="mobilebert.",
        tied=ties,
        biases=(
            KeyBias(f"{own}.self.key.bias"),
            ValueBias(f"{own}.self.value.bias", f"{own}.output.dense.weight", f"{own}.output.dense.bias"),
        ),
        buffers=(r"embeddings\.position_ids",),
        unread=tuple(kept),
        function_keys=("num_attention_heads", "hidden_act", "normalization_type", "layer_norm_eps", *tie_keys(ties)),
    )
