"""All but attention in a draft: FFN, embeddings and heads, norms, and what was not understood."""

from __future__ import annotations

import re
from collections.abc import Collection

from cobasin.proposal.attention import ATTENTION
from cobasin.proposal.draft import KEYS, POSITIONS, Draft, Module
from cobasin.symmetry.types import Axis, parse

ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function", "activation", "afn")
GATE = re.compile(r"gate|^w1$|^wi_0$")
DOWN = re.compile(r"down|fc2|c_proj|4h_to_h|output|out_proj|lin2|\bwo$|\bw2$")
EMBEDDING = re.compile(r"emb(?!ed_out)|wte|wpe")
TRANSFORM = re.compile(r"transform|predictions|lm_head|vocab_|^head\.")
READ_BY_ATTENTION = re.compile(r"input|before|ln_?1$|norm_?1$|attn|(?<!post_)attention|^sa_")
AFTER_A_BRANCH = re.compile(r"post_(feedforward|ffw|mlp|ffn)|output")
# Config keys that are the size of a space, or that change nothing at evaluation. Padding may: RoBERTa's positions
# begin behind its id.
_SIZES = [key for space in KEYS if space not in ("head", "kv", "expert") for key in KEYS[space]]
NO_FUNCTION = re.compile(
    r"drop|initializer|init_std|use_cache|(?<!pad)_token_id$|pretraining_tp|aux_loss|output_router|"
    rf"^({'|'.join(_SIZES)})$"
)


def ffn(draft: Draft) -> None:
    """Type router, gate, up and down, told apart by their shapes, gate from up by its name."""
    experts = draft.value("expert")
    for module in draft.matrices(inside=True):
        if experts and module.sizes == (experts, draft.resid) and "{expert}" not in module.name:
            draft.space("expert", draft.size("expert", experts), "Permutation()", '"layer",', "experts")
            draft.templates |= module.linear("expert", "resid")
            draft.biases.append(("SoftmaxShift", [f'"{module.weight}"']))
            draft.doubt(
                f"{module.name} is taken to be a router, and a softmax over all experts to read it (SoftmaxShift)"
            )
    found = [module for module in draft.matrices(inside=True) if not ATTENTION.search(module.local)]
    if not _neurons_of(draft, found, "ffn"):
        parents: dict[str, list[Module]] = {}  # a shared expert beside the experts
        for module in found:
            parents.setdefault(module.name.rpartition(".")[0], []).append(module)
        for parent, modules in parents.items():
            own = re.sub(r"\W", "_", parent.rpartition(".")[2])
            name = "ffn" if "{expert}" in parent else f"ffn_{own}"
            if not _neurons_of(draft, modules, name):
                draft.doubt(f"not understood as an FFN: {', '.join(module.name for module in modules)}")


def _neurons_of(draft: Draft, found: list[Module], space: str) -> bool:
    """Type the matrices of one FFN, whose neurons are ``space``; False where they are not one."""
    down = [m for m in found if m.sizes[0] == draft.resid and (m.sizes[1] != draft.resid or DOWN.search(m.local))]
    width = down[0].sizes[1] if down else 0
    up = [module for module in found if module not in down and module.sizes == (width, draft.resid)]
    fused = [module for module in found if module not in down and module.sizes == (2 * width, draft.resid)]
    stacks = {"{expert}" in module.name for module in found}
    if (len(down), len(up), len(fused)) not in ((1, 1, 0), (1, 2, 0), (1, 0, 1)) or len(stacks) > 1:
        return False
    types, gated = down[0].linear("resid", f"{space}'"), len(up) == 2 or bool(fused)
    if len(up) == 2:
        gate = next((module for module in up if GATE.search(module.last)), up[0])
        up.remove(gate)
        types |= gate.linear(f"{space}~", "resid")
        draft.doubt(f"{gate.name} is taken to be the gate, whose activation multiplies {up[0].name}")
    if fused:
        neurons = f"({space}~ + {space})"
        draft.doubt(f"{fused[0].name} is taken to hold the gate first: {neurons}; it may be ({space} + {space}~)")
        types |= fused[0].linear(neurons, "resid")
    else:
        types |= up[0].linear(space, "resid")
    stacked = stacks == {True}
    draft.templates |= {name: f"expert {type_}" if stacked else type_ for name, type_ in types.items()}
    over = '"layer", "expert"' if stacked else '"layer",'
    draft.space(space, _width(draft, width), _neurons(draft, gated), over, "ffn")
    return True


