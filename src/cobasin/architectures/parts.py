"""Pieces that declarations share: linear layers, norms, hidden neurons, bases of heads, task heads."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cobasin.errors import InputError, NotDeclared
from cobasin.symmetry.groups import Group, Orthogonal, Permutation, Rotation2, SignedPermutation
from cobasin.symmetry.spec import Space

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from cobasin.architectures import Request

LAYER = ("layer",)
PER_HEAD, PER_GROUP = ("layer", "head"), ("layer", "kv")
NEURONS = Permutation(signed=True, scaled=True)  # of a gated FFN: what the gate multiplies may change sign and scale
PADDING_READ = {"ForSequenceClassification": ("pad_token_id",)}  # the last token before the padding is classified
Parts = tuple[dict[str, Space], dict[str, str]]  # spaces and templates of a part of a model


def linear(name: str, out: str, into: str, bias: bool = True) -> dict[str, str]:
    """A ``torch.nn.Linear``: weight ``out into``, bias ``out``."""
    return {f"{name}.weight": f"{out} {into}"} | ({f"{name}.bias": out} if bias else {})


def conv1d(name: str, out: str, into: str) -> dict[str, str]:
    """GPT-2's ``Conv1D``: a linear layer stored transposed."""
    return {f"{name}.weight": f"{into} {out}", f"{name}.bias": out}


def layer_norm(name: str, space: str = "resid") -> dict[str, str]:
    """A LayerNorm: gain and offset over ``space``."""
    return {f"{name}.weight": space, f"{name}.bias": space}


def neurons(activation: str, gated: bool = False) -> Permutation:
    """The group of hidden neurons behind an elementwise activation, or a gate; what is after them reads ``ffn'``."""
    scaled = Permutation(scaled=True)
    plain = {"relu": scaled, "leaky_relu": scaled, "tanh": SignedPermutation}
    return NEURONS if gated else plain.get(activation, Permutation())


def attention(heads: int, width: int, layers: tuple[str, ...] = LAYER, rotated: int = 0) -> dict[str, Space]:
    """Spaces of multi-head attention: the order of the heads, and `head_bases` of each."""
    order = Space(heads, Permutation(), layers, part="heads")
    return {"head": order, **head_bases(width, (*layers, "head"), rotated)[0]}


