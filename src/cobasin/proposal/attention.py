"""Attention in a draft: queries, keys, values and output, apart or fused, with or without rotary embedding."""

from __future__ import annotations

import re

from cobasin.proposal.draft import POSITIONS, Draft, Module

ATTENTION = re.compile(r"(^|\.)\w*(attn|attention)(\.|$)")
FUSED = re.compile(r"qkv|query_key_value|^c_attn$|^in_proj|^att_proj$")
ROLES = {
    role: re.compile(rf"(^|_)w?({role}|{word})(_|$)") for role, word in {"q": "query", "k": "key", "v": "value"}.items()
}
OUTPUT = re.compile(r"^w?o(_|$)|out|dense|c_proj")
NORM = re.compile(r"(^|[._])([qk]|query|key)_?(layer)?_?norm")


def attention(draft: Draft) -> None:
    """Type the matrices of attention, and declare the spaces of heads and of their bases."""
    found: dict[str, list[Module]] = {}
    for module in draft.matrices(inside=True):
        if ATTENTION.search(module.local):
            found.setdefault(_role(module), []).append(module)
    roles = {role: modules[0] for role, modules in found.items() if len(modules) == 1}
    if roles.keys() != found.keys() or not _fits(draft, roles):
        _not_understood(draft, found)
        return
    heads, group = _heads(draft)
    normed = [module for module in draft.modules if module.inside and NORM.search(module.local)]
    query = _basis(draft, group, bool(normed))
    key = re.sub("pair|nope|qk", r"\g<0>'", query)
    for module in normed:
        _norm(draft, module, heads, group, query)
    value, out = roles.get("v") or roles["qkv"], roles["o"]
    terms = query.count("+") + 1  # as many blocks in a type
    if "qkv" in roles:
        _fused(draft, roles["qkv"], f"{heads} {query}", f"{group} {key}", f"{group} vo")
        keys, key_block, value_block = roles["qkv"], 2 * terms - 1, 2 * terms
    else:
        draft.templates |= roles["q"].linear(f"({heads} {query})", "resid")
        draft.templates |= roles["k"].linear(f"({group} {key})", "resid")
        draft.templates |= value.linear(f"({group} vo)", "resid")
        keys, key_block, value_block = roles["k"], terms - 1, 0
    draft.templates |= out.linear("resid", f"({heads} vo')")
    if keys.bias and re.search("qk|nope", query) and not normed and not _relative(draft):
        draft.biases.append(("KeyBias", [f'"{keys.name}.bias"', *_numbered(key_block)]))
        draft.doubt("the softmax is taken to cancel the key bias, where no rotary embedding acts")
    if value.bias and out.bias:
        names = [f'"{value.name}.bias"', f'"{out.weight}"', f'"{out.name}.bias"']
        draft.biases.append(("ValueBias", [*names, *_numbered(value_block)]))


def _role(module: Module) -> str:
    if FUSED.search(module.last):
        return "qkv"
    return next((role for role, words in ROLES.items() if words.search(module.last)), "o")


def _fits(draft: Draft, roles: dict[str, Module]) -> bool:
    """Whether the matrices have the sizes that the config's numbers of heads and groups give."""
    queries, keys, resid = draft.heads * draft.width, (draft.groups or draft.heads) * draft.width, draft.resid
    wanted = {"qkv": (queries + 2 * keys, resid), "o": (resid, queries)}
    if "qkv" not in roles:
        wanted = {"q": (queries, resid), "k": (keys, resid), "v": (keys, resid), "o": (resid, queries)}
    return {role: module.sizes for role, module in roles.items()} == wanted


def _relative(draft: Draft) -> bool:
    """Whether there are relative positions."""
    return any(re.search(r"(^|[._])rel(ative)?_", name) for name in draft.shapes)


def _not_understood(draft: Draft, found: dict[str, list[Module]]) -> None:
    names = [module.name for modules in found.values() for module in modules]
    draft.doubt(f"attention was not understood, its inside is left fixed: {', '.join(names) or 'it has no matrices'}")
    for module in (module for modules in found.values() for module in modules):
        out, into = (draft.fixed(size) for size in module.sizes)
        if OUTPUT.search(module.last) and module.sizes[0] == draft.resid:
            out = "resid"
        elif module.sizes[1] == draft.resid:
            into = "resid"
        draft.templates |= module.linear(out, into)


