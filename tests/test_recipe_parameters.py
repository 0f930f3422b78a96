"""Which parameters hold for which tensor, against values worked out by hand."""

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cobasin.errors import InputError
from cobasin.fusion import registry
from cobasin.fusion.registry import find, method
from cobasin.recipe import Recipe
from cobasin.recipe.settings import Setting

ATTENTION, MLP = "model.layers.{}.self_attn.q_proj.weight", "model.layers.{}.mlp.up_proj.weight"
EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


def recipe(text):
    return Recipe.of(yaml.safe_load(text))


def weights(made, name, layer, layers=4, **where):
    return made.parameters_of(name.format(layer), layer, layers, **where)["weight"]


@pytest.fixture
def toy(monkeypatch):
    """A method with parameters of all kinds, known only to this test."""

    @method("toy", reference="none")
    def toy(tensors, *, mode: str, steps: int = 3, exact: bool = False, weight: tuple[float, ...]):
        """Nothing."""

    monkeypatch.setitem(registry.methods(), "toy", registry._METHODS.pop("toy"))


def test_values_of_models_come_before_shared_ones_and_these_before_the_default():
    made = recipe("""
      merge_method: ties
      base_model: base
      models:
        - {model: a, parameters: {weight: 0.25}}
        - {model: b}
      parameters: {weight: 0.5, normalize: false}
    """)
    found = made.parameters_of(EMBEDDING, None, 4)
    assert found == {"weight": (0.25, 0.5), "density": (1.0, 1.0), "normalize": False, "lambda": 1.0}


def test_precedence_is_source_then_slice_then_module_then_recipe():
    made = recipe("""
      merge_method: linear
      modules:
        default:
          slices:
            - sources:
                - {model: a, layer_range: [0, 2], parameters: {weight: 1}}
                - {model: b, layer_range: [0, 2]}
              parameters: {weight: 2}
            - sources:
                - {model: a, layer_range: [2, 4], parameters: {weight: {filter: mlp, value: 3}}}
                - {model: b, layer_range: [2, 4]}
          parameters: {weight: [{filter: self_attn, value: 4}]}
      parameters: {weight: 5, normalize: false}
    """)
    assert weights(made, MLP, 0) == (1, 2)
    assert weights(made, MLP, 2) == (3, 5)
    assert weights(made, ATTENTION, 3) == (4, 4)
    assert weights(made, "model.layers.{}.input_layernorm.weight", 3) == (5, 5)
    assert made.parameters_of(MLP.format(0), 0, 4)["normalize"] is False


def test_the_first_filter_that_applies_decides_and_no_filter_or_a_star_lets_all_through():
    made = recipe("""
      merge_method: linear
      models:
        - model: a
          parameters:
            weight:
              - {filter: mlp, value: 0.1}
              - {filter: layers.1., value: 0.2}
              - {filter: "*", value: 0.3}
              - {filter: norm, value: 0.4}
        - model: b
          parameters: {weight: [{filter: mlp.up, value: 0.5}, {value: 0.6}]}
        - model: c
          parameters: {weight: [{filter: .*mlp, value: 0.7}]}
    """)
    assert weights(made, MLP, 1) == (0.1, 0.5, 1.0)  # a part of the name, no pattern: c has the default
    assert weights(made, ATTENTION, 1) == (0.2, 0.6, 1.0)
    assert weights(made, ATTENTION, 2) == (0.3, 0.6, 1.0)
    assert weights(made, NORM, None) == (0.3, 0.6, 1.0)


def test_a_gradient_runs_over_the_layers_and_tensors_outside_them_have_its_first_value():
    made = recipe("{merge_method: slerp, models: [{model: a}, {model: b}], parameters: {t: [0, 0.5, 0.4]}}")

    def t(layer, layers=5):
        return made.parameters_of("x", layer, layers)["t"]

    assert [t(layer) for layer in range(5)] == pytest.approx([0, 0.25, 0.5, 0.45, 0.4])
    assert t(None) == made.parameters_of(HEAD, None, 5, after_layers=True)["t"] == 0
    assert t(0, layers=1) == 0.4  # as mergekit: a single layer is the last one