def _width(draft: Draft, width: int) -> str:
    text, times = draft.size("ffn", width), width // draft.resid
    return f"{times} * {draft.size('resid', draft.resid)}" if text.isdigit() and width == times * draft.resid else text


def _neurons(draft: Draft, gated: bool) -> str:
    if gated:
        return "Permutation(signed=True, scaled=True)"
    key = next((key for key in ACTIVATIONS if isinstance(getattr(draft.config, key, None), str)), None)
    if key is None:
        draft.doubt("the config names no activation: neurons are only permuted")
    return f"neurons(config.{key})" if key else "Permutation()"


def ends(draft: Draft) -> None:
    """Type embeddings and heads, by their sizes and names."""
    for module in draft.matrices(inside=False):
        if module.shape == (draft.resid, draft.resid) and not EMBEDDING.search(module.local):
            _hidden_of_head(draft, module)
    for module in draft.matrices(inside=False):
        size, width = module.shape
        reads = "resid" if width == draft.resid else draft.fixed(width)
        if size == draft.value("vocab"):
            head = reads == "resid" and not EMBEDDING.search(module.local) and draft.reads != "pool"
            space, reads = "vocab", draft.reads if head else reads
        elif POSITIONS.search(module.local):
            space = "pos"
        elif re.search("type|segment", module.local):
            space = "type"
        elif size == draft.value("label") and width == draft.resid:
            space, reads = "label", draft.reads
        else:
            continue
        text = draft.size(space, size)
        if draft.spaces.get(space, [text])[0] != text:  # another table, such as of positions on a page
            space = draft.fixed(size)
        else:
            draft.space(space, text)
        draft.templates |= module.linear(space, reads)
    for name, shape in draft.shapes.items():
        if shape == (draft.value("vocab"),) and name not in draft.templates:
            draft.templates[name] = draft.fixed(shape[0])


def _hidden_of_head(draft: Draft, module: Module) -> None:
    """A square matrix between the stream and the outputs: a pooler, or the transform of a masked LM."""
    size = draft.size("resid", draft.resid)
    if re.search(r"pool|classif|score", module.local):
        draft.reads = "pool"
        draft.space("pool", size, "" if draft.bare else "SignedPermutation", part="ffn")
        draft.doubt(f"a tanh is taken to follow {module.name}: signs may change")
    elif draft.tied:
        draft.reads = "resid"  # a tied decoder reads what the embedding writes
    else:
        draft.reads = "trans"
        draft.space("trans", size, "Permutation()", part="ffn")
    draft.hidden.append(module)
    draft.templates |= module.linear(draft.reads, "resid")


def norms(draft: Draft) -> None:
    """Type gains and offsets of the stream, and say whether they fold into what reads them."""
    gains = [m for m in draft.modules if m.shape == (draft.resid,) and m.weight not in draft.templates]
    layer = [module for module in gains if module.inside]
    transform = [module for module in gains if not module.inside and TRANSFORM.search(module.local)]
    embedding = [m for m in gains if m not in (*layer, *transform) and EMBEDDING.search(m.local)]
    final = [module for module in gains if module not in (*layer, *transform, *embedding)]
    offset = any(module.bias for module in gains)
    centred = offset or not any("rms" in key for key in draft.config.to_dict())
    for module in gains:
        space = draft.reads if module in transform else "resid"
        draft.templates |= module.vector(space if centred else f"{space}~", space)
    if not offset:
        draft.doubt(
            f"norms have no offsets; they are taken to be {'LayerNorms' if centred else 'RMSNorms'}. LayerNorms: "
            "centred=True, Permutation(), Orthogonal(fix_ones=True), gains resid. RMSNorms: centred=False, "
            "SignedPermutation, Orthogonal(), gains resid~"
        )
    size, generic = draft.size("resid", draft.resid), "Permutation()" if centred else "SignedPermutation"
    if draft.bare:
        draft.space("resid", size, part="residual")
        draft.doubt("the stream of a bare model is its output: it is fixed, and no norm is declared")
    elif not _pre_norms(draft, layer, final, embedding, transform):
        draft.space("resid", size, generic, part="residual")
        draft.doubt(
            f"norms are not taken to be pre-norms ({len(layer)} a layer, {len(final)} behind the last one, "
            f"{len(embedding)} behind the embeddings): their gains sit in the stream, which is only permuted. If "
            "everything reads the stream through a norm that it can take over, say norms= and folded="
        )
    else:
        draft.space("resid", size, generic, "", "residual", f"Orthogonal({'fix_ones=True' if centred else ''})")
        draft.doubt(
            "norms are taken to be pre-norms: every branch and the head read the stream through one, and only "
            "embeddings and the outputs of branches write to it"
        )
        draft.doubt("gains are taken to be stored as they are; if the code adds one to them, name them in plus_one")
        _readers(draft, layer, final[0], centred)