def _heads(draft: Draft) -> tuple[str, str]:
    """Declare heads and values; returns the spaces that number the query heads, and those that number the keys."""
    heads, over = draft.size("head", draft.heads), '"layer", "head"'
    own = draft.size("width", draft.width)
    draft.variables["width"] = f"{draft.size('resid', draft.resid)} // {heads}" if own.isdigit() else own
    # positions that enter in another way do so head by head, mostly
    known = bool(_rotated(draft)[0]) or any(POSITIONS.search(name) for name in draft.shapes)
    free = known and not _relative(draft)
    if not free:
        draft.doubt(
            "positions enter in another way than by an embedding or rotation: the order of the heads is left fixed. If "
            "the code adds sinusoids to the stream, nothing may act on that either"
        )

    def ordered(name: str, size: str, over: str) -> None:
        draft.space(name, size, **{"group": "Permutation()", "over": over, "part": "heads"} if free else {})

    if draft.groups is None:
        ordered("head", heads, '"layer",')
    else:
        over, groups = '"layer", "kv"', draft.size("kv", draft.groups)
        ordered("kv", groups, '"layer",')
        ordered("rep", heads if groups == "1" else f"{heads} // {groups}", over)
    draft.space("vo", "width", "Orthogonal(scaled=True)", over, "attention")
    return ("head", "head") if draft.groups is None else ("kv rep", "kv")


def _basis(draft: Draft, group: str, normed: bool) -> str:
    """Declare the basis of queries and keys; returns the type of a query's head."""
    over, (rotated, text, interleaved) = f'"layer", "{group}"', _rotated(draft)
    free = {} if normed else {"group": "Orthogonal(scaled=True)", "over": over, "part": "attention"}
    if not rotated:
        draft.space("qk", "width", **free)
        draft.doubt("no rotary embedding is taken to act on queries and keys; if one does, pair and freq stand for qk")
        return "qk"
    draft.variables["rotated"] = text
    turned = {**free, "group": "Rotation2(scaled=True)", "over": f'{over}, "freq"'} if free else {}
    draft.space("pair", "2", **turned)
    draft.space("freq", "rotated // 2")
    query, other = ("freq pair", "pair freq") if interleaved else ("pair freq", "freq pair")
    draft.doubt(f"the rotary embedding is taken to lay a head out as ({query}); the other way is ({other})")
    if rotated == draft.width:
        return query
    draft.space("nope", "width - rotated", **free)
    draft.doubt("the first coordinates of a head are taken to be rotated, the others (nope) not")
    return f"({query} + nope)"


def _rotated(draft: Draft) -> tuple[int, str, bool]:
    """How many coordinates of a head a rotary embedding turns, the same as Python, and whether pairs are neighbours."""
    rope = getattr(draft.config, "rope_parameters", None) or {}
    if getattr(draft.config, "alibi", False):
        return 0, "", False
    if isinstance(rotated := getattr(draft.config, "rotary_dim", None), int):
        return rotated, "config.rotary_dim", True
    if "partial_rotary_factor" in rope:
        text = 'int(width * config.rope_parameters["partial_rotary_factor"])'
        return int(draft.width * rope["partial_rotary_factor"]), text, False
    return (draft.width, "width", False) if rope or hasattr(draft.config, "rope_theta") else (0, "", False)


def _norm(draft: Draft, module: Module, heads: str, group: str, query: str) -> None:
    """A norm of queries or keys, over a head or over all."""
    draft.doubt(
        "queries and keys pass norms: their basis is left fixed. Free are the signs of a pair, and scales between the "
        "two gains: see cobasin/architectures/qk_norm_decoder.py"
    )
    counted = heads if re.search(r"(^|[._])q", module.local) else group
    if module.shape == (draft.width,):
        type_ = query if query.startswith("(") or " " not in query else f"({query})"
    elif module.shape == ((draft.heads if counted == heads else draft.groups or draft.heads) * draft.width,):
        type_ = f"({counted} {query})"
    else:
        return
    draft.templates |= module.vector(type_, type_)


def _fused(draft: Draft, module: Module, query: str, key: str, value: str) -> None:
    """A fused projection: by its name in Megatron's order, else all queries before all keys."""
    if "query_key_value" in module.last:
        group = key.split()[0]
        inner = (term.removeprefix(f"{group} ") for term in (query, key, value))
        type_, order = f"({group} ({' + '.join(inner)}))", "head by head (or group by group)"
    else:
        type_, order = f"({query} + {key} + {value})", "all queries, then all keys, then all values"
    draft.templates |= module.linear(type_, "resid")
    draft.doubt(f"{module.name} is taken to hold {order}: {type_}")


def _numbered(block: int) -> list[str]:
    return [f"block={block}"] if block else []
