"""What the Python API is given by mistake is refused in one line, as on the command line."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePath

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from transformers import GenerationConfig, PreTrainedModel

import cobasin
from cobasin.checkpoints.running import instantiate
from cobasin.checkpoints.typed import Typed
from cobasin.data import batches
from cobasin.errors import InputError
from cobasin.symmetry.form import form_of
from tiny_models import checkpoint, model

pytestmark = pytest.mark.usefixtures("few_rounds")

CASE = "llama-gqa/LlamaForCausalLM"
RECIPE = {"merge_method": "linear", "models": [{"model": "model-a"}]}
ROWS = [{"input_ids": [1, 2, 3]}]


def headed(change):
    made = checkpoint(CASE)
    made.config.architectures = [made.architecture]
    return {**made, "lm_head.weight": change(made["lm_head.weight"])}, made.config


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a, b: cobasin.match(a, b, symmetry=["ffn", "heads"]), "expected a text, like 'ffn,heads'"),
        (lambda a, b: cobasin.match(a, b, layers=[0]), "layers \\[0\\]: expected a text"),
        (
            lambda a, b: cobasin.match(a, b, method="activations", data={"pth": "x"}),
            "unknown key 'pth'; did you",
        ),
        (lambda a, b: cobasin.match(a, b, method="activations", data="nowhere.jsonl"), "nowhere.jsonl: no such file"),
        (lambda a, b: cobasin.match(a, b, layers=0), "layers 0: expected a text"),
        (lambda a, b: cobasin.match(a, b, progress=3), "progress 3: expected a function"),
        (lambda a, b: cobasin.compare(a, b, progress="x"), "progress 'x': expected a function"),
        (lambda a, b: cobasin.match_adapters(a, b, progress=3), "progress 3: expected a function"),
        (lambda *models: cobasin.merge(models, progress=[], symmetry="none"), r"progress \[\]: expected a function"),
        (lambda *models: cobasin.match_all(models, keep=5), "keep 5: expected a Kept, of cobasin.finding.kept"),
        (lambda a, b: cobasin.match(a, b, method="activations", samples="5"), "samples '5': expected a whole number"),
        (lambda a, b: cobasin.match(a, b, method="activations", samples=True), "samples True: expected a whole number"),
        (lambda a, b: cobasin.match(a, b, method="activations", samples=10**12), "at most 1,000,000 inputs are made"),
        (lambda a, b: cobasin.match(a, b, method="learned", seed=-1), "seed -1: expected a whole number from 0 to"),
        (lambda a, b: cobasin.match(a, b, seed=np.zeros(2)), r"seed array\(\[0., 0.\]\): expected a whole number from"),
        (lambda a, b: cobasin.match(a, b, method="activations", data=5), "data: 5: expected a path, keys"),
        (
            lambda a, b: cobasin.match(a, b, method="activations", data=pd.DataFrame({"text": ["x"]})),
            "expected a path, keys and values, or a list of rows .of a DataFrame: to_dict",
        ),
        (
            lambda a, b: cobasin.match(a, b, method="activations", data=Dataset.from_list(ROWS).to_iterable_dataset()),
            "data: IterableDataset.*: expected a path, keys",
        ),
        (lambda a, b: cobasin.match(a, b, method="learned", orders="yes"), "orders 'yes': expected True or False"),
        (lambda a, _: batches(a, ROWS, samples="5", batch_size=1, seed=0), "samples '5', seed 0: expected whole"),
        (lambda a, _: batches(a, ROWS, samples=None, batch_size=1.5, seed=0), "batch_size 1.5, samples None, seed"),
        (lambda *models: cobasin.merge(models, "fisher", statistics="a.jsonl"), "statistics 'a.jsonl': expected keys"),
        (lambda a, b: cobasin.loss_path(a, b, None, points="5"), "'5' points on the path: expected an odd number"),
        (lambda a, b: cobasin.match(a, b, device=1.5), "device 1.5 cannot be used here"),
        (
            lambda a, b: cobasin.match(a, b, method="activations", device=np.array(["cpu", "auto"])),
            "device array.* cannot be used here",
        ),
        (lambda a, b: cobasin.match(a, b, method=np.ones(2)), r"method array.* is unknown; expected one of weights"),
        (lambda *models: cobasin.match_all(models, anchor=np.ones(2)), r"anchor array.*: expected medoid, consensus"),
        (lambda *models: cobasin.match_all(models, Dataset.from_list(ROWS)), r"^symmetry Dataset.*: expected a text"),
        (lambda *models: cobasin.merge(models, Dataset.from_list(ROWS)), r"^merge method Dataset.* is unknown"),
        (lambda *models: cobasin.merge(models, heal=np.ones(2)), "heal: array.*: expected keys and values"),
        (lambda *models: cobasin.merge(models, repair=torch.ones(2)), "repair: tensor.*: expected keys and values"),
        (lambda *models: cobasin.merge(models, heal=10**400), r"heal.steps: 10+\.\.\.0+: expected a number below"),
        (lambda a, b: cobasin.verify(a, b, 10**400), r"tolerance 10+\.\.\.0+: expected a finite number"),
        (lambda a, b: cobasin.match(a, b, device="privateuseone"), "device 'privateuseone' cannot be used here"),
        (lambda a, b: cobasin.match(a, b, device=10**30), "device 10{30} cannot be used here"),
        (lambda a, b: cobasin.loss_path(a, b, None, 3, device=[]), r"device \[\] cannot be used here"),
        (lambda a, b: cobasin.loss_path(a, b, None, 3), "evaluate None: expected a function that returns loss and"),
        (lambda a, b: cobasin.loss_path(a, b, lambda _: 1.5, 3), "evaluate returned 1.5; expected two numbers, loss"),
        (
            lambda a, b: cobasin.loss_plane([a, b, checkpoint(CASE, 2)], lambda _: None),
            "evaluate returned None; expect",
        ),
        (lambda *_: cobasin.evaluate("model-a", [], "causal_lm"), "'model-a': expected a model of Transformers, as"),
        (
            lambda *_: cobasin.evaluate(torch.nn.DataParallel(model(CASE)), [], "causal_lm"),
            "DataParallel.*: expected a model of Transformers",
        ),
        (lambda *_: cobasin.evaluate(model(CASE), None, "causal_lm"), "batches None: expected rows, as cobasin.data.b"),
        (lambda *_: cobasin.evaluate(model(CASE), [{}], "causal_lm"), "a batch is .*; expected one of those that cob"),
        (lambda *_: cobasin.match_all(None), "models: None: expected a list of two or more"),
        (lambda *_: cobasin.match_all("model-a"), "models: 'model-a': expected a list of two or more"),
        (lambda *_: cobasin.Recipe(), "^merge_method is missing$"),
        (lambda *_: cobasin.Recipe(**RECIPE | {"models": 3}), "^models: 3: expected a list$"),
        (lambda *_: cobasin.Recipe(**RECIPE | {"model": []}), "^unknown key 'model'; did you mean 'models'"),
        (lambda *_: cobasin.merge_recipe(RECIPE, models=5), "models: 5: expected names of the recipe, and the model"),
        (
            lambda a, _: cobasin.save(a, "nowhere", files=["x"]),
            r"files \['x'\]: expected the name of each, and its text",
        ),
        (
            lambda a, _: cobasin.save(a, "nowhere", files={"x": 5}),
            "files: x: 5: expected a text, a function that writes",
        ),
        (lambda a, _: cobasin.save(a, "nowhere", progress="x"), "progress 'x': expected a function"),
        (lambda *_: cobasin.save_adapter("nowhere", "out", files=["x"]), r"files \['x'\]: expected the name of each"),
        (lambda a, b: cobasin.loss_path(a, b, None, 3, device="nowhere"), "device 'nowhere' cannot be used here"),
        (lambda a, b: cobasin.loss_plane([a, b, a], None, grid=3.5), "3.5 points a side of the plane: expected a who"),
        (lambda _, b: cobasin.merge("model-a"), "models: .model-a.: expected a list"),
        (lambda *_: cobasin.merge(None), "models: None: expected a list"),
        (lambda *models: cobasin.merge(models, None), "merge method None is unknown"),
        (lambda *models: cobasin.merge(models, weights=[None, 1]), "weights .None, 1.: expected finite numbers"),
        (lambda *models: cobasin.merge(models, weights=5), "weights 5: expected finite numbers, in the order of"),
        (lambda *models: cobasin.merge(models, weights={0.3, 0.7}), "weights .0.3, 0.7.: expected finite numbers, in"),
        (lambda a, _: cobasin.transform(None, a), "None: expected an Element"),
        (
            lambda a, b: cobasin.transform(cobasin.match(a, b, "ffn"), a, torch.int8),
            "dtype torch.int8: expected",
        ),
        (
            lambda a, b: cobasin.transform(cobasin.match(a, b, "ffn"), a, torch.float8_e4m3fn),
            "dtype torch.float8_e4m3fn: expected float64, float32, float16 or bfloat16",
        ),
        (lambda a, b: cobasin.match(a, b, "ffn").compose(5), "5: expected an Element"),
        (
            lambda a, b: cobasin.match(a, b, "ffn").apply(model(CASE)),
            "^LlamaForCausalLM: an element acts on tensors by",
        ),
        (lambda *_: cobasin.Element.sample(None), "None: expected the form of a model, from cobasin.symmetry.form"),
        (
            lambda a, _: cobasin.Element.sample(form_of(Typed.of(a).spec), "3"),
            "seed '3': expected a whole number from 0",
        ),
        (lambda a, _: cobasin.Element.sample(form_of(Typed.of(a).spec), 0, "fnn"), "part 'fnn' .*; did you mean 'ffn'"),
        (lambda a, _: cobasin.Element.sample(form_of(Typed.of(a).spec), 0, ["ffn"]), r"part \['ffn'\] is none of the"),
        (lambda a, b: cobasin.transport(a, a, b, element=5), "5: expected an Element"),
        (lambda a, b: cobasin.transport(a, a, b, scale="x"), "scale 'x': expected a finite number"),
        (lambda a, b: cobasin.transport(a, a, b, scale=10**400), "scale 10+...0+: expected a finite number"),
        (lambda a, b: cobasin.verify(a, b, "x"), "tolerance .x.: expected a finite number"),
        (lambda *models: cobasin.loss_plane(models, None), "a plane goes through three models, got "),
        (lambda *_: cobasin.loss_plane(None, None), "a plane goes through three models, got None"),
        (lambda *_: cobasin.load_adapter(5), "adapter 5: expected a path"),
        (lambda *_: cobasin.load(""), "model '': expected a path"),
        (lambda *_: cobasin.Element.load(5), "element 5: expected a path"),
        (lambda a, b: cobasin.match(a, b, method="learned", state=""), "state '': expected a path"),
        (lambda a, b: cobasin.match(a, b, method="activations", data=""), "data: path: '': expected text that is not"),
        (lambda *_: cobasin.merge_recipe(""), "file '': expected a path"),
        (lambda a, _: cobasin.save(a, ""), "out '': expected a path"),
        (lambda a, _: cobasin.save(a, "a\ud800"), r"out 'a\\ud800': expected a path"),
        (lambda a, b: cobasin.match(a, b, "ffn").save("a\0b"), r"'a\\x00b': expected a path"),
        (
            lambda *_: cobasin.load(*headed(torch.Tensor.to_sparse)),
            "lm_head.weight is of layout torch.sparse_coo; expected",
        ),
        (
            lambda *models: cobasin.verify(models[0], cobasin.merge(models, symmetry="none")),
            r"from Merge; expected .*; it has the model within, as \.checkpoint$",
        ),
        (lambda a, _: cobasin.match(model(CASE).to(torch.complex64), a), "has dtype torch.complex64, expected float64"),
        (lambda *_: cobasin.load(*headed(lambda t: t + 0j)), "lm_head.weight is torch.complex128, a type that cobasin"),
    ],
)
def test_refused(call, message):
    with pytest.raises(InputError, match=message):
        call(checkpoint(CASE, 0), checkpoint(CASE, 1))


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_numbers_and_paths_of_other_libraries_are_taken(tmp_path):
    a, b = checkpoint(CASE, 0), checkpoint(CASE, 1)
    assert cobasin.verify(a, a, np.float32(0.5)).same is True
    cobasin.transport(a, a, b, symmetry="ffn", scale=np.float16(0.5))
    element = cobasin.match(a, b, "ffn")
    assert cobasin.merge([a, b], symmetry="none", weights=np.array([1, 3])).weights == [0.25, 0.75]
    element.save(PurePath(tmp_path / "element"))
    assert cobasin.Element.load(PurePath(tmp_path / "element")).values.keys() == element.values.keys()


def test_what_matching_returns_is_shown_in_a_few_lines():
    found = cobasin.match_all([checkpoint(CASE, 0), checkpoint(CASE, 1)], "ffn", anchor=0)
    assert "<Typed Checkpoint(" in repr(found)
    assert len(repr(found)) < 1500


def test_an_element_is_not_written_where_there_is_no_folder(tmp_path):
    element = cobasin.match(model(CASE, 1), model(CASE, 0), symmetry="ffn")
    with pytest.raises(InputError, match=r"there is no folder .*nowhere; make it first"):
        element.save(tmp_path / "nowhere" / "element")


def test_an_element_is_read_from_the_folder_of_its_model(tmp_path):
    element = cobasin.match(model(CASE, 1), model(CASE, 0), symmetry="ffn")
    (tmp_path / "matched").mkdir()
    element.save(tmp_path / "matched")
    for path in (tmp_path / "matched", tmp_path / "matched" / "cobasin.safetensors"):
        again = cobasin.Element.load(path)
        assert all(
            torch.equal(x, again.values[key][part]) for key, v in element.values.items() for part, x in v.items()
        )
    with pytest.raises(InputError, match="is not there"):
        cobasin.Element.load(tmp_path)


def test_data_is_given_by_its_path_by_its_keys_or_as_rows(tmp_path):
    rows = [{"input_ids": [i, i + 1, 5, 7]} for i in range(6)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ends = checkpoint(CASE, 1), checkpoint(CASE, 0)
    found = [
        cobasin.match(*ends, symmetry="ffn", method="activations", data=data).report["distance_after"]
        for data in (rows, path, str(path), {"path": path}, {"path": str(path), "columns": {"input_ids": "input_ids"}})
    ]
    assert len(set(found)) == 1
    assert found[0] != cobasin.match(*ends, symmetry="ffn", method="activations").report["distance_after"]


def test_any_model_is_written_and_any_iterable_matched(tmp_path):
    made = model(CASE)
    made.generation_config.num_beams = 3
    cobasin.save(made, tmp_path / "a")
    cobasin.save(tmp_path / "a", tmp_path / "b")
    cobasin.save(cobasin.merge([made, made], symmetry="none").checkpoint, tmp_path / "c")
    assert {GenerationConfig.from_pretrained(tmp_path / name).num_beams for name in "abc"} == {3}
    assert all(tensor.equal(made.state_dict()[name]) for name, tensor in cobasin.load(tmp_path / "b").items())
    assert len(cobasin.match_all(tmp_path / name for name in "ab").elements) == 2


def test_models_are_built_in_several_threads():
    """Each whole and in its dtype: transformers changes torch's default dtype and how weights are tied for all."""
    made = checkpoint("gpt2/GPT2LMHeadModel", 0, torch.float32)
    dtype, tie = torch.get_default_dtype(), PreTrainedModel.tie_weights
    with ThreadPoolExecutor(4) as threads:
        models = list(threads.map(instantiate, [made] * 16, [torch.float64] * 16))
    assert all(one.lm_head.weight is one.transformer.wte.weight for one in models)
    assert all(
        buffer.dtype == torch.float64 for one in models for buffer in one.buffers() if buffer.is_floating_point()
    )
    assert torch.get_default_dtype() == dtype
    assert PreTrainedModel.tie_weights is tie