def test_a_gradient_runs_over_every_slice_by_itself_and_slices_hold_for_what_is_before_and_after_the_layers():
    made = recipe("""
      merge_method: linear
      slices:
        - sources: [{model: a, layer_range: [0, 3]}]
          parameters: {weight: [0, 1]}
        - sources: [{model: a, layer_range: [3, 4]}]
          parameters: {weight: [2, 3]}
        - sources: [{model: a, layer_range: [4, 6]}]
          parameters: {weight: [4, 5]}
    """)
    assert [weights(made, MLP, layer, 6)[0] for layer in range(6)] == [0, 0.5, 1, 3, 4, 5]
    assert weights(made, EMBEDDING, None, 6) == (0,)
    assert weights(made, NORM, None, 6, after_layers=True) == (4,)


@given(
    values=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=8),
    t=st.floats(0, 1),
)
def test_numbers_are_interpolated_linearly(values, t):
    found = Setting(None, tuple(values)).at(t)
    assert found == pytest.approx(np.interp(t, np.linspace(0, 1, len(values)), values), abs=1e-9)


def test_words_and_booleans_step_and_whole_numbers_stay_whole(toy):
    made = recipe("""
      merge_method: toy
      models: [{model: a}]
      parameters: {mode: [x, "1", z], exact: [true, false], steps: [10, 20], weight: [true, 0.5]}
    """)
    found = [made.parameters_of("x", layer, 5) for layer in range(5)]
    assert [one["mode"] for one in found] == ["x", "x", "1", "1", "z"]
    assert [one["exact"] for one in found] == [True, True, True, True, False]
    assert [one["steps"] for one in found] == [10, 12, 15, 18, 20]
    assert all(type(one["steps"]) is int for one in found)
    assert [one["weight"][0] for one in found] == [1.0, 0.875, 0.75, 0.625, 0.5]


def test_numbers_may_be_written_in_scientific_notation_which_yaml_reads_as_words():
    made = recipe("{merge_method: karcher, models: [{model: a}], parameters: {tol: 1e-5, max_iter: 7}}")
    assert made.parameters_of("x", None, 2) == {"weight": (1.0,), "tol": 1e-5, "max_iter": 7}
    made = recipe("{merge_method: linear, models: [{model: a}], parameters: {weight: [1e-2, 3e-2]}}")
    assert weights(made, MLP, 1, 3) == (pytest.approx(2e-2),)


def test_the_values_come_in_the_order_of_the_inputs_without_the_base():
    made = recipe("""
      merge_method: task_arithmetic
      base_model: b
      models:
        - {model: a, parameters: {weight: 1}}
        - {model: b, parameters: {weight: 2}}
        - {model: c, parameters: {weight: 3}}
    """)
    assert made.inputs == ["a", "c"]
    assert weights(made, MLP, 0) == (1, 3)
    assert made.notes == ["b is the base: its own parameters (weight) have no effect"]


def test_a_model_listed_twice_has_parameters_of_its_own_both_times():
    made = recipe("""
      merge_method: linear
      models: [{model: a, parameters: {weight: 1}}, {model: b}, {model: a, parameters: {weight: 3}}]
    """)
    assert made.inputs == ["a", "b", "a"]
    assert made.referenced == ["a", "b"]
    assert weights(made, MLP, 0) == (1, 1, 3)
    assert made.notes == ["a is listed more than once, and counts as often"]


def test_what_a_recipe_resolves_to_runs_in_the_method():
    import torch

    made = recipe("{merge_method: slerp, models: [{model: a}, {model: b}], base_model: b, parameters: {t: [0, 1]}}")
    tensors = {name: torch.randn(3, 4) for name in "ab"}
    given = {"dtype": None, "base": tensors[made.base], "tensors": [tensors[name] for name in made.inputs]}
    for layer, expected in enumerate("ba"):
        fused = made.method.fuse(given, made.parameters_of("x", layer, 2))
        assert torch.allclose(fused, tensors[expected])
        assert not torch.allclose(fused, tensors["ab".replace(expected, "")])


