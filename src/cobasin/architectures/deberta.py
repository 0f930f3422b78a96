"""DeBERTa v1, and v2/v3 with shared or separate position projections.

Position projections meet the content projections in the scores, so a head's Q-K basis acts on them, too: the
position key with the keys, the position query with the queries. The key bias is not free where position
queries read it. Where nothing else reads the relative positions, their table has a basis of its own (``rel_basis``).
"""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures.encoder import (
    ANSWERING,
    HEADS,
    POOLED,
    SAME_FUNCTION,
    bert_layer,
    bert_masked_lm,
    bert_spaces,
    token_head,
)
from cobasin.architectures.parts import layer_norm, linear, neurons, require, tie_keys
from cobasin.symmetry.gauges import KeyBias, Norm, ValueBias
from cobasin.symmetry.groups import Orthogonal, Permutation
from cobasin.symmetry.spec import Space, Spec

POSITIONS = "embeddings.position_embeddings.weight"
RELATIVE = ("encoder.rel_embeddings.weight", "encoder.LayerNorm.weight", "encoder.LayerNorm.bias")
# heads of pre-training in files of bare models, whose stream is fixed, so that all of it stays
PRE_TRAINING = (r"(lm|mask)_predictions\..*",)
QUERY, KEY, VALUE = "(head qk)", "(head qk')", "(head vo)"
LAYER = "encoder.layer.{layer}"
ATTENTION = f"{LAYER}.attention"


def _embeddings(config) -> dict[str, str]:
    size = config.hidden_size
    require(getattr(config, "embedding_size", size) == size, "embedding_size != hidden_size")
    templates = {"embeddings.word_embeddings.weight": "vocab resid", **layer_norm("embeddings.LayerNorm")}
    if config.position_biased_input:
        templates[POSITIONS] = "pos resid"
    if config.type_vocab_size > 0:
        templates["embeddings.token_type_embeddings.weight"] = "type resid"
    return templates


def _head(request: Request) -> tuple[dict[str, str], dict[str, str]]:
    config = request.config
    if request.head in POOLED:
        return linear("pooler.dense", "pool", "resid") | linear("classifier", "label", "pool'"), {}
    if request.head == "ForMaskedLM" and config.legacy:
        return bert_masked_lm(request)
    if request.head == "ForMaskedLM":  # the new head reads the word embeddings themselves
        p = "lm_predictions.lm_head"
        return linear(f"{p}.dense", "resid", "resid") | layer_norm(f"{p}.LayerNorm") | {f"{p}.bias": "vocab"}, {}
    return token_head(request), {}


def _spec(
    request: Request,
    projections: dict[str, str],
    value_bias: str,
    spaces: dict[str, Space],
    keys: tuple[str, ...] = (),
    key_biases: tuple[KeyBias, ...] = (),
    norms: tuple[Norm, ...] = (),
) -> Spec:
    config = request.config
    head, ties = _head(request)
    kept = {} if config.position_biased_input or not request.has(POSITIONS) else {POSITIONS: "pos resid"}
    basis = "rel_basis" if "rel_basis" in spaces else "resid"
    relative_embeddings = {RELATIVE[0]: f"rel {basis}"} if config.relative_attention else {}
    templates = _embeddings(config) | relative_embeddings | projections | bert_layer(LAYER) | head | kept
    idle = () if _positions_read(config) else (name for name in RELATIVE if name in templates)
    return Spec(
        request.architecture,
        bert_spaces(request)
        | {"pool": Space(config.pooler_hidden_size, neurons(config.pooler_hidden_act), part="ffn"), **spaces},
        templates,
        prefix="deberta.",
        tied=ties,
        norms=norms,
        biases=(
            *key_biases,
            ValueBias(value_bias, f"{ATTENTION}.output.dense.weight", f"{ATTENTION}.output.dense.bias"),
        ),
        buffers=(r"embeddings\.position_ids", *(PRE_TRAINING if request.head == "Model" else ())),
        unread=(*kept, *idle),
        function_keys=(
            "num_attention_heads",
            "hidden_act",
            "layer_norm_eps",
            "relative_attention",
            "pos_att_type",
            "position_biased_input",
            "max_relative_positions",
            "pooler_hidden_act",
            *keys,
            *SAME_FUNCTION,
            *tie_keys(ties),
        ),
    )


