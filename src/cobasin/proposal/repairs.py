"""Single changes of a declaration that might make it right, tried one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from cobasin.symmetry.groups import Group, Orthogonal, Permutation, Rotation2, SignedPermutation
from cobasin.symmetry.spec import Spec
from cobasin.symmetry.types import Axis, Node, Product, Sum, TypeSyntaxError, axes_of, layout, parse, size, unparse

TRIED = 400  # at most, for a space


def repairs(spec: Spec, space: str, keeps: Callable[[Spec], bool]) -> list[str]:
    """What could be changed, so that ``space`` keeps the function; all that do, one line each.

    Args:
        spec: a declaration in which ``space`` is wrong.
        keeps: whether random elements of the space keep the function under a changed declaration.
    """
    found = []
    for text, candidate in itertools.islice(_candidates(spec, space), TRIED):
        try:
            if text not in found and keeps(candidate):
                found.append(text)
        except TypeSyntaxError:  # an element of the space varies over an axis that the tensor lacks
            continue
    return found


def _candidates(spec: Spec, space: str) -> Iterator[tuple[str, Spec]]:
    for group in subgroups(spec.spaces[space].group, spec.spaces[space].size):
        changed = replace(spec, spaces={**spec.spaces, space: replace(spec.spaces[space], group=group)})
        yield f"space {space}: the group {group}", changed
    fixed = f"fixed_{space}"
    spaces = {**spec.spaces, fixed: replace(spec.spaces[space], group=None)}
    sizes = {name: found.size for name, found in spaces.items()}
    nodes = {template: parse(type_) for template, type_ in spec.templates.items()}
    tried = {tuple(spec.templates.values())}
    group = spec.spaces[space].group
    charges = (1, -1, 0) if group is not None and group.charged else (1,)
    for text, changed in (
        *_swapped_neighbours(nodes, space),
        *_exchanged(nodes, sizes, space),
        *_edited(nodes, sizes, [*(Axis(space, charge) for charge in charges), Axis(fixed)]),
    ):
        templates = {template: unparse(nodes_) for template, nodes_ in {**nodes, **changed}.items()}
        if tuple(templates.values()) not in tried:
            tried.add(tuple(templates.values()))
            yield text, replace(spec, spaces=spaces, templates=templates)


def subgroups(group: Group | None, size: int) -> Iterator[Group]:
    """Groups that a group has within it, larger ones first."""
    if group is None:
        return
    if isinstance(group, Orthogonal):
        yield from [Rotation2(group.scaled)] if size == 2 else []
        yield from [] if group.fix_ones else [replace(group, fix_ones=True)]
    flags = [flag for flag in ("signed", "scaled") if getattr(group, flag, False)]
    for count in range(1, len(flags) + 1):
        for chosen in itertools.combinations(flags, count):
            yield replace(group, **dict.fromkeys(chosen, False))  # type: ignore[type-var]
    if isinstance(group, Orthogonal):
        yield from (SignedPermutation, Permutation())


Types = Mapping[str, tuple[Node, ...]]
Change = tuple[str, dict[str, tuple[Node, ...]]]


def _swapped_neighbours(nodes: Types, space: str) -> Iterator[Change]:
    """Two neighbours in a product the other way round, wherever they occur: the layouts of a rotary embedding."""
    pairs = {
        (a.space, b.space)
        for part in {part for type_ in nodes.values() for node in type_ for part in _walk(node)}
        if isinstance(part, Product)
        for a, b in itertools.pairwise(part.parts)
        if isinstance(a, Axis) and isinstance(b, Axis) and space in (a.space, b.space)
    }
    for pair in sorted(pairs):

        def swap(node: Node, pair=pair) -> Node:
            if not isinstance(node, Product):
                return node
            parts = list(node.parts)
            for i, (a, b) in enumerate(itertools.pairwise(parts)):
                if isinstance(a, Axis) and isinstance(b, Axis) and (a.space, b.space) == pair:
                    parts[i : i + 2] = [b, a]
            return Product(tuple(parts))

        changed = {template: tuple(_map(node, swap) for node in type_) for template, type_ in nodes.items()}
        yield f"every tensor: {pair[1]} {pair[0]} instead of {pair[0]} {pair[1]}", changed


def _exchanged(nodes: Types, sizes: Mapping[str, int], space: str) -> Iterator[Change]:
    """Two modules with each other's types: gate and up, queries and keys."""
    modules = _modules(nodes)
    for a, b in itertools.combinations(modules, 2):
        one, two = ({template[len(m) :]: nodes[template] for template in modules[m]} for m in (a, b))
        shapes = [{name: layout(unparse(type_), sizes).shape for name, type_ in m.items()} for m in (one, two)]
        if (
            shapes[0] == shapes[1]
            and one != two
            and any(_uses(type_, space) for type_ in (*one.values(), *two.values()))
        ):
            yield (
                f"{a} and {b}: each other's types",
                {a + name: two[name] for name in one} | {b + name: one[name] for name in two},
            )


