"""The type language: parsing, sizes, and the views into a tensor."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cobasin.symmetry.types import Axis, Product, Sum, TypeSyntaxError, layout, parse, size

SIZES = {"a": 2, "b": 3, "c": 1, "d": 4}
a, b, c = Axis("a"), Axis("b"), Axis("c")


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("a", (a,)),
        ("  a   b ", (a, b)),
        ("a' b~", (Axis("a", -1), Axis("b", 0))),
        ("1 1 a", (Axis("1"), Axis("1"), a)),
        ("(a b) c", (Product((a, b)), c)),
        ("(a+b)", (Sum((a, b)),)),
        ("((a))", (a,)),
        ("(a b + c)", (Sum((Product((a, b)), c)),)),
        ("(a (b + b' + c)) a", (Product((a, Sum((b, Axis("b", -1), c)))), a)),
        ("((a b) c)", (Product((Product((a, b)), c)),)),
        ("((a + b) + c)", (Sum((Sum((a, b)), c)),)),
        ("q_k vo2", (Axis("q_k"), Axis("vo2"))),
    ],
)
def test_parse(text, nodes):
    assert parse(text) == nodes


@pytest.mark.parametrize(
    "text",
    [
        "(a",
        "a)",
        "(a + b",
        "()",
        "a ()",
        "(a +)",
        "(+ a)",
        "(a + + b)",
        "a + b",
        "a''",
        "a~'",
        "'",
        "2a",
        "a-b",
        "a ;",
        "1a",
        "a'b",
    ],
)
def test_syntax_errors_quote_the_type(text):
    with pytest.raises(TypeSyntaxError) as refused:
        parse(text)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize("text", ["", "   "])
def test_an_empty_type_is_refused(text):
    with pytest.raises(TypeSyntaxError, match="empty type"):
        parse(text)


def test_an_unknown_space_is_named():
    with pytest.raises(TypeSyntaxError, match=r"type '\(a zz\) b': 'zz' is not a declared space"):
        layout("(a zz) b", SIZES)


def test_a_wrong_shape_is_quoted_with_the_type():
    bound = layout("(a b) c", SIZES)
    bound.check((6, 1))
    with pytest.raises(TypeSyntaxError) as refused:
        bound.check((1, 6))
    for quoted in ("(1, 6)", "'(a b) c'", "(6, 1)"):
        assert quoted in str(refused.value)


def test_axis_of_is_the_whole_axis():
    bound = layout("(a b) (c + d) d b'", SIZES)
    assert [bound.axis_of(space) for space in "abcd"] == [None, 3, None, 2]


def test_products_are_row_major():
    x = torch.arange(2 * 3 * 4)
    (block,) = layout("(a b d)", SIZES).blocks
    view = block.view(x)
    assert view.shape == (2, 3, 4)
    assert all(view[i, j, k] == (i * 3 + j) * 4 + k for i in range(2) for j in range(3) for k in range(4))


def test_concatenations_are_in_order():
    x = torch.arange(3 * (2 + 4 + 2))
    first, second, third = layout("(b (a + d + a'))", SIZES).blocks
    for block, offset, width in ((first, 0, 2), (second, 2, 4), (third, 6, 2)):
        expected = [[8 * i + offset + j for j in range(width)] for i in range(3)]
        assert block.view(x).tolist() == expected
    assert [block.axes[1].charge for block in (first, second, third)] == [1, 1, -1]


LEAVES = st.builds(Axis, st.sampled_from("abcd"), st.sampled_from([1, -1, 0])) | st.just(Axis("1"))


def composed(parts):
    several = st.lists(parts, min_size=2, max_size=3).map(tuple)
    return st.builds(Product, several) | st.builds(Sum, several)


NODES = st.recursive(LEAVES, composed, max_leaves=5)
TYPES = st.lists(NODES, min_size=1, max_size=3).map(tuple)


def written(node, parent=None):
    """A node as text; parentheses only where the grammar needs them."""
    if isinstance(node, Axis):
        return node.space + {1: "", -1: "'", 0: "~"}[node.charge]
    text = (" " if isinstance(node, Product) else " + ").join(written(part, node) for part in node.parts)
    bare = isinstance(parent, Sum) and isinstance(node, Product)
    return text if bare else f"({text})"


def positions(node):
    """For every monomial of a node: its axes, and the positions of its entries along the node's axis."""
    if isinstance(node, Axis):
        return [((node,), torch.arange(size(node, SIZES)))]
    if isinstance(node, Sum):
        starts = itertools.accumulate((size(part, SIZES) for part in node.parts), initial=0)
        return [
            (axes, start + inside)
            for part, start in zip(node.parts, starts, strict=False)
            for axes, inside in positions(part)
        ]
    return grid([positions(part) for part in node.parts], [size(part, SIZES) for part in node.parts])


def grid(choices, lengths):
    """Monomials of a row-major product, from those of its parts and the parts' lengths."""
    found = []
    for chosen in itertools.product(*choices):
        total = torch.zeros((), dtype=torch.int64)
        for (_, inside), length in zip(chosen, lengths, strict=True):
            total = total[(...,) + (None,) * inside.ndim] * length + inside
        found.append((tuple(axis for axes, _ in chosen for axis in axes), total))
    return found


@settings(deadline=None, max_examples=150, derandomize=True)
@given(TYPES)
def test_any_type(nodes):
    """It parses back, has the size of its parts, and its blocks are the monomials at the right entries."""
    text = " ".join(written(node) for node in nodes)
    assert parse(text) == nodes
    bound = layout(text, SIZES)
    assert bound.shape == tuple(sum(inside.numel() for _, inside in positions(node)) for node in nodes)
    tensor = torch.arange(math.prod(bound.shape)).reshape(bound.shape)
    expected = grid([positions(node) for node in nodes], bound.shape)
    assert [block.axes for block in bound.blocks] == [axes for axes, _ in expected]
    for block, (_, entries) in zip(bound.blocks, expected, strict=True):
        assert torch.equal(block.view(tensor), entries)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(TYPES, st.booleans())
def test_blocks_partition_the_tensor(nodes, transposed):
    bound = layout(" ".join(written(node) for node in nodes), SIZES)
    tensor = torch.zeros(bound.shape)
    if transposed:  # a view works on any strides
        tensor = torch.zeros(bound.shape[::-1]).permute(*reversed(range(tensor.ndim)))
    for block in bound.blocks:
        block.view(tensor).add_(1)
    assert torch.equal(tensor, torch.ones(bound.shape))