def groups(heads: int, kv: int) -> dict[str, Space]:
    """KV groups and the heads in each."""
    return {
        "kv": Space(kv, Permutation(), LAYER, part="heads"),
        "rep": Space(heads // kv, Permutation(), PER_GROUP, part="heads"),
    }


def rotary_basis(rotated: int, over: tuple[str, ...]) -> dict[str, Space]:
    """Spaces of a Q-K basis of which ``rotated`` coordinates pass a rotary embedding."""
    pair = Space(2, Rotation2(scaled=True), (*over, "freq"), part="attention")
    return {"pair": pair, "freq": Space(rotated // 2)}


def head_bases(
    width: int, over: tuple[str, ...], rotated: int = 0, order: str = "pair freq"
) -> tuple[dict[str, Space], str, str]:
    """Bases of heads whose first ``rotated`` coordinates carry a rotary embedding: spaces, types of query and key.

    ``order`` is how a rotary pair lies in the head. The other coordinates are ``nope``, or ``qk`` if they are all.
    """
    require(rotated % 2 == 0 and rotated <= width, f"a rotary embedding of {rotated} of {width} coordinates")
    spaces, terms = dict[str, Space](), list[str]()
    if rotated:
        spaces |= rotary_basis(rotated, over)
        terms.append(order)
    if rotated < width:
        terms.append("nope" if rotated else "qk")
        spaces[terms[-1]] = Space(width - rotated, Orthogonal(scaled=True), over, part="attention")
    spaces["vo"] = Space(width, Orthogonal(scaled=True), over, part="attention")
    query = f"({' + '.join(terms)})"
    return spaces, query, re.sub("pair|nope|qk", r"\g<0>'", query)


def layers_of_kinds(kinds: Sequence[object], **named: object) -> dict[str, Space]:
    """The index space of the layers of every kind, by its name; ``kinds`` are those of all layers."""
    here = {name: tuple(i for i, other in enumerate(kinds) if other == kind) for name, kind in named.items()}
    return {name: Space(len(values), within="layer", values=values) for name, values in here.items()}


def labels(config: PreTrainedConfig) -> Space:
    """The labels of a task head."""
    return Space(config.num_labels or 0)


def output_head(
    request: Request,
    embedding: str,
    lm: str = "lm_head",
    biased: bool = False,
    classifier: str = "score",
    stream: str = "resid",
) -> tuple[dict[str, str], dict[str, str]]:
    """A decoder's head: its tensors, which read ``stream``, and its ties.

    ``lm`` and ``classifier`` name the heads over the vocabulary and over the labels of tokens; ``biased`` is the
    former.
    """
    if request.head == "Model":
        return {}, {}
    if request.head == "ForSequenceClassification":
        return linear("score", "label", stream, bias=False), {}
    if request.head == "ForQuestionAnswering":
        return linear("qa_outputs", "span", stream), {}
    if request.head == "ForTokenClassification":
        # of the classes that all decoders share; those with a head of their own name it otherwise
        biased = classifier != "score" or getattr(request.config, "token_classification_bias", True)
        return linear(classifier, "label", stream, biased), {}
    ties = {f"{lm}.weight": embedding} if request.config.tie_word_embeddings else {}
    return linear(lm, "vocab", stream, biased), ties


def tie_keys(ties: Mapping[str, str]) -> tuple[str, ...]:
    """The config key that ties tensors, in a model that has tied ones; nothing else reads it."""
    return ("tie_word_embeddings",) if ties else ()


def rope_keys(config: PreTrainedConfig) -> tuple[str, ...]:
    """The config keys that a rotary embedding reads; some scalings read the length it was made for."""
    if not hasattr(config, "rope_parameters"):  # of Jamba nothing is turned
        return ()
    rope = config.rope_parameters or {}
    settings = (rope, *rope.values())  # some models have one for every kind of layer
    reads_length = any(_reads_length(setting) for setting in settings if isinstance(setting, dict))
    return ("rope_parameters", *(("max_position_embeddings",) if reads_length else ()))


def _reads_length(rope: Mapping[str, Any]) -> bool:
    kind = rope.get("rope_type")
    return kind == "dynamic" or (kind in ("longrope", "yarn") and rope.get("factor") is None)


def rotated_size(config: PreTrainedConfig, width: int) -> int:
    """How many coordinates of a head of size ``width`` pass a rotary embedding: the first ones."""
    rope = config.rope_parameters
    size = int(width * rope.get("partial_rotary_factor", 1.0))
    # it takes its pairs from the whole head, and turns some of them
    proportional = rope.get("rope_type") == "proportional"
    require(size == width or not proportional, "rope_parameters of type proportional for a part of a head")
    return size


def base_prefix(request: Request) -> str:
    """What names in the base model begin with: under a head for questions, most classes call it otherwise."""
    older = "transformer."
    answers = request.head == "ForQuestionAnswering"
    return older if answers and any(name.startswith(older) for name in request.names) else "model."


def decoder_stream(size: int, head: str, generic: Group, folded: Group | None = None) -> Space:
    """The residual stream; fixed in a bare model, whose output it is."""
    if head == "Model":
        return Space(size, part="residual")
    return Space(size, generic, part="residual", folded=folded)


def sides(size: int | list[int] | tuple[int, int]) -> tuple[int, int]:
    """Height and width, which a config may say as one number.

    Raises:
        InputError: it says three, or one in a list.
    """
    if isinstance(size, int):
        return size, size
    if len(size) != 2:
        raise InputError(f"the config has a size of {list(size)}; expected one number, or height and width")
    return size[0], size[1]


def require(condition: bool, what: str) -> None:
    """Refuse a configuration that a declaration does not cover."""
    if not condition:
        raise NotDeclared(f"{what} is not covered by cobasin's declaration of this architecture")


def check_summary(config: PreTrainedConfig) -> None:
    """Refuse what a summary of Transformers, one vector of a text behind a projection, does not compute."""
    require(config.summary_use_proj, "summary_use_proj = false")
    kinds = ("last", "first", "mean", "cls_index")
    require(config.summary_type in kinds, f"summary_type = {config.summary_type}")  # attn is announced only
