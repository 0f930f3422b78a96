"""Recipes: the grammar, the models and their roles, and what is refused."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cobasin.adapters.added import adapter_in
from cobasin.errors import InputError
from cobasin.recipe import Recipe
from cobasin.recipe.document import read_yaml

EXAMPLES = sorted((Path(__file__).parents[1] / "examples/recipes").glob("*.yaml"))
LINEAR = {"merge_method": "linear", "models": [{"model": "./a"}, {"model": "./b"}]}
TIES = LINEAR | {"merge_method": "ties", "base_model": "./base"}
FISHER = LINEAR | {"merge_method": "fisher", "statistics": {"data": {"path": "rows.jsonl"}}}


def slices(*ranges, models=("./a", "./b")):
    """Slices of some models with a layer range each."""
    return {
        "merge_method": "linear",
        "slices": [{"sources": [{"model": m, "layer_range": list(r)} for m in models]} for r in ranges],
    }


def refusal(content):
    """The one line that a recipe is refused with."""
    with pytest.raises(InputError) as caught:
        Recipe.of(content)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("recipe: ")
    return message.removeprefix("recipe: ")


# files


def test_a_file_is_read(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "\ufeffmerge_method: linear\nmodels:\n  - model: ./ä\n    parameters: &p {weight: 1}\n"
        "  - {model: ./b, parameters: {<<: *p}}\n",
        "utf-8",
    )
    recipe = Recipe.read(path)
    assert recipe.inputs == ["./ä", "./b"]
    assert recipe.parameters_of("x", 0, 1)["weight"] == (1, 1)


@pytest.mark.parametrize("text", ["1e-1", "+1E-1", "1.e-1", "10e-2"])
def test_numbers_without_a_point(tmp_path, text):
    path = tmp_path / "recipe.yaml"
    path.write_text(f"merge_method: slerp\nmodels: [{{model: ./a}}, {{model: ./1e-1x}}]\nparameters: {{t: {text}}}\n")
    recipe = Recipe.read(path)
    assert recipe.parameters_of("x", 0, 1)["t"] == 0.1
    assert recipe.referenced == ["./a", "./1e-1x"]
    assert read_yaml(path)["parameters"] == {"t": 0.1}


def test_a_text_that_looks_like_a_number_stays_one(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text('merge_method: linear\nmodels: [{model: "1e-1"}, {model: "12e4"}]\n')
    recipe = Recipe.read(path)
    path.write_text(recipe.text())
    assert Recipe.read(path).inputs == recipe.inputs == ["1e-1", "12e4"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", ": is empty; expected keys like merge_method: and models:"),
        (b"# nothing\n", ": is empty"),
        (b"- model: a\n", ": holds a list; expected keys like merge_method: and models:"),
        (b"linear", ": holds a str"),
        (b"merge_method: linear\nmodels:\n\t- model: a\n", ", line 3: a tab; indent with spaces"),
        (b"merge_method: linear\nmodels: [a\ndtype: float32\n", ", line 3: "),
        (b"merge_method: linear\nmodels: []\nmerge_method: ties\n", ", line 3: the key 'merge_method' is given twice"),
        (b"a:\n  b: {c: 1, c: 2}\n", ", line 2: the key 'c' is given twice"),
        (b"a: 1\nb: !!python/object/apply:os.getcwd []\n", ", line 2: could not determine a constructor for the tag"),
        (b"models:\n- model: 2024-31-12\n", ", line 2: '2024-31-12' is no timestamp; write text in quotes"),
        (b"a: !!timestamp abc\n", ", line 1: 'abc' is no timestamp"),
        (b"a: !!int abc\n", ", line 1: 'abc' is no int"),
        (b'a: !!int ""\n', ", line 1: '' is no int"),
        (b"a: !!bool abc\n", ", line 1: 'abc' is no bool"),
        (b"a: 1\n---\nb: 2\n", ", line 2: another recipe begins; a file holds one: save each to a"),
        (b"a: 1\nb: \x01\n", r", line 2: the character '\x01' is not allowed in YAML"),
        (b"a: \xff\xfe", ": is not text in UTF-8"),
        (b"a: " + b"[" * 5_000, ": is nested too deeply"),
        (b"merge_method: linear\nmodel: []\n", ": unknown key 'model'; did you mean 'models'?"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused_in_one_line(tmp_path, text, message):
    path = tmp_path / "recipe.yaml"
    path.write_bytes(text)
    with pytest.raises(InputError) as caught:
        Recipe.read(path)
    assert str(caught.value).startswith(f"{path}{message}")
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"none\.yaml: cannot be read: No such file"):
        Recipe.read(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        Recipe.read(tmp_path)
    with pytest.raises(InputError, match=r"^~nobody-of-that-name/x: no such user"):
        Recipe.read("~nobody-of-that-name/x")


def test_later_refusals_name_the_file(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(slices((0, 2)) | {"parameters": {"weight": [{"filter": "x", "value": 1}]}}))
    with pytest.raises(InputError, match=r"recipe\.yaml: the slices end at layer 2, and the models have 4 layers: "):
        Recipe.read(path).check_layers(4)


def test_reading_recipes_loads_no_heavy_library():
    code = (
        "import sys, cobasin.recipe; print([m for m in ('transformers', 'datasets', 'peft', 'ot') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# the examples


def test_there_are_twelve_examples():
    assert len(EXAMPLES) == 12


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_are_recipes_for_models_of_four_layers(path):
    recipe = Recipe.read(path)
    recipe.check_layers(4)
    assert recipe.match.symmetry == "none"
    for name, layer in (("model.embed_tokens.weight", None), ("model.layers.3.mlp.up_proj.weight", 3)):
        found = recipe.parameters_of(name, layer, 4)
        assert found.keys() == recipe.method.parameters.keys()
    if "slices" in path.read_text():
        other = 3 if recipe.method.stacks else 5  # which does not have, or has more than, what they name
        with pytest.raises(InputError, match=f"{other} layers"):
            recipe.check_layers(other)


def test_an_example_resolves_to_what_it_says():
    recipe = next(Recipe.read(path) for path in EXAMPLES if path.stem == "slerp")
    assert (recipe.base, recipe.inputs) == ("./models/tiny-a", ["./models/tiny-b"])
    names = ["self_attn.q_proj", "mlp.up_proj", "input_layernorm"]
    found = [[recipe.parameters_of(f"model.layers.{k}.{name}.weight", k, 4)["t"] for k in range(4)] for name in names]
    assert found[0] == pytest.approx([0, 0.5 - 0.2 / 3, 0.3 + 0.4 * 2 / 3, 1])  # positions 0, 4/3, 8/3, 4 of 5 values
    assert found[1] == pytest.approx([1 - t for t in found[0]])
    assert found[2] == [0.5] * 4


# keys


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            LINEAR | {"base_modle": "x"},
            "unknown key 'base_modle'; did you mean 'base_model'? (known: base_model, chat_template, dtype,",
        ),
        (LINEAR | {1: 2}, "unknown key '1' (known:"),
        (LINEAR | {"random_seed": 0}, "'random_seed' is not supported: write it as seed"),
        ({"gate_mode": "hidden"}, "'gate_mode' is not supported: mixtures of experts are not made of dense models"),
        (
            LINEAR | {"models": [{"model": "a", "layer_range": [0, 2]}]},
            "models[0]: 'layer_range' is not supported: it goes with slices: and their sources:",
        ),
        (LINEAR | {"models": [{"modle": "a"}]}, "models[0]: unknown key 'modle'; did you mean 'model'?"),
        (LINEAR | {"models": [{"model": "a"}, {}]}, "models[1].model is missing"),
        (LINEAR | {"models": ["./a"]}, "models[0]: './a': expected keys and values (model, parameters)"),
        (LINEAR | {"models": [{"model": 7}]}, "models[0].model: 7: expected text, in quotes"),
        (LINEAR | {"models": [{"model": ""}]}, "models[0].model: '': expected text that is not empty"),
        (LINEAR | {"models": []}, "models: []: expected 1 or more"),
        (LINEAR | {"models": {"a": 1}}, "models: {'a': 1}: expected a list"),
        (
            LINEAR | {"models": [{"model": "a", "parameters": [1]}]},
            "models[0].parameters: [1]: expected keys and values",
        ),
        ({"models": LINEAR["models"]}, "merge_method is missing"),
        ({"merge_method": "linear"}, "expected one of models, slices and modules, got none"),
        (LINEAR | slices((0, 1)), "expected one of models, slices and modules, got models and slices"),
        (
            LINEAR | {"merge_method": "tise"},
            "merge method 'tise' is unknown; did you mean 'ties'? (known: arcee_fusion,",
        ),
        (LINEAR | {"dtype": "int8"}, "dtype: 'int8': expected 'float32', 'float16', 'bfloat16' or 'float64'"),
        (LINEAR | {"dtype": "torch.int8"}, "dtype: 'int8': expected 'float32'"),
        (LINEAR | {"out_dtype": "half"}, "out_dtype: 'half': expected 'float32'"),
        (LINEAR | {"seed": "x"}, "seed: 'x': expected a whole number"),
        (
            LINEAR | {"chat_template": "chatlm"},
            "chat_template: 'chatlm': expected auto, alpaca, chatml, exaone, llama3, mistral, or a template in Jinja",
        ),
        (LINEAR | {"chat_template": ""}, "chat_template: '': expected auto, alpaca"),
        (LINEAR | {"models": [{"model": {"path": "b"}}]}, "models[0].model: {'path': 'b'}: expected text"),
        ("linear", "'linear': expected keys and values (merge_method, models, slices, "),
    ],
)
def test_keys_that_make_no_sense_are_refused(content, message):
    assert refusal(content).startswith(message)


def test_a_dtype_may_be_written_as_in_torch():
    assert Recipe.of(LINEAR | {"dtype": "torch.bfloat16"}).dtype == "bfloat16"


def test_a_folder_may_have_signs_in_its_name_that_mean_something_to_mergekit(tmp_path):
    for name in ("a+b", "a@b"):
        (tmp_path / name).mkdir()
        assert Recipe.of(LINEAR | {"models": [{"model": tmp_path / name}]}).inputs == [str(tmp_path / name)]
        assert adapter_in(str(tmp_path / name)) is None


def test_models_may_be_written_as_mergekit_does_in_recipes_of_its_own():
    """Cards of merges have these."""
    base = {"model": {"path": "./base", "revision": None}, "lora": None, "override_architecture": None}
    adapted = {"lora": {"path": "some/lora", "revision": "v2"}, "model": {"path": "some/base", "revision": "v1"}}
    recipe = Recipe.of(TIES | {"base_model": base, "models": [{"model": base}, {"model": adapted}]})
    assert (recipe.base, recipe.inputs) == ("./base", ["some/base@v1+some/lora@v2"])


def test_a_long_value_is_cut_in_the_message():
    bomb = "x"
    for _ in range(30):
        bomb = [bomb, bomb, bomb]  # 3 ** 30 words, as aliases in YAML can make
    for content in ({"dtype": "x" * 10_000}, {"dtype": bomb}, {"parameters": {"weight": bomb}}):
        assert len(refusal(LINEAR | content)) < 300


def test_one_module_is_the_same_as_none():
    inner = {"models": [{"model": "./a", "parameters": {"weight": 2}}, {"model": "./b"}]}
    plain = Recipe.of({"merge_method": "linear"} | inner)
    recipe = Recipe.of({"merge_method": "linear", "modules": {"default": inner}})
    assert recipe.inputs == plain.inputs
    assert recipe.parameters_of("x", 0, 2) == plain.parameters_of("x", 0, 2)


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ({"encoder": {"models": LINEAR["models"]}}, "modules encoder: a model is merged as a whole; list the models"),
        (
            {"default": {"models": LINEAR["models"]}, "vision": {"models": LINEAR["models"]}},
            "modules default, vision: a model is merged as a whole",
        ),
        ({"default": {}}, "modules.default: expected models or slices, exactly one of them"),
        ({"default": {"models": LINEAR["models"], "base_model": "x"}}, "modules.default: unknown key 'base_model'"),
        ({}, "modules: {}: expected 1 or more"),
    ],
)
def test_modules_that_are_not_the_whole_model_are_refused(modules, message):
    assert refusal({"merge_method": "linear", "modules": modules}).startswith(message)


# slices


def test_slices_are_all_layers_of_the_models():
    recipe = Recipe.of(slices((0, 3), (3, 4)))
    assert recipe.inputs == recipe.referenced == ["./a", "./b"]
    recipe.check_layers(4)
    for count in (3, 5):
        with pytest.raises(InputError, match=f"the slices end at layer 4, and the models have {count} layers"):
            recipe.check_layers(count)
    Recipe.of(LINEAR).check_layers(17)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            slices((1, 4)),
            "slices[0].layer_range starts at layer 1, expected 0: cobasin merges layer k of one model with",
        ),
        (slices((0, 2), (3, 4)), "slices[1].layer_range starts at layer 3, expected 2"),
        (slices((0, 2), (0, 2)), "slices[1].layer_range starts at layer 0, expected 2"),
        (slices((0, 0)), "slices[0].layer_range [0, 0] holds no layer; the second number is exclusive"),
        (slices((2, 1)), "slices[0].layer_range [2, 1] holds no layer"),
        (slices((0, True)), "slices[0].sources[0].layer_range[1]: True: expected a whole number"),
        (slices((-1, 2)), "slices[0].sources[0].layer_range[0]: -1: expected a number from 0 on"),
        (slices((0,)), "slices[0].sources[0].layer_range[1] is missing"),
        (
            {"merge_method": "linear", "slices": [{"sources": [{"model": "a"}]}]},
            "slices[0].sources[0].layer_range is mis",
        ),
        ({"merge_method": "linear", "slices": [{"sources": []}]}, "slices[0].sources: []: expected 1 or more"),
        (
            {
                "merge_method": "linear",
                "slices": [slices((0, 2))["slices"][0], slices((2, 4), models=["./a"])["slices"][0]],
            },
            "slices[1] is of ./a, slices[0] of ./a, ./b: cobasin merges layer k of one model with layer k of the "
            "others, so list the same models in the same order in every slice",
        ),
        (
            {
                "merge_method": "linear",
                "slices": [{"sources": [{"model": "a", "layer_range": [0, 2]}, {"model": "b", "layer_range": [1, 3]}]}],
            },
            "slices[0] takes layers [0, 2] of a and [1, 3] of b: cobasin merges layer k of one model with layer k of "
            "the others, so give every model of a slice the same layer_range",
        ),
        (
            {"merge_method": "linear", "slices": [slices((0, 2))["slices"][0] | {"residual_weight": 0.5}]},
            "slices[0]: 'residual_weight' is not supported: ",
        ),
    ],
)
def test_layers_from_different_places_are_refused(content, message):
    assert refusal(content).startswith(message)


def test_slices_may_name_the_base():
    content = slices((0, 2), (2, 4)) | {"merge_method": "task_arithmetic"}
    for one in content["slices"]:
        one["base_model"] = "./a"
    recipe = Recipe.of(content)
    assert (recipe.base, recipe.base_model, recipe.inputs) == ("./a", "./a", ["./b"])
    assert recipe.changed({}).text() == recipe.text()
    assert Recipe.of(content | {"tokenizer_source": "base"}).vocabulary == "./a"
    assert Recipe.of(content | {"base_model": "./a/"}).base == "./a"
    assert refusal(content | {"base_model": "./b"}) == "slices[0].base_model './a': there is one base, './b'"
    content["slices"][1]["base_model"] = "./b"
    assert refusal(content) == "slices[1].base_model './b': there is one base, './a'"


# the models and their roles


def test_a_base_is_not_fused_whether_it_is_listed_or_not():
    recipe = Recipe.of(TIES)
    assert (recipe.base, recipe.inputs, recipe.referenced) == ("./base", ["./a", "./b"], ["./a", "./b", "./base"])
    recipe = Recipe.of(TIES | {"base_model": "./a"})
    assert (recipe.base, recipe.inputs, recipe.referenced) == ("./a", ["./b"], ["./a", "./b"])
    assert recipe.method.takes_base


def test_a_method_without_a_base_keeps_all_models():
    recipe = Recipe.of(LINEAR | {"base_model": "./b/"})
    assert (recipe.base, recipe.base_model, recipe.inputs) == (None, "./b", ["./a", "./b"])
    message = refusal(LINEAR | {"base_model": "./c"})
    assert message.startswith("base_model './c' is none of the models, and linear has no base; list it under models to")


def test_slerp_goes_from_the_base_or_else_from_the_first_model():
    slerp = LINEAR | {"merge_method": "slerp", "parameters": {"t": 0.5}}
    assert (Recipe.of(slerp).base, Recipe.of(slerp).inputs) == ("./a", ["./b"])
    other = Recipe.of(slerp | {"base_model": "./b"})
    assert (other.base, other.inputs, other.referenced) == ("./b", ["./a"], ["./a", "./b"])


def test_nearswap_moves_the_base_or_else_the_first_model():
    near = LINEAR | {"merge_method": "nearswap", "parameters": {"t": 0.5}}
    assert (Recipe.of(near).base, Recipe.of(near).inputs) == ("./a", ["./b"])


@pytest.mark.parametrize(("method", "parameters"), [("nearswap", {"t": 5}), ("arcee_fusion", None)])
def test_what_gives_models_no_shares_has_no_statistics_between_theirs(method, parameters):
    """The t of nearswap is a distance, which was taken for a share."""
    message = refusal(LINEAR | {"merge_method": method, "parameters": parameters, "repair": {}})
    assert message.startswith(f"repair: {method} does not say how much each model counts")


@pytest.mark.parametrize("method", ["nuslerp", "multislerp"])
def test_spherical_means_may_have_a_base(method):
    plain, moved = (Recipe.of(one | {"merge_method": method}) for one in (LINEAR, TIES))
    assert (plain.base, plain.inputs) == (None, ["./a", "./b"])
    assert (moved.base, moved.inputs) == ("./base", ["./a", "./b"])
    assert Recipe.of(LINEAR | {"merge_method": method, "repair": {}}).repair is not None
    message = refusal(TIES | {"merge_method": method, "repair": {}})
    assert message.startswith(f"repair: {method} adds to a base what others have learned")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (LINEAR | {"merge_method": "ties"}, "base_model is missing: ties merges what the models have learned since it"),
        (TIES | {"models": [{"model": "./base"}]}, "ties merges 1 or more model(s) beside the base (./base), got 0"),
        (
            TIES | {"merge_method": "model_stock", "models": [{"model": "./a"}]},
            "model_stock merges 2 or more model(s) beside the base (./base), got 1",
        ),
        (
            TIES | {"merge_method": "slerp", "parameters": {"t": 0.5}},
            "slerp merges 1 model(s) beside the base (./base), got 2",
        ),
        (
            TIES | {"merge_method": "nuslerp", "base_model": "./a"},
            "nuslerp merges 2 model(s) beside the base (./a), got 1",
        ),
        (
            TIES | {"merge_method": "sce", "base_model": "./a"},
            "sce merges 2 or more model(s) beside the base (./a), got 1",
        ),
    ],
)
def test_the_number_of_models_and_the_base_are_checked(content, message):
    assert refusal(content) == message


def test_the_same_model_may_be_written_in_several_ways():
    recipe = Recipe.of(TIES | {"base_model": "a/", "head": "b", "tokenizer_source": "./b/", "match": {"anchor": "b/"}})
    assert (recipe.base, recipe.base_model, recipe.inputs) == ("./a", "./a", ["./b"])
    assert (recipe.head, recipe.vocabulary, recipe.match.anchor) == ("./b", "./b", "./b")


def test_a_model_is_one_however_slices_write_it():
    stacked = slices((0, 2), (1, 3), models=["./a"])
    stacked["merge_method"] = "passthrough"
    stacked["slices"][1]["sources"][0]["model"] = "a/"
    recipe = Recipe.of(stacked)
    assert recipe.inputs == ["./a"]
    assert recipe.stacked(3) == [(0, 0), (0, 1), (0, 1), (0, 2)]
    fused = slices((0, 2), (2, 3))
    fused["slices"][1]["sources"][1]["model"] = "b"
    assert Recipe.of(fused).inputs == ["./a", "./b"]


# matching


@pytest.mark.parametrize(
    ("given", "symmetry", "layers"),
    [
        (None, "none", None),
        ("none", "none", None),
        ("full", "full", None),
        ("paper", "paper", None),
        ("ffn,heads", "ffn,heads", None),
        (["ffn", "heads"], "ffn,heads", None),
        ({"anchor": "consensus"}, "full", None),
        ({"symmetry": "gl", "layers": "0-4,7"}, "gl", "0-4,7"),
        ({"symmetry": ["ffn"], "layers": 3, "method": "weights"}, "ffn", "3"),
        ({"symmetry": "full", "layers": [0, "2-4"]}, "full", "0,2-4"),
    ],
)
def test_match_is_a_word_or_a_block(given, symmetry, layers):
    match = Recipe.of(LINEAR | {"match": given}).match
    assert (match.symmetry, match.layers, match.method) == (symmetry, layers, "weights")
    assert match.anchor == ("consensus" if isinstance(given, dict) and "anchor" in given else "medoid")


def test_nothing_is_matched_without_match():
    assert Recipe.of(LINEAR).match.symmetry == "none"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("ful", "match: symmetry 'ful': 'ful' is unknown; expected none, full, gl, paper, or a list out of ffn"),
        (["ffn", 3], "match: symmetry 'ffn,3': '3' is unknown"),
        (False, "match: to merge the models as they are, write none or leave it out"),
        (3, "match: 3: expected keys and values (symmetry, anchor, layers, method, data, "),
        ({"symetry": "full"}, "match: unknown key 'symetry'; did you mean 'symmetry'?"),
        ({"layers": "4-1"}, "match: layers '4-1': '4-1' is not a number or a range; write them like 0-4,7"),
        ({"method": "psychic"}, "match.method: 'psychic': expected 'weights', 'activations' or 'learned'"),
        ({"data": {"path": "rows.jsonl"}}, "match: method weights reads no data; leave it out, or take"),
        ({"method": "activations", "steps": 3}, "match: method activations learns nothing; steps, loss, move"),
        ({"method": "activations", "move": "all"}, "match: method activations learns nothing; steps, loss, move"),
        ({"method": "activations", "orders": True}, "match: method activations learns nothing; steps, loss, move"),
        ({"method": "learned", "orders": "yes"}, "match.orders: 'yes': "),
        ({"method": "learned", "loss": "labels"}, "match: loss labels: inputs that are made up have no labels"),
        ({"method": "learned", "loss": "truth"}, "match.loss: 'truth': expected 'parents' or 'labels'"),
        ({"method": "learned", "data": {"pth": "x"}}, "match.data: unknown key 'pth'; did you mean 'path'?"),
        ({"method": "learned", "seed": -1}, "match.seed: -1: expected a number from 0 on"),
        ({"method": "activations", "anchor": "consensus"}, "match: anchor consensus is not found by method act"),
        ({"anchor": "./c"}, "match.anchor './c': expected medoid, consensus, ./a, ./b"),
        (
            {"symmetry": "none", "anchor": "./a"},
            "match: nothing is matched with symmetry none; leave anchor, layers",
        ),
        ({"symmetry": "none", "method": "learned"}, "match: nothing is matched with symmetry none"),
        ({"symmetry": "none", "layers": "0"}, "match: nothing is matched with symmetry none"),
    ],
)
def test_a_match_that_makes_no_sense_is_refused(given, message):
    assert refusal(LINEAR | {"match": given}).startswith(message)


def test_options_change_a_recipe():
    recipe = Recipe.of(LINEAR | {"match": "gl", "parameters": {"weight": [0, 1]}})
    assert recipe.changed({}).text() == recipe.text()
    changed = recipe.changed({"anchor": "./b"}, head="./a")
    assert (changed.match.symmetry, changed.match.anchor, changed.head) == ("gl", "./b", "./a")
    assert changed.parameters_of("x", 1, 2) == recipe.parameters_of("x", 1, 2)
    changed = changed.changed({"symmetry": "none"})
    assert (changed.match.symmetry, changed.match.anchor, changed.head) == ("none", "medoid", "./a")
    assert (recipe.match.anchor, recipe.head) == ("medoid", None)
    with pytest.raises(InputError, match=r"^recipe: match\.anchor './c': expected"):
        recipe.changed({"anchor": "./c"})
    with pytest.raises(InputError, match=r"^recipe: match: nothing is matched with symmetry none"):
        Recipe.of(LINEAR).changed({"anchor": "consensus"})


# tokenizer, head, dtype, seed


def test_the_tokenizer_is_that_of_one_model():
    assert Recipe.of(LINEAR).vocabulary is None
    assert Recipe.of(LINEAR | {"tokenizer_source": "union"}).vocabulary == "union"
    assert Recipe.of(LINEAR | {"tokenizer_source": "./b"}).vocabulary == "./b"
    assert Recipe.of(LINEAR | {"tokenizer": {"source": "./b"}}).vocabulary == "./b"
    assert Recipe.of(LINEAR | {"tokenizer": {}}).vocabulary == "union"
    assert Recipe.of(TIES | {"tokenizer_source": "base"}).vocabulary == "./base"
    assert Recipe.of(LINEAR | {"tokenizer_source": "model:./b"}).vocabulary == "./b"  # mergekit's former spelling
    first = Recipe.of(LINEAR | {"tokenizer_source": "base"})
    assert first.vocabulary == "./a"
    assert first.notes == ["tokenizer_source: base: no base_model is named, so it is that of ./a"]


def test_keys_of_mergekits_command_line_and_names_have_no_effect():
    keys = ("name", "trust_remote_code", "allow_crimes")
    for key in keys:
        (note,) = Recipe.of(LINEAR | {key: True}).notes
        assert note.startswith(f"{key} has no effect: ")
    made = Recipe.of(LINEAR | dict.fromkeys(keys, True))
    assert len(made.notes) == len(made.changed({"symmetry": "full"}).notes) == 3
    assert made.text() == Recipe.of(LINEAR).text()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tokenizer_source": "model:./c"}, "tokenizer_source 'model:./c': expected base, union, ./a, ./b"),
        ({"head": "model:./b"}, "head 'model:./b': expected keep, ./a, ./b"),
        ({"tokenizer_source": "unoin"}, "tokenizer_source 'unoin': expected base, union, ./a, ./b"),
        ({"tokenizer": {"source": "./c"}}, "tokenizer.source './c': expected base, union, ./a, ./b"),
        ({"tokenizer": {"source": 1}}, "tokenizer.source"),
        ({"tokenizer": {"pad_to_multiple_of": 0}}, "tokenizer.pad_to_multiple_of: 0: expected a number above 0"),
        (
            {"tokenizer": {"source": "union"}, "tokenizer_source": "union"},
            "tokenizer and tokenizer_source say the same: give one of them",
        ),
        ({"head": "./c"}, "head './c': expected keep, ./a, ./b"),
    ],
)
def test_tokenizers_and_heads_are_those_of_the_models(given, message):
    assert refusal(LINEAR | given).startswith(message)


def test_head_dtypes_and_seed():
    recipe = Recipe.of(LINEAR | {"head": "keep", "dtype": "bfloat16", "out_dtype": "float64", "seed": 7})
    assert (recipe.head, recipe.dtype, recipe.out_dtype, recipe.seed) == ("keep", "bfloat16", "float64", 7)
    recipe = Recipe.of(LINEAR)
    assert (recipe.head, recipe.dtype, recipe.out_dtype, recipe.seed) == (None, None, None, 0)


# statistics


def test_statistics_have_defaults_and_data_sets_for_all_models_or_each():
    statistics = Recipe.of(FISHER).statistics
    assert statistics is not None
    assert statistics.data.path == "rows.jsonl"
    found = statistics.model_dump(exclude={"data"})
    assert found == {"samples": 1000, "batch_size": 16, "seed": 0, "fisher": "exact", "cache": None, "device": "auto"}
    each = Recipe.of(FISHER | {"statistics": {"data": [{"path": "a.csv"}, {"path": "b.csv"}], "device": "cuda:1"}})
    assert [one.path for one in each.statistics.data] == ["a.csv", "b.csv"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            None,
            "merge_method fisher needs the Fisher information of its models on data: add statistics: {data: {path: F",
        ),
        ({"samples": 10}, "merge_method fisher needs the Fisher information"),
        ({"data": None}, "merge_method fisher needs the Fisher information"),
        (
            {"data": [{"path": "a"}]},
            "statistics.data lists 1 data sets for 2 models; give one for all, or one for each",
        ),
        ({"data": 5}, "statistics.data: 5: expected keys and values (path, format,"),
        ({"data": {"pth": "a"}}, "statistics.data: unknown key 'pth'; did you mean 'path'?"),
        ({"data": {}}, "statistics.data: path is missing"),
        (
            {"data": {"path": "a", "labels": {"positive": True, "negative": False}}},
            "statistics.data: labels: True is no name (YAML reads yes, no, on, off, true and false without quotes as",
        ),
        (
            {"data": [{"path": "a"}, {"path": "a", "format": "tsv"}]},
            "statistics.data: format: 'tsv': expected 'json",
        ),
        ({"data": {"path": "a", "where": {"a": None}}}, "statistics.data: where.a: None: expected text or true or "),
        ({"data": {"path": "a", "where": {1.5: "x"}}}, "statistics.data: where: key 1.5: expected text or a whole num"),
        ({"data": {"path": "a", "labels": {"a": [1]}}}, "statistics.data: labels.a: [1]: expected text or a whole num"),
        ({"data": {"path": "a", "annotated": [None]}}, "statistics.data: annotated[0]: None: expected text or a who"),
        ({"data": {"path": "a", "split": 2019}}, "statistics.data: split: 2019: expected text, in quotes"),
        ({"data": {"path": "a"}, "samples": 0}, "statistics.samples: 0: expected a number above 0"),
        ({"data": {"path": "a"}, "batch_size": True}, "statistics.batch_size: True: expected a whole number"),
        ({"data": {"path": "a"}, "seed": 1.5}, "statistics.seed: 1.5: expected a whole number"),
        (
            {"data": {"path": "a"}, "fisher": "true"},
            "statistics.fisher: 'true': expected 'exact' or 'empirical'",
        ),
        ({"data": {"path": "a"}, "device": "gpu"}, "statistics.device: 'gpu': expected auto, cpu, cuda, cuda:1 (or a"),
        ({"data": {"path": "a"}, "sample": 3}, "statistics: unknown key 'sample'; did you mean 'samples'?"),
    ],
)
def test_statistics_that_make_no_sense_are_refused(given, message):
    assert refusal(FISHER | {"statistics": given}).startswith(message)


def test_statistics_for_a_method_that_needs_none_are_noted():
    assert Recipe.of(LINEAR | {"statistics": FISHER["statistics"]}).notes == [
        "statistics have no effect: linear needs none"
    ]
    assert Recipe.of(FISHER).notes == []


def test_settings_that_a_method_does_not_read_are_noted():
    given = {"statistics": FISHER["statistics"] | {"fisher": "empirical"}, "seed": 1}
    draws_none = "seed has no effect: {} draws no random numbers"
    assert Recipe.of(FISHER | given).notes == [draws_none.format("fisher")]
    assert Recipe.of(FISHER | {"merge_method": "regmean"} | given).notes == [
        draws_none.format("regmean"),
        "statistics.fisher has no effect: regmean reads no Fisher information",
    ]
    assert Recipe.of(TIES | {"base_model": "a", "merge_method": "dare_ties", "seed": 1}).notes == []


# the text of a recipe


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_text_of_a_recipe_is_the_recipe(path):
    text = Recipe.read(path).text()
    assert yaml.safe_load(text) == read_yaml(path)
    assert Recipe.of(yaml.safe_load(text)).text() == text


def test_the_text_holds_what_is_said_and_no_defaults():
    content = FISHER | {"match": {"anchor": "./b"}, "parameters": {"weight": [0.5, 1]}}
    content["statistics"] = {"data": {"path": "x.csv", "labels": {0: "no", "1": 1}}, "samples": 3}
    assert yaml.safe_load(Recipe.of(content).text()) == content
    assert Recipe.of(LINEAR | {"dtype": "float32"}).text() == (
        "merge_method: linear\nmodels:\n- {model: ./a}\n- {model: ./b}\ndtype: float32\n"
    )
