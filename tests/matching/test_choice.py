"""What is asked for, and which elements that leaves free."""

from dataclasses import replace

import pytest
from transformers import BertConfig, MixtralConfig

from cobasin.architectures import declare
from cobasin.errors import InputError
from cobasin.matching.choice import PARTS, WORDS, Choice
from cobasin.symmetry.groups import Orthogonal, Permutation, Rotation2, SignedPermutation
from cobasin.symmetry.spec import Space
from random_states import spec_of


@pytest.mark.parametrize(
    ("symmetry", "parts", "paper"),
    [
        ("full", set(PARTS), False),
        ("paper", {"ffn", "attention", "scale"}, True),
        ("ffn", {"ffn"}, False),
        (" heads , residual", {"heads", "residual"}, False),
        ("attention,scale,attention", {"attention", "scale"}, False),
        ("ffn,residual-order", {"ffn", "residual"}, False),
    ],
)
def test_symmetry(symmetry, parts, paper):
    choice = Choice.parse(symmetry)
    assert (choice.parts, choice.paper, choice.layers) == (parts, paper, None)


@pytest.mark.parametrize(
    ("symmetry", "layers", "folded"),
    [
        ("full", None, True),
        ("gl", None, True),
        ("ffn,residual", None, True),
        ("residual-order,residual", None, True),
        ("residual-order", None, False),
        ("ffn,heads", None, False),
        ("paper", None, False),
        ("full", "0", False),
    ],
)
def test_norms_are_folded_only_where_the_stream_may_turn(symmetry, layers, folded):
    assert Choice.parse(symmetry, layers).folded is folded


@pytest.mark.parametrize("word", ["residual", "residual-order"])
def test_the_stream_is_left_alone_where_layers_are_chosen(word):
    assert Choice.parse(f"ffn,{word}", "0").parts == {"ffn"}


@pytest.mark.parametrize("symmetry", ["", "everything", "ffn,", "ffn heads", "full,ffn", "Full", "ffn,oops,heads"])
def test_unknown_symmetry_is_refused(symmetry):
    with pytest.raises(InputError) as refused:
        Choice.parse(symmetry)
    assert repr(symmetry) in str(refused.value)
    assert all(word in str(refused.value) for word in ("full", "paper", *WORDS))
    assert ("'full' cannot be in a list" in str(refused.value)) == (symmetry == "full,ffn")


@pytest.mark.parametrize(
    ("text", "layers"),
    [("0", {0}), ("0-2", {0, 1, 2}), ("0-1,7", {0, 1, 7}), (" 3 , 1 - 2 ", {1, 2, 3}), ("4-4,4", {4})],
)
def test_layers(text, layers):
    assert Choice.parse("ffn", text).layers == layers


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "2-1", "1,,2", "1.5", "0-1-2", "1;2"])
def test_layers_that_cannot_be_read_are_refused(text):
    with pytest.raises(InputError) as refused:
        Choice.parse("full", text)
    assert repr(text) in str(refused.value)


def test_layers_that_do_not_exist_are_refused():
    spec = spec_of("bert")
    Choice.parse("full", "0-1").check(spec)
    Choice.parse("full").check(spec)
    with pytest.raises(InputError, match="layer 2 does not exist: the model has layers 0 to 1"):
        Choice.parse("full", "0-2").check(spec)


def free(family, symmetry, layers=None, folded=False):
    spec, choice = spec_of(family), Choice.parse(symmetry, layers)
    return {key for key in spec.sites if choice.frees(spec, key)}


def test_full_frees_all():
    for family in ("bert", "vit", "gpt2", "llama"):
        assert free(family, "full") == set(spec_of(family).sites)


@pytest.mark.parametrize(
    ("symmetry", "spaces"),
    [
        ("ffn", {"ffn"}),
        ("heads", {"kv", "rep"}),
        ("attention", {"pair", "vo"}),
        ("residual", {"resid"}),
        ("attention,scale", {"pair", "vo"}),
        ("paper", {"ffn", "pair", "vo"}),
    ],
)
def test_parts_free_their_spaces(symmetry, spaces):
    assert {key[0] for key in free("llama", symmetry)} == spaces


def test_the_order_of_experts_is_a_part():
    """Apart from their neurons, and none of the paper's."""
    spec = declare(MixtralConfig(num_hidden_layers=1, vocab_size=8), "MixtralForCausalLM")
    free = {word: {key[0] for key in spec.sites if Choice.parse(word).frees(spec, key)} for word in ("ffn", "experts")}
    assert free == {"ffn": {"ffn"}, "experts": {"expert"}}
    assert not Choice.parse("paper").frees(spec, ("expert", 0))


def test_layers_free_what_is_in_them():
    assert free("bert", "full", "1") == {(space, 1) for space in ("head", "qk", "vo", "ffn")}
    assert free("bert", "ffn", "0-1") == {("ffn", 0), ("ffn", 1)}


def test_the_paper_permutes_only_the_layers_neurons():
    """Not those of a head such as the untied masked-LM head of BERT."""
    config = BertConfig(hidden_size=12, num_attention_heads=3, tie_word_embeddings=False)
    spec = declare(config, "BertForMaskedLM")
    assert Choice.parse("ffn").frees(spec, ("trans",))
    assert not Choice.parse("paper").frees(spec, ("trans",))


def test_without_scale_groups_do_not_rescale():
    full, unscaled, paper = (Choice.parse(symmetry) for symmetry in ("full", "ffn,heads,attention,residual", "paper"))
    both = Permutation(signed=True, scaled=True)
    for declared, expected in [
        (Orthogonal(scaled=True, fix_ones=True), Orthogonal(fix_ones=True)),
        (Rotation2(scaled=True), Rotation2()),
        (Permutation(scaled=True), Permutation()),
        (both, SignedPermutation),
        (Orthogonal(), Orthogonal()),
        (SignedPermutation, SignedPermutation),
    ]:
        assert full.group(declared) == declared
        assert unscaled.group(declared) == expected
    assert paper.group(both) == paper.group(SignedPermutation) == Permutation()
    assert paper.group(Permutation(signed=True, tied=True)) == Permutation(tied=True)
    assert paper.group(Rotation2(scaled=True)) == Rotation2(scaled=True)


def test_a_model_without_layers():
    spec = replace(spec_of("bert"), spaces={"unit": Space(4)})
    Choice.parse("full").check(spec)
    with pytest.raises(InputError, match="layer 0 does not exist: the model has none"):
        Choice.parse("full", "0").check(spec)