def _pre_norms(draft: Draft, layer: list, final: list, embedding: list, transform: list) -> bool:
    """Whether norms look as if each stood in front of what reads it; no other gain may sit in the stream."""
    after = any(AFTER_A_BRANCH.search(module.local) for module in layer)
    in_stream = embedding or (transform and draft.reads == "resid")
    return len(final) == 1 and len(layer) in (1, 2) and not after and not in_stream


def _readers(draft: Draft, layer: list[Module], final: Module, centred: bool) -> None:
    """Say which weights read which norm."""
    matrices = [module for module in draft.modules if len(module.shape) == 2]
    inside = [m for m in matrices if m.inside and _on_stream(draft, m, 1) and not _on_stream(draft, m, 0)]
    by_attention = [module for module in inside if ATTENTION.search(module.local)]
    if len(layer) == 1:
        _norm(draft, layer[0], inside, centred)
    else:
        first = next((module for module in layer if READ_BY_ATTENTION.search(module.last)), layer[0])
        for module in layer:
            _norm(
                draft,
                module,
                by_attention if module is first else [m for m in inside if m not in by_attention],
                centred,
            )
        draft.doubt(f"{first.name} is taken to stand in front of attention, the other norm in front of the FFN")
    outside = (module for module in matrices if not module.inside and not EMBEDDING.search(module.local))
    heads = [m for m in outside if draft.templates.get(m.weight) in ("vocab resid", "label resid")]
    _norm(draft, final, draft.hidden or heads, centred)


def _on_stream(draft: Draft, module: Module, side: int) -> bool:
    """Whether a matrix writes to the stream (side 0) or reads it (1)."""
    if module.weight not in draft.templates:  # not understood: its output is no sure writer
        return side == 1 and module.sizes[1] == draft.resid
    axis = parse(draft.templates[module.weight])[-2:][side ^ module.transposed]
    return isinstance(axis, Axis) and axis.space == "resid"


def _norm(draft: Draft, module: Module, readers: Collection[Module], centred: bool) -> None:
    names = ", ".join(f'"{reader.weight}"' for reader in readers)
    arguments = [f'"{module.weight}"', f"({names}{',' if len(readers) == 1 else ''})"]
    arguments += [f'"{module.name}.bias"'] if module.bias else []
    draft.norms.append(arguments + ([] if centred else ["centred=False"]))


def unknown(draft: Draft) -> None:
    """Type what was not understood: an axis of the stream's size is the stream, any other is fixed."""
    left = {name: shape for name, shape in draft.shapes.items() if name not in draft.templates}
    for name, shape in left.items():
        axes = ["resid" if size == draft.resid else draft.fixed(size) for size in shape]
        draft.templates[name] = ("expert " if "{expert}" in name else "") + " ".join(axes)
    if left:
        listed = ", ".join(f"{name} {tuple(shape)}" for name, shape in left.items())
        draft.doubt(f"not understood, and left fixed but for axes of the stream's size: {listed}")


def function_keys(draft: Draft) -> None:
    """Name the config keys that may change the function at equal shapes."""
    from transformers import PreTrainedConfig

    common, own = PreTrainedConfig().to_dict(), draft.config.to_dict()
    draft.keys += [key for key in own if key not in common and not NO_FUNCTION.search(key)]
    if draft.head == "ForSequenceClassification" and "pad_token_id" in own:
        draft.keys.append("pad_token_id")
    draft.doubt("function_keys: keep the keys that change the function at equal shapes, and read the code for more")
    draft.doubt(
        "settings that this model does not have may add or remove tensors, such as biases: nothing is said of them"
    )
