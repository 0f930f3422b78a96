"""Specs: what follows from a declaration, and how elements act on the tensors it declares."""

import pytest
import torch

from cobasin.checkpoints.fit import problems
from cobasin.checkpoints.weight_files import Header
from cobasin.symmetry.action import act
from cobasin.symmetry.canonical import canonical
from cobasin.symmetry.form import Form, form_of
from cobasin.symmetry.groups import Orthogonal, Permutation, SignedPermutation
from cobasin.symmetry.spec import Site, Space, Spec
from cobasin.symmetry.types import TypeSyntaxError
from random_states import random_state, spec_of


def toy(templates, **options):
    spaces = {
        "layer": Space(2),
        "head": Space(3, Permutation(), ("layer",), part="heads"),
        "qk": Space(4, Orthogonal(scaled=True), ("layer", "head"), part="attention"),
        "expert": Space(2),
        "ffn": Space(5, Permutation(scaled=True), ("layer", "expert"), part="ffn"),
        "resid": Space(6, SignedPermutation, part="residual", folded=Orthogonal()),
        "vocab": Space(7),
    }
    return Spec("Toy", spaces, templates, **options)


TEMPLATES = {
    "emb": "vocab resid",
    "{layer}.q": "(head qk) resid",
    "{layer}.k": "(head qk') resid",
    "{layer}.{expert}.up": "ffn resid",
    "{layer}.{expert}.down": "resid ffn'",
}


def test_templates_expand_over_their_index_spaces():
    spec = toy(TEMPLATES)
    assert sorted(spec.entries) == sorted(
        ["emb", "0.q", "1.q", "0.k", "1.k"] + [f"{i}.{e}.{side}" for i in "01" for e in "01" for side in ("up", "down")]
    )
    assert spec.entries["1.0.up"].index == {"layer": 1, "expert": 0}
    assert spec.entries["1.q"].layout.shape == (12, 6)
    assert spec.index_spaces == {"layer", "expert"}


def test_keys_and_batches():
    spec = toy(TEMPLATES)
    assert spec.key("ffn", {"layer": 1, "expert": 0}) == ("ffn", 1, 0)
    assert spec.key("qk", {"layer": 1}) == ("qk", 1)
    assert spec.key("resid", {"layer": 1}) == ("resid",)
    assert (spec.batch("qk"), spec.batch("ffn"), spec.batch("resid")) == ((3,), (), ())


def test_sites_are_all_places_where_an_element_acts():
    spec = toy(TEMPLATES)
    assert spec.sites["qk", 1] == [Site("1.q", 0, 1), Site("1.k", 0, 1)]
    assert spec.sites["ffn", 0, 1] == [Site("0.1.up", 0, 0), Site("0.1.down", 0, 1)]
    assert len(spec.sites["resid",]) == len(spec.entries)
    assert {key[0] for key in spec.sites} == {"head", "qk", "ffn", "resid"}  # the others are fixed


@pytest.mark.parametrize(
    ("name", "type_", "missing"),
    [
        ("{layer}.q", "qk resid", "head"),
        ("q", "(head qk) resid", "layer"),
        ("{layer}.up", "ffn resid", "expert"),
        ("{layer}.up", "expert ffn resid", "expert"),  # elsewhere it is in the names
    ],
)
def test_a_space_without_what_it_varies_over_is_refused(name, type_, missing):
    with pytest.raises(TypeSyntaxError) as refused:
        _ = toy({name: type_, "{layer}.{expert}.x": "resid"}).sites
    assert repr(type_) in str(refused.value)
    assert f"varies over {missing}" in str(refused.value)


def test_an_unknown_space_is_refused():
    with pytest.raises((TypeSyntaxError, KeyError), match="oops"):
        _ = toy({"x": "resid oops"}).entries


def test_groups_grow_when_norms_are_folded():
    spec = toy(TEMPLATES)
    assert (spec.group("resid", False), spec.group("resid", True)) == (SignedPermutation, Orthogonal())
    assert spec.group("head", True) == spec.group("head", False) == Permutation()
    assert spec.group("vocab", True) is None


@pytest.mark.parametrize(
    ("key", "free"), [("(head qk') resid", {"qk"}), ("(head qk) resid", set()), ("(head qk~) resid", set())]
)
def test_a_space_has_general_maps_if_both_sides_of_its_products_are_there(key, free):
    spec = toy(TEMPLATES | {"{layer}.k": key})
    assert spec.invertible == free
    assert canonical(form_of(spec, balanced=True), random_state(spec)).keys() == spec.entries.keys()


def test_fibres_act_before_their_bases():
    spec = spec_of("llama")
    (block,) = spec.entries["layers.0.self_attn.q_proj.weight"].layout.blocks
    order = [block.axes[i].space for i in spec.acting_order(block.axes)]
    assert order.index("pair") < order.index("kv")
    assert order.index("rep") < order.index("kv")
    (block,) = toy(TEMPLATES).entries["0.q"].layout.blocks
    assert block.axes[toy(TEMPLATES).acting_order(block.axes)[0]].space == "qk"


def headers(spec, **changes):
    found = {name: (entry.layout.shape, torch.float32) for name, entry in spec.entries.items()}
    told = {name: one for name, one in {**found, **changes}.items() if one is not None}
    return {name: Header(dtype, shape, "model.safetensors") for name, (shape, dtype) in told.items()}