def test_numbers_of_numpy_and_anything_that_gives_weights():
    """What Python takes for whole numbers, or for a row of numbers, is taken."""
    pair = [checkpoint(CASE, seed, torch.float32) for seed in (1, 2)]
    asked = {"method": "activations", "samples": 4, "seed": 1}
    plain = cobasin.match(*pair, **asked)
    same = cobasin.match(*pair, **asked | {"samples": np.int64(4), "seed": np.int32(1)})
    assert same.report["objective"] == plain.report["objective"]
    json.dumps(same.report)
    many = cobasin.match_all(pair, anchor=np.int64(1), symmetry="ffn")
    assert json.loads(json.dumps(many.report))["anchor"] == 1
    weights = [0.25, 0.75]
    plain = cobasin.merge(pair, symmetry="ffn", anchor=1, weights=weights)
    for given in ((weight for weight in weights), np.array(weights)):
        same = cobasin.merge(pair, symmetry="ffn", anchor=np.int64(1), weights=given)
        assert all(x.equal(plain.checkpoint[name]) for name, x in same.checkpoint.items())


def test_settings_of_a_merge_may_be_numbers_of_numpy():
    pair = [checkpoint(CASE, seed, torch.float32) for seed in (1, 2)]
    plain = cobasin.merge(pair, "slerp", symmetry="none", t=0.25, heal={"steps": 1, "samples": 8})
    heal = {"steps": np.int64(1), "samples": np.int32(8)}
    for given in ({"t": np.float32(0.25)}, {"t": [np.float64(0.25), np.float32(0.25)]}):
        same = cobasin.merge(pair, "slerp", symmetry="none", heal=heal, **given)
        assert all(x.equal(plain.checkpoint[name]) for name, x in same.checkpoint.items())
