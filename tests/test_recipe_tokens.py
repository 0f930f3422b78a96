"""What a recipe says of single tokens."""

import pytest
import yaml

from cobasin.errors import InputError
from cobasin.recipe import Recipe

LINEAR = {"merge_method": "linear", "models": [{"model": "./a"}, {"model": "./b"}]}


def of(said):
    return Recipe.of(LINEAR | {"tokenizer": {"tokens": {"<x>": said}}})


def there(**keys):
    return {"source": {"kind": "model_token", "model": "./b", **keys}}


@pytest.mark.parametrize(
    ("said", "model"),
    [
        ({}, None),
        ({"source": None, "force": True}, None),
        ({"source": "b/"}, "./b"),
        ({"source": {"model": {"path": "./b"}}}, "./b"),
        ({"source": {"kind": "zero"}}, None),
        (there(token="<y>"), "./b"),
        (there(token_id=0), "./b"),
        ({"source": {"kind": "model_token", "model": {"model": {"path": "b"}}, "token": "<y>"}}, "./b"),
    ],
)
def test_a_source_is_one_of_the_models(said, model):
    recipe = of(said)
    for one in (recipe, Recipe.of(yaml.safe_load(recipe.text())), recipe.changed({"symmetry": "full"})):
        assert one.tokenizer.tokens["<x>"] == recipe.tokenizer.tokens["<x>"]
        assert one.tokenizer.tokens["<x>"].model == model


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (None, ": None: expected keys and values (source, force)"),
        ("./b", ": './b': expected keys and values (source, force)"),
        ({"forc": True}, ": unknown key 'forc'; did you mean 'force'?"),
        ({"force": "yes"}, ".force: 'yes': expected true or false"),
        ({"source": "./c"}, ".source './c': expected ./a, ./b"),
        ({"source": 5}, ".source.model: 5: expected text, in quotes"),
        ({"source": {"token": "<y>"}}, ".source.model: {'token': '<y>'}: expected text"),
        ({"source": {"kind": "model_tokn"}}, ".source: unknown kind 'model_tokn'; did you mean 'model_token'?"),
        ({"source": {"kind": ["zero"]}}, ".source: unknown kind \"['zero']\"; did you mean 'zero'?"),
        ({"source": {"kind": "zero", "model": "./b"}}, ".source.zero: unknown key 'model' (known: kind)"),
        (there(), ".source.model_token: expected token or token_id, exactly one of them"),
        (there(token="<y>", token_id=3), ".source.model_token: expected token or token_id, exactly one of them"),
        (there(token=3), ".source.model_token.token: 3: expected text, in quotes"),
        (there(token_id=-1), ".source.model_token.token_id: -1: expected a number from 0 on"),
        (there(token_id="3"), ".source.model_token.token_id: '3': expected a whole number"),
        (there(token="<y>", model="./c"), ".source './c': expected ./a, ./b"),
        ({"source": {"kind": "model_token", "token": "<y>"}}, ".source.model_token.model is missing"),
    ],
)
def test_what_is_refused(said, message):
    with pytest.raises(InputError) as caught:
        of(said)
    assert str(caught.value).startswith(f"recipe: tokenizer.tokens.<x>{message}")


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ({5: {}}, ": key 5: expected text, in quotes"),
        ({"": {}}, ": key '': expected text that is not empty"),
        (["<x>"], ": ['<x>']: expected keys and values"),
    ],
)
def test_tokens_are_named(tokens, message):
    with pytest.raises(InputError) as caught:
        Recipe.of(LINEAR | {"tokenizer": {"tokens": tokens}})
    assert str(caught.value).startswith(f"recipe: tokenizer.tokens{message}")


@pytest.mark.parametrize(
    ("said", "expected"),
    [(0, "a number above 0"), (10**12, "a number up to 65536"), (1.5, "a whole number"), (True, "a whole number")],
)
def test_the_multiple_of_rows(said, expected):
    with pytest.raises(InputError) as caught:
        Recipe.of(LINEAR | {"tokenizer": {"pad_to_multiple_of": said}})
    assert str(caught.value) == f"recipe: tokenizer.pad_to_multiple_of: {said}: expected {expected}"