def test_headers_that_fit_have_no_problems():
    spec = toy(TEMPLATES, tied={"0.k": "0.q"}, prefix="toy.", buffers=(r"\d+\.mask",))
    assert problems(spec, headers(spec)) == []
    assert problems(spec, {f"toy.{name}": header for name, header in headers(spec).items()}) == []
    assert problems(spec, headers(spec, **{"0.k": None})) == []  # tied: may be absent
    assert problems(spec, headers(spec, **{"0.mask": ((9,), torch.uint8)})) == []
    assert problems(spec, headers(spec, emb=((7, 6), torch.bfloat16))) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"1.q": None}, ["missing", "1.q", "(12, 6)"]),
        ({"extra": ((2,), torch.float32)}, ["unexpected", "extra", "(2,)", "Toy"]),
        ({"1.q": ((6, 12), torch.float32)}, ["1.q", "(6, 12)", "'(head qk) resid'", "(12, 6)"]),
        ({"emb": ((7, 6), torch.int8)}, ["emb", "int8"]),
        ({"emb": ((7, 6), torch.float8_e4m3fn)}, ["emb", "float8"]),
        ({"emb": ((7, 6), torch.int64)}, ["emb", "int64"]),
    ],
)
def test_problems_name_the_tensor(changes, words):
    spec = toy(TEMPLATES)
    (problem,) = problems(spec, headers(spec, **changes))
    assert all(word in problem for word in words)


def test_all_problems_are_told_at_once():
    spec = toy(TEMPLATES)
    assert len(problems(spec, headers(spec, emb=None, extra=((1,), torch.float32), **{"0.q": ((1,), torch.int8)}))) == 3


def test_one_tensor_under_two_names_is_a_problem():
    spec = toy(TEMPLATES, prefix="toy.")
    assert problems(spec, headers(spec, **{"toy.emb": ((7, 6), torch.float32)}))


def test_names_of_old_files():
    spec = toy({"x.LayerNorm.weight": "resid", "x.LayerNorm.bias": "resid"}, prefix="toy.")
    assert spec.disk_names(["toy.x.LayerNorm.gamma", "toy.x.LayerNorm.beta"]) == {
        "x.LayerNorm.weight": "toy.x.LayerNorm.gamma",
        "x.LayerNorm.bias": "toy.x.LayerNorm.beta",
    }


def llama_values(spec):
    generator = torch.Generator().manual_seed(0)
    return {
        (name, 0): spec.group(name, True).sample(spec.batch(name), spec.spaces[name].size, generator)
        for name in ("kv", "rep", "pair", "vo", "ffn")
    } | {("resid",): Orthogonal().sample((), 16, generator)}


def test_action_on_grouped_queries():
    """Entry by entry, from what each group says: bases move in their own head, then heads move, groups last."""
    spec = spec_of("llama")
    values = llama_values(spec)
    kv, rep = values["kv", 0]["perm"], values["rep", 0]["perm"]
    angle, scale = values["pair", 0]["angle"], values["pair", 0]["scale"]
    x = random_state(spec)["layers.0.self_attn.q_proj.weight"]
    heads = x.view(2, 2, 2, 3, 16)
    expected = torch.zeros_like(heads)
    for g in range(2):
        for r in range(2):
            for f in range(3):
                a, b = heads[kv[g], rep[kv[g], r], :, f]
                cos, sin, s = angle[kv[g], f].cos(), angle[kv[g], f].sin(), scale[kv[g], f]
                expected[g, r, 0, f] = s * (cos * a - sin * b) @ values["resid",]["matrix"]
                expected[g, r, 1, f] = s * (sin * a + cos * b) @ values["resid",]["matrix"]
    moved = act(spec, values, form_of(spec, folded=True).group, "layers.0.self_attn.q_proj.weight", x)
    torch.testing.assert_close(moved, expected.view(x.shape))


def test_action_keeps_the_products_that_the_model_computes():
    spec, own = spec_of("llama"), "layers.0.self_attn"
    state, values = random_state(spec), llama_values(spec_of("llama"))
    moved = {name: act(spec, values, form_of(spec, folded=True).group, name, tensor) for name, tensor in state.items()}
    q, kv, rep = values["resid",]["matrix"], values["kv", 0]["perm"], values["rep", 0]["perm"]

    def circuit(s):
        """Output after value of every head, a map of the stream: ``[kv, rep, resid, resid]``."""
        v = s[f"{own}.v_proj.weight"].view(2, 6, 16)
        return torch.einsum("okrv,kvi->kroi", s[f"{own}.o_proj.weight"].view(16, 2, 2, 6), v)

    expected = q.T @ circuit(state)[kv[:, None], rep[kv]] @ q
    torch.testing.assert_close(circuit(moved), expected)
    up, down = (f"layers.0.mlp.{name}_proj.weight" for name in ("up", "down"))
    torch.testing.assert_close(moved[down] @ moved[up], q.T @ state[down] @ state[up] @ q)
    assert not torch.allclose(moved[up], state[up][values["ffn", 0]["perm"]] @ q)  # the control: it was rescaled


def test_missing_keys_act_as_the_identity():
    spec = spec_of("gpt2")
    x = random_state(spec)["h.0.attn.c_attn.weight"]
    before = x.clone()
    values = {("head", 1): {"perm": torch.tensor([2, 0, 1])}}
    assert torch.equal(act(spec, values, Form(spec).group, "h.0.attn.c_attn.weight", x), x)
    moved = act(spec, values, Form(spec).group, "h.1.attn.c_attn.weight", x)
    assert torch.equal(moved.view(12, 3, 3, 4), x.view(12, 3, 3, 4)[:, :, [2, 0, 1]])
    assert torch.equal(x, before)


def test_action_checks_the_shape():
    spec = spec_of("gpt2")
    with pytest.raises(TypeSyntaxError, match="'vocab resid'"):
        act(spec, {}, Form(spec).group, "wte.weight", torch.zeros(3, 3))