def test_a_required_parameter_without_a_value_names_model_and_tensor(toy):
    text = "{merge_method: toy, models: [{model: a}, {model: b, parameters: {weight: 1}}], parameters: {mode: x%s}}"
    with pytest.raises(
        InputError, match=r"^recipe: toy needs weight of a; write it under parameters of that model, or"
    ):
        recipe(text % "")
    with pytest.raises(InputError, match=r"^recipe: toy needs mode; write it under parameters, or --set mode=VALUE$"):
        recipe("{merge_method: toy, models: [{model: a}], parameters: {weight: 1}}")
    made = recipe(text % ", weight: [{filter: mlp, value: 1}]")
    assert weights(made, MLP, 0) == (1, 1)
    with pytest.raises(InputError) as caught:
        weights(made, ATTENTION, 0)
    assert str(caught.value) == (
        "recipe: toy needs weight of a for model.layers.0.self_attn.q_proj.weight: no filter applies; add an entry "
        "without a filter"
    )


def test_a_layer_beyond_the_slices_is_a_mistake_of_the_caller():
    made = recipe("{merge_method: linear, slices: [{sources: [{model: a, layer_range: [0, 2]}]}]}")
    with pytest.raises(ValueError, match="beyond"):
        made.parameters_of("x", 2, 3)


TIES = "{merge_method: ties, base_model: base, models: [{model: ./a, parameters: {%s}}], parameters: {%s}}"


@pytest.mark.parametrize(
    ("own", "shared", "message"),
    [
        ("density: 1.5", "", "density of ./a: 1.5: expected a number up to 1"),
        ("density: 0", "", "density of ./a: 0: expected a number above 0"),
        ("", "density: [0.5, 2]", "density: 2: expected a number up to 1"),
        (
            "weight: heavy",
            "",
            "weight of ./a: 'heavy': expected a number",
        ),
        ("weight: .nan", "", "weight of ./a: nan: expected a finite number"),
        ("density: [{filter: mlp, value: -1}]", "", "density of ./a (filter mlp): -1: expected a number above 0"),
        ("weight: ", "", "weight of ./a: has no value"),
        ("weight: []", "", "weight of ./a: has no value"),
        ("weight: [[1, 2]]", "", "weight of ./a: [1, 2]: expected a value, a list of values, or filter: and value:"),
        ("weight: [1, {value: 2}]", "", "{'value': 2}: expected a value, a list of values, or filter: and value:"),
        ("weight: {filter: mlp}", "", "weight of ./a (filter mlp): has no value"),
        ("weight: {filtre: mlp, value: 1}", "", "weight of ./a: unknown key 'filtre'; did you mean 'filter'?"),
        ("weight: {filter: 3, value: 1}", "", "weight of ./a: filter 3: expected a part of tensor names, like mlp"),
        ("densty: 1", "", "densty of ./a: ties has no such parameter; did you mean 'density'? (known: density,"),
        ("", "t: 1", "t: ties has no such parameter (known: density, lambda, normalize, weight)"),
        ("normalize: true", "", "ties has one normalize for all models; write it under the recipe's parameters"),
        ("", "normalize: maybe", "normalize: 'maybe': expected true or false"),
        ("weight: -1e999", "", "weight of ./a: '-1e999': expected a finite number"),
    ],
)
def test_bad_parameters_are_refused(own, shared, message):
    recipe(TIES % ("density: 0.5", "normalize: false"))
    with pytest.raises(InputError) as caught:
        recipe(TIES % (own, shared))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_holds_for_the_whole_merge_has_one_value():
    given = {"merge_method": "ot_wts", "models": [{"model": "a"}, {"model": "b"}]}
    made = Recipe.of(given | {"parameters": {"regularization": 0.5, "weight": [0, 1]}})
    assert {made.parameters_of("x", layer, 2)["regularization"] for layer in (None, 0, 1)} == {0.5}
    sources = [{"model": name, "layer_range": [0, 2]} for name in "ab"]
    for bad in (
        {"parameters": {"regularization": [0.5, 1]}},
        {"parameters": {"regularization": [{"filter": "mlp", "value": 0.5}]}},
        {"models": None, "slices": [{"sources": sources, "parameters": {"regularization": 0.5}}]},
    ):
        with pytest.raises(
            InputError, match=r"^recipe: regularization: ot_wts has one regularization for the whole mer"
        ):
            Recipe.of(given | bad)