def _edited(nodes: Types, sizes: Mapping[str, int], axes: list[Axis]) -> Iterator[Change]:
    """One part of a type replaced, in one tensor or in the weight and the bias of a module alike."""
    for module, templates in _modules(nodes).items():
        parts = {part for template in templates for node in nodes[template] for part in _walk(node)}
        for part in sorted(parts, key=lambda part: unparse((part,))):
            for other in _variants(part, sizes, axes):

                def put(node: Node, part=part, other=other) -> Node:
                    return other if node == part else node

                changed = {t: tuple(_map(node, put) for node in nodes[t]) for t in templates}
                changed = {t: type_ for t, type_ in changed.items() if type_ != nodes[t]}
                if isinstance(part, Axis) and part.space != axes[0].space and _twice(changed.values(), axes[0].space):
                    continue
                text = f"{unparse((other,))} instead of {unparse((part,))}"
                yield f"{module}: {text}", changed
                if len(changed) > 1:
                    yield from ((f"{t}: {text}", {t: type_}) for t, type_ in changed.items())


def _variants(node: Node, sizes: Mapping[str, int], axes: list[Axis]) -> Iterator[Node]:
    """What could stand in the place of a part of a type, at the same size; of axes one of ``axes``."""
    if isinstance(node, Axis):
        fixed = axes[-1]
        if node.space == axes[0].space:
            yield from axes
        elif size(node, sizes) == size(fixed, sizes) > 1:
            yield from axes[:-1]
    elif isinstance(node, Sum):
        if len(node.parts) <= 4:
            yield from (Sum(order) for order in itertools.permutations(node.parts))
        terms = [_parts(part) for part in node.parts]
        if len({term[0] for term in terms}) == 1 and all(len(term) > 1 for term in terms):
            yield Product((terms[0][0], Sum(tuple(_product(term[1:]) for term in terms))))
    elif isinstance(node.parts[-1], Sum):
        yield Sum(tuple(Product((*node.parts[:-1], *_parts(term))) for term in node.parts[-1].parts))


def _twice(types: Iterable[tuple[Node, ...]], space: str) -> bool:
    """Whether a space has come to occur twice in a product."""
    return any(
        sum(isinstance(part, Axis) and part.space == space for part in product.parts) > 1
        for type_ in types
        for node in type_
        for product in _walk(node)
        if isinstance(product, Product)
    )


def _modules(nodes: Types) -> dict[str, list[str]]:
    """Templates by the module that their tensors belong to."""
    found: dict[str, list[str]] = {}
    for template in nodes:
        found.setdefault(template.rpartition(".")[0], []).append(template)
    return found


def _uses(nodes: tuple[Node, ...], space: str) -> bool:
    return any(axis.space == space for node in nodes for axis in axes_of(node))


def _walk(node: Node) -> Iterator[Node]:
    """A node and all below it."""
    yield node
    if not isinstance(node, Axis):
        for part in node.parts:
            yield from _walk(part)


def _map(node: Node, change: Callable[[Node], Node]) -> Node:
    """The node with ``change`` applied everywhere, from the top; what it has changed is left as it is."""
    changed = change(node)
    if changed != node or isinstance(node, Axis):
        return changed
    return replace(node, parts=tuple(_map(part, change) for part in node.parts))


def _parts(node: Node) -> tuple[Node, ...]:
    return node.parts if isinstance(node, Product) else (node,)


def _product(parts: tuple[Node, ...]) -> Node:
    return parts[0] if len(parts) == 1 else Product(parts)