def _relative_positions(config) -> int:
    limit = getattr(config, "max_relative_positions", -1)
    return config.max_position_embeddings if limit < 1 else limit


def _positions_read(config) -> set[str]:
    """How relative positions enter the scores: as keys (``c2p``), as queries (``p2c``), as both or not at all."""
    return {"c2p", "p2c"}.intersection(config.pos_att_type or ()) if config.relative_attention else set()


def _own_basis(config, readers: dict[str, str], normed: bool) -> tuple[dict[str, Space], tuple[Norm, ...]]:
    """The basis of relative positions that have readers of their own, and the norm in front of these."""
    if not readers:
        return {}, ()
    if not normed:
        return {"rel_basis": Space(config.hidden_size, Orthogonal(), part="residual")}, ()
    turned = Orthogonal(fix_ones=True)
    weights = tuple(name for name in readers if name.endswith("weight"))
    basis = {"rel_basis": Space(config.hidden_size, Permutation(), part="residual", folded=turned)}
    return basis, (Norm(RELATIVE[1], weights, RELATIVE[2], stream="rel_basis"),)


@declares("Deberta", "deberta", *ANSWERING)
def deberta(request: Request) -> Spec:
    """DeBERTa v1: query, key and value fused per head, only query and value with a bias."""
    config = request.config
    require(not getattr(config, "talking_head", False), "talking_head")
    own = f"{ATTENTION}.self"
    projections = {
        f"{own}.in_proj.weight": "(head (qk + qk' + vo)) resid",
        f"{own}.q_bias": QUERY,
        f"{own}.v_bias": VALUE,
    }
    readers: dict[str, str] = {}
    if "c2p" in _positions_read(config):
        readers |= linear(f"{own}.pos_proj", KEY, "rel_basis", bias=False)
    if "p2c" in _positions_read(config):
        readers |= linear(f"{own}.pos_q_proj", QUERY, "rel_basis")
    basis, _ = _own_basis(config, readers, normed=False)
    spaces = {"rel": Space(2 * _relative_positions(config)), **basis}
    return _spec(request, projections | readers, f"{own}.v_bias", spaces)


@declares("DebertaV2", "deberta-v2", *HEADS)
def deberta_v2(request: Request) -> Spec:
    """DeBERTa v2 and v3: relative positions are read through the content projections or through their own."""
    config = request.config
    own = f"{ATTENTION}.self"
    projections = (
        linear(f"{own}.query_proj", QUERY, "resid")
        | linear(f"{own}.key_proj", KEY, "resid")
        | linear(f"{own}.value_proj", VALUE, "resid")
    )
    read = _positions_read(config)
    key_biases = () if "p2c" in read else (KeyBias(f"{own}.key_proj.bias"),)
    readers: dict[str, str] = {}
    if not getattr(config, "share_att_key", False):
        if "c2p" in read:
            readers |= linear(f"{own}.pos_key_proj", KEY, "rel_basis")
            key_biases += (KeyBias(f"{own}.pos_key_proj.bias"),)  # the same for all positions of a query
        if "p2c" in read:
            readers |= linear(f"{own}.pos_query_proj", QUERY, "rel_basis")
    projections |= readers
    normed = "layer_norm" in getattr(config, "norm_rel_ebd", "none")
    if normed:
        projections = layer_norm("encoder.LayerNorm", "rel_basis" if readers else "resid") | projections
        if read == {"c2p"}:
            key_biases += (KeyBias(RELATIVE[2]),)  # it reaches all position keys of a query alike
    basis, norms = _own_basis(config, readers, normed)
    kernel = getattr(config, "conv_kernel_size", 0)
    if kernel > 0:
        require(getattr(config, "conv_groups", 1) == 1, "conv_groups > 1")
        convolution = {"encoder.conv.conv.weight": "resid resid kernel", "encoder.conv.conv.bias": "resid"}
        projections = convolution | layer_norm("encoder.conv.LayerNorm") | projections  # behind the first layer
    buckets = getattr(config, "position_buckets", -1)
    relative = 2 * (buckets if buckets > 0 else _relative_positions(config))
    keys = ("position_buckets", "share_att_key", "norm_rel_ebd", "conv_act")
    spaces = {"rel": Space(relative), "kernel": Space(kernel), **basis}
    return _spec(request, projections, f"{own}.value_proj.bias", spaces, keys, key_biases, norms)