def test_bad_parameters_in_slices_say_which():
    text = """
      merge_method: linear
      slices:
        - sources: [{model: a, layer_range: [0, 2]}]
        - sources: [{model: a, layer_range: [2, 4], parameters: {%s}}]
          parameters: {%s}
    """
    with pytest.raises(InputError, match=r"^recipe: weight of a in slices\[1\]: 'x':"):
        recipe(text % ("weight: x", ""))
    with pytest.raises(InputError, match=r"^recipe: weigth in slices\[1\]: linear has no such parameter; did you mean"):
        recipe(text % ("", "weigth: 1"))


def test_switches_of_mergekit_that_save_memory_have_no_effect():
    made = recipe(TIES % ("", "int8_mask: true"))
    assert made.notes == ["int8_mask has no effect"]
    assert "int8_mask" not in made.parameters_of("x", None, 2)
    assert recipe(TIES % ("", "")).notes == []


def test_embeddings_of_slerp_are_interpolated_as_all_else():
    text = "{merge_method: %s, models: [{model: a}, {model: b}], base_model: a, parameters: {t: 0.5, embed_slerp: %s}}"
    assert recipe(text % ("slerp", "true")).notes == ["embed_slerp has no effect"]
    for other in (("slerp", "false"), ("nearswap", "true")):
        with pytest.raises(InputError, match=r"embed_slerp: .* has no such parameter"):
            recipe(text % other)


def test_what_mergekits_task_vectors_share_has_no_effect_where_nothing_is_dropped():
    made = recipe(TIES.replace("ties", "task_arithmetic") % ("density: 0.5", "rescale: true"))
    assert sorted(made.notes) == ["density has no effect", "rescale has no effect"]
    for name in ("ties", "breadcrumbs", "breadcrumbs_ties"):
        made = recipe(TIES.replace("merge_method: ties", f"merge_method: {name}") % ("", "rescale: false"))
        assert made.notes == ["rescale has no effect"]
    with pytest.raises(InputError, match="rescale: ties has no such parameter"):
        recipe(TIES % ("", "rescale: true"))


@pytest.mark.parametrize("name", ["sce", "model_stock", "arcee_fusion"])
def test_what_mergekits_task_vectors_share_has_no_effect_on_methods_that_do_not_read_it(name):
    own = {"weight": [{"filter": "mlp", "value": [1, 2]}, {"value": 1}], "density": 0.9}
    models = [{"model": "a", "parameters": own}, {"model": "b"}]
    given = {"merge_method": name, "models": models[: 1 if name == "arcee_fusion" else 2], "base_model": "base"}
    made = Recipe.of(given | {"parameters": {"normalize": True, "rescale": True, "lambda": 1.0}})
    assert {*made.notes} == {f"{key} has no effect" for key in ("weight", "density", "normalize", "rescale", "lambda")}
    with pytest.raises(InputError, match=f"t: {name} has no such parameter"):
        Recipe.of(given | {"parameters": {"t": 0.5}})


def test_what_mergekit_divides_by_at_least_has_no_effect_where_nothing_is_divided():
    text = "{merge_method: multislerp, models: [{model: a}, {model: b}], parameters: {eps: 1.0e-8}}"
    assert recipe(text).notes == ["eps has no effect"]


def test_every_method_can_be_asked_for():
    for name in registry.methods():
        known = find(name)
        models = [{"model": f"m{i}"} for i in range(max(known.fewest, 1))]
        required = {p.name: 0.5 for p in known.parameters.values() if p.default is registry.REQUIRED}
        content = {"merge_method": name, "models": models, "parameters": required, "base_model": "m0"}
        if known.takes_base:
            content["base_model"] = "base"
        if known.statistics:
            content["statistics"] = {"data": {"path": "rows.jsonl"}}
        found = Recipe.of(content).parameters_of("x", 0, 2)
        assert found.keys() == known.parameters.keys()
        assert all(len(found[p.name]) == len(models) for p in known.parameters.values() if p.each)
