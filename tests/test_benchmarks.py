"""The benchmarks on trained models, run on tiny models and tiny data: what they print and write was measured."""

import json
import re
import shutil
import sys
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import transformers
from torch.nn.functional import cross_entropy

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.typed import Typed
from cobasin.checkpoints.writer import save
from cobasin.comparing.distance import distance
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import form_of

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
families, measuring, results = (import_module(f"common.{name}") for name in ("families", "measuring", "results"))
options_of = import_module("common.measured").options_of
Ensemble = import_module("common.ensemble").Ensemble
CHARS = "abcdefgh"
VIT, GPT2, BERT = "cifar10-vit", "gpt2-shakespeare", "bert-shakespeare"
CIFAR = """
import numpy as np
from pathlib import Path

def cifar10():
    return list(np.load(Path(__file__).with_name("images.npz")).values())
"""


def vit():
    config = transformers.ViTConfig(
        image_size=24,
        patch_size=12,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=6,
        id2label={i: str(i) for i in range(10)},
    )
    return transformers.ViTForImageClassification(config)


def bert():
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 6}
    config = transformers.BertConfig(vocab_size=len(CHARS) + 5, max_position_embeddings=16, **sizes)
    return transformers.BertForMaskedLM(config)


def gpt2():
    sizes = {"vocab_size": len(CHARS), "n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 2}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))


@torch.no_grad()
def labels(folder, images):
    """What model 0 says: of it there is a barrier."""
    model = transformers.ViTForImageClassification.from_pretrained(folder / "models" / "cifar10-vit-seed0")
    mean, deviation = (torch.tensor(values) for values in (families.MEAN, families.DEVIATION))
    pixels = ((images[:, 4:28, 4:28] / 255 - mean) / deviation).permute(0, 3, 1, 2)
    return model(pixel_values=pixels).logits.argmax(1).numpy()


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Data and models as they lie beside the project: of each family two, and one moved without another function."""
    folder = tmp_path_factory.mktemp("shared")
    text = folder / "data" / "lm" / "tinyshakespeare"
    text.mkdir(parents=True)
    (folder / "data" / "load.py").write_text(CIFAR)
    (folder / "data" / "vision").mkdir()
    (folder / "data" / "vision" / "cifar10_jpeg.npz").touch()
    generator = torch.Generator().manual_seed(0)
    for split, length in (("train", 1500), ("dev", 170), ("test", 200)):
        ids = torch.randint(len(CHARS), (length,), generator=generator).tolist()
        (text / f"{split}.txt").write_text("".join(CHARS[i] for i in ids))
    tokenizer = import_module("training.data").characters(CHARS, 16)
    for make, name in ((vit, "cifar10-vit-seed"), (gpt2, "gpt2-shakespeare-"), (bert, "bert-shakespeare-")):
        for seed in (0, 1, 2):
            transformers.set_seed(seed)
            made = make()
            with torch.no_grad():
                for parameter in made.parameters():
                    parameter.add_(0.3 * torch.randn_like(parameter))
            made.save_pretrained(folder / "models" / f"{name}{seed}")
            (folder / "models" / f"{name}{seed}" / "chars.json").write_text(json.dumps(list(CHARS)))
            if make is bert:
                tokenizer.save_pretrained(folder / "models" / f"{name}{seed}")
    train, test = (torch.randint(256, (rows, 32, 32, 3), generator=generator) for rows in (80, 40))
    np.savez(folder / "data" / "images.npz", train.byte(), labels(folder, train), test.byte(), labels(folder, test))
    for name, folded in (("cifar10-vit-seed", True), ("gpt2-shakespeare-", False)):
        typed = Typed.of(load(folder / "models" / f"{name}0"))
        element = Element.sample(form_of(typed.spec, folded=folded), 5)
        save(typed.derived(element.apply(typed)), folder / "models" / f"{name}9")
    return folder


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr("cobasin.matching.weights.MAX_ROUNDS", 5)
    monkeypatch.setattr("cobasin.matching.weights.run_jobs", lambda jobs, **_: [job() for job in jobs])
    monkeypatch.setattr("cobasin.matching.many.MAX_SWEEPS", 1)
    monkeypatch.setattr(measuring, "loss_path", partial(measuring.loss_path, points=5))
    monkeypatch.setattr("cobasin.data.writing.LONGEST", 12)
    monkeypatch.setattr("rich.console.Console.width", 400)


def run(name, shared, out, *options):
    arguments = ["--shared", shared, "--out", out, "--seeds", 1, *options]
    import_module(name).main([str(argument) for argument in arguments])


def few(*options):
    return ("--steps", 2, "--train", 48, *options)


def written(path):
    return json.loads(path.read_text())


def measured(out, name, seeds, way="match", **of):
    """The rows of models of these seeds."""
    rows = [row for row in written(out / f"measured-{name}.json") if list(row["of"]["models"]) == list(seeds)]
    return [row for row in rows if row["of"]["way"] == way and of.items() <= row["of"].items()]


def test_tasks_measure_what_the_models_say(shared, tmp_path):
    """Accuracy and loss of images, of characters, and of masked ones, computed anew; the dev data are others."""
    for name, rows in ((VIT, (40, 8)), (GPT2, (180, 150)), (BERT, None)):
        family = families.Family.all(shared, tmp_path / "models", [name])[0]
        model = getattr(transformers, family.training.architecture).from_pretrained(family.path(0))
        found = {}
        for dev in (False, True):
            task = family.task(10, dev)
            found[dev] = task.score(model)
            with torch.no_grad():
                pairs = [(model(**batch.inputs).logits, batch.labels) for batch in task.rows]
            if name == GPT2:
                pairs = [(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()) for logits, labels in pairs]
            if name == BERT:
                pairs = [(logits[labels != -100], labels[labels != -100]) for logits, labels in pairs]
            logits, labels = (torch.cat(side) for side in zip(*pairs, strict=True))
            assert found[dev]["loss"] == pytest.approx(cross_entropy(logits, labels).item(), rel=1e-5)
            assert found[dev]["accuracy"] == pytest.approx((logits.argmax(1) == labels).double().mean().item())
            assert name == BERT or len(labels) == rows[dev]
            if name == BERT:
                assert 0.1 < len(labels) / (170 if dev else 200) < 0.2
                assert [b.inputs["input_ids"].tolist() for b in family.task(10, dev).rows] == [
                    b.inputs["input_ids"].tolist() for b in task.rows
                ]
        assert found[False] != found[True]


def test_what_there_is_nothing_to_measure_on_is_left_out(tmp_path):
    found = {family.name for family in families.Family.all(tmp_path, tmp_path)}
    assert {VIT, GPT2, BERT} <= found
    assert not any(name.endswith("-words") for name in found)
    with pytest.raises(SystemExit, match="gpt2-words: is there to be fine-tuned"):
        families.Family.all(tmp_path, tmp_path, ["gpt2-words"])


def test_an_ensemble_is_the_mean_of_probabilities(shared, tmp_path):
    family = families.Family.all(shared, tmp_path / "models", [VIT])[0]
    task = family.task(10, False)
    found = families.parents(task, family.paths((0, 1)), torch.device("cpu"))
    models = [transformers.AutoModelForImageClassification.from_pretrained(family.path(seed)) for seed in (0, 1)]
    with torch.no_grad():
        mean = sum(model(**task.rows[0].inputs).logits.softmax(1) for model in models) / 2
    loss = -mean.log().gather(1, task.rows[0].labels[:, None]).mean().item()
    assert found["ensemble"]["loss"] == pytest.approx(loss, rel=1e-5)
    assert found["ensemble"]["loss"] < sum(each["loss"] for each in found["each"]) / 2
    assert found["each"][0] != found["each"][1]


def test_an_ensemble_asks_only_those_that_know_a_label():
    def model(*logits):
        answer = SimpleNamespace(logits=torch.tensor([logits]))
        return Mock(return_value=answer, config=None, device=torch.device("cpu"), dtype=torch.float32)

    models = [model(2.0, -1.0, 0.5), model(-3.0, 4.0, 0.1)]
    known = torch.tensor([[True, False, True], [False, True, True]])
    found, both = Ensemble(models, "multilabel", known)().logits[0], Ensemble(models, "multilabel")().logits[0]
    assert torch.allclose(found[:2], torch.tensor([2.0, 4.0]).double())
    assert torch.allclose(found[2], both[2])
    assert not torch.allclose(found[:2], both[:2], atol=0.5)


def test_what_was_measured_is_not_measured_again(tmp_path):
    found = results.Results(tmp_path / "some.json")
    assert found.get({"way": "a", "pair": (0, 1)}, lambda: time.sleep(0.02) or {"loss": 1.0})["loss"] == 1.0
    assert found.seconds >= 0.02
    assert found.rows[0]["versions"]["torch"] == torch.__version__
    with pytest.raises(ZeroDivisionError):
        found.get({"way": "b", "pair": (0, 1)}, lambda: {"loss": 1 / 0})
    again = results.Results(tmp_path / "some.json")
    assert again.get({"way": "a", "pair": (0, 1)}, lambda: {"loss": 2.0})["loss"] == 1.0
    assert again.get({"way": "b", "pair": (0, 1)}, lambda: {"loss": 3.0})["loss"] == 3.0
    assert again.get({"way": "a", "pair": (0, 2)}, lambda: {"loss": 4.0})["loss"] == 4.0
    rows = written(tmp_path / "some.json")
    assert [row["loss"] for row in rows] == [1.0, 3.0, 4.0]
    assert again.seconds == pytest.approx(sum(row["took"] for row in rows))  # also of what was found


def test_longer_is_twice_the_steps_and_is_asked_for():
    one_basin = import_module("one_basin")
    for data in ("made up", "training data"):
        usual, longer = f"learned, {data}", f"learned longer, {data}"
        assert options_of(one_basin.WAYS[longer], 10) == options_of(one_basin.WAYS[usual], 20)
        assert usual in one_basin.USUAL
        assert longer not in one_basin.USUAL
    assert options_of(one_basin.WAYS[one_basin.FEW], 2500)["steps"] == 500


def test_a_distance_counts_a_head_whether_it_is_tied_or_not():
    ends = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        ends.append(Typed.of(load(gpt2())))
    tied, untied = ([one.checkpoint for one in models] for models in (ends, [end.untied() for end in ends]))
    found, same = (measuring.distances(SimpleNamespace(ends=models)) for models in (tied, untied))
    assert found == pytest.approx(same)
    assert found["distance_files"] > 1.01 * distance(*tied).files


def test_one_basin(shared, tmp_path, capsys, monkeypatch):
    chosen = ("paper", "weights", "learned, training data")
    ways = [part for name in chosen for part in ("--way", name)]
    options = ("--family", VIT, "--pair", "0,1", "--pair", "0,9", "--pair", "0,7", "--seeds", 2, *ways, *few())
    run("one_basin", shared, tmp_path, *options)
    shown = capsys.readouterr()
    assert "expected: about" in shown.err
    assert re.search(r"0,7: skipped, there is no model of seed 7; .*train.py cifar10-vit --seed 7", shown.err)
    for name in chosen:
        assert name in shown.out
    rows = measured(tmp_path, VIT, "01") + measured(tmp_path, VIT, "09")
    assert all(row["function_kept"] and row["loads"] for row in rows)
    assert "CHANGED" not in shown.out
    assert "pair 0-9" in shown.out
    assert (tmp_path / f"one_basin-{VIT}.png").read_bytes().startswith(b"\x89PNG")
    (copy,) = measured(tmp_path, VIT, "09", options={})  # of the model that is the anchor, moved
    (raw,) = measured(tmp_path, VIT, "09", "none")
    assert copy["distance_canonical"] < 1e-3
    assert copy["barrier"] < min(1e-4, 0.01 * raw["barrier"])
    (parents,) = measured(tmp_path, VIT, "09", "parents")
    assert copy["loss"] == pytest.approx(parents["each"][0]["loss"], rel=1e-4)
    assert raw["distance_canonical"] > 1
    seeds = {pair: [r["of"]["seed"] for r in measured(tmp_path, VIT, pair, train=48)] for pair in ("01", "09")}
    assert seeds == {"01": [0, 1], "09": [0, 1]}
    assert len(measured(tmp_path, VIT, "01", options={})) == 1  # deterministic
    # interrupted and started again: nothing is matched anew, and the same is shown
    monkeypatch.setattr(measuring, "match_all", None)
    run("one_basin", shared, tmp_path, *options)
    assert capsys.readouterr().out == shown.out


def test_ladder(shared, tmp_path, capsys, monkeypatch):
    ladder = import_module("ladder")
    left_out = ("+ rotation", "+ activations", "+ learned")
    monkeypatch.setattr(ladder, "RUNGS", {name: way for name, way in ladder.RUNGS.items() if name not in left_out})
    run("ladder", shared, tmp_path, "--family", GPT2, "--pair", "0,1", *few())
    shown = capsys.readouterr()
    assert all(line in shown.out for line in ("none", *ladder.RUNGS))
    distance = {
        rung: measured(tmp_path, GPT2, "01", options=way)[0]["distance_canonical"] for rung, way in ladder.RUNGS.items()
    }
    (raw,) = measured(tmp_path, GPT2, "01", "none")
    assert distance["FFN"] < raw["distance_canonical"]
    assert distance["+ residual orthogonal"] < distance["+ heads"]
    rows = measured(tmp_path, GPT2, "01")
    assert len({row["loss"] for row in [raw, *rows]}) > 5
    assert all(row["function_kept"] for row in rows)


def test_three(shared, tmp_path, capsys, monkeypatch):
    three = import_module("three")
    names = ("consensus", "learned from the medoid")
    monkeypatch.setattr(three, "WAYS", {name: three.WAYS[name] for name in names} | {"the first": {"anchor": 0}})
    monkeypatch.setattr(three, "permutations", lambda models: [models, models[::-1]])
    run("three", shared, tmp_path, "--family", VIT, *few())
    shown = capsys.readouterr().out
    assert "2 DIFFERENT" in shown
    assert re.search(r"parents +│ (\d\.\d{3}, ){2}\d\.\d{3} +│", shown)
    assert {
        name: len({*measured(tmp_path, VIT, "012", "orders", options=options_of(way, 10))[0]["hashes"]})
        for name, way in three.WAYS.items()
    } == {**dict.fromkeys(names, 1), "the first": 2}
    (parents,) = measured(tmp_path, VIT, "012", "parents")
    assert len(parents["each"]) == 3


def test_stacks(shared, tmp_path, capsys):
    """With layers of a model that has the same function: matched every stack is that, as they are none but the ends."""
    stacks, own = import_module("stacks"), tmp_path / "shared"
    shutil.copytree(shared, own)
    transformers.set_seed(0)
    config = gpt2().config
    config.n_layer = 2
    made = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    made.save_pretrained(own / "models" / "gpt2-shakespeare-0")
    typed = Typed.of(load(made))
    moved = Element.sample(form_of(typed.spec, folded=False), 5).apply(typed)
    save(typed.derived(moved), own / "models" / "gpt2-shakespeare-9", overwrite=True)
    stacks.main(["--shared", str(own), "--out", str(tmp_path), "--family", GPT2, "--pair", "0,9"])
    found = {row["of"]["way"]: [score["loss"] for score in row["scores"]] for row in written(tmp_path / "stacks.json")}
    assert list(found) == stacks.USUAL
    first, between, last = found["none"]
    assert (first, found["weights"]) == (pytest.approx(last, rel=1e-4), pytest.approx([last] * 3, rel=1e-4))
    assert abs(between - last) > 1e-2
    assert f"{between:.3f}" in capsys.readouterr().out


def test_equal_cost(shared, tmp_path, capsys):
    run("equal_cost", shared, tmp_path, "--family", GPT2, "--pair", "0,1", *few())
    shown = " ".join(capsys.readouterr().out.split())
    equal_cost = import_module("equal_cost")
    trained = measured(tmp_path, GPT2, "01", "train")
    assert {(row["of"]["start"], row["of"]["target"]) for row in trained} == {*equal_cost.TRAINED}
    assert all(f"{start}, trained, {target}" in shown for start, target in equal_cost.TRAINED)
    (trained,) = measured(tmp_path, GPT2, "01", "train", start="better parent", target="labels")
    (parents,) = measured(tmp_path, GPT2, "01", "parents")
    assert trained["loss"] != parents["each"][0]["loss"]
    assert "without labels matching" in shown.lower()


def test_transport(shared, tmp_path, capsys, monkeypatch):
    """To a base with the same function, matched, the fine-tune itself is carried; as it is, something else."""
    transport = import_module("transport")
    ways = {"as it is": None, "weights": {}}
    for name, value in (("WAYS", ways), ("SCALES", (0.5, 1.0)), ("STEPS", 5), ("RATE", 0.1)):
        monkeypatch.setattr(transport, name, value)
    isear = tmp_path / "shared" / "data" / "emotion" / "isear"
    shutil.copytree(shared, tmp_path / "shared")
    isear.mkdir(parents=True)
    for split in ("train", "dev", "test"):
        (isear / f"{split}.jsonl").write_text("".join(json.dumps({"text": "aab?" * 20}) + "\n" for _ in range(20)))
    run("transport", tmp_path / "shared", tmp_path, "--family", GPT2, "--pair", "9,0")
    rows = written(tmp_path / f"transport-measured-{GPT2}.json")
    found = {row["of"].get("model") or row["of"]["way"]: row for row in rows}
    new, tuned, own = (found[name] for name in (transport.NEW, transport.OLD, transport.OWN))
    assert (transport.share(new, new, own), transport.share(own, new, own)) == (0.0, 1.0)
    carried = found["weights"]
    assert tuned["new"] < new["new"] - 0.5
    assert carried["scale"] == 1.0
    assert (carried["new"], carried["old"]) == pytest.approx((tuned["new"], tuned["old"]), rel=1e-4)
    assert found["as it is"]["new"] > tuned["new"] + 0.1
    assert "carried, weights" in capsys.readouterr().out
    # what another run has left unfinished is not shown
    left = [row | {"of": row["of"] | {"pair": [0, 9]}} for row in rows if row is not own]
    results.write(tmp_path / f"transport-measured-{GPT2}.json", [*left, *rows])
    run("transport", tmp_path / "shared", tmp_path, "--family", GPT2, "--pair", "9,0")
    assert "carried, weights" in capsys.readouterr().out


def test_identical(shared, tmp_path, monkeypatch):
    """Merged with its copy as they are a model is another; matched it is itself, by what does not mix neurons."""
    identical = import_module("identical")
    monkeypatch.setattr(identical, "FAMILY", GPT2)
    chosen = {name: identical.methods()[name] for name in ("linear", "fisher")}
    monkeypatch.setattr(identical, "methods", lambda: chosen)
    identical.main(["--shared", str(shared), "--out", str(tmp_path)])
    found = written(tmp_path / "identical.json")
    for row in found["merged"].values():
        assert row["full"]["change"] < 1e-4 < row["none"]["change"]
        assert row["full"]["loss"] == pytest.approx(found["model"], rel=1e-5)


def test_shares_of_images_are_all_images():
    federated = import_module("federated")
    labels = np.arange(600) % 10
    found = federated.shares(labels, 0)
    assert np.array_equal(np.sort(np.concatenate(found)), np.arange(600))
    assert all(map(np.array_equal, found, federated.shares(labels, 0)))
    assert not all(map(np.array_equal, found, federated.shares(labels, 1)))
    counts = np.stack([np.bincount(labels[rows], minlength=10) for rows in found])
    assert counts.std(0).mean() > 5  # of 20 images a class and client, if all had the same share


@pytest.mark.exhaustive
def test_federated(shared, tmp_path, capsys, monkeypatch):
    """The first average is that of the clients' models by their images; later rounds start from it."""
    federated = import_module("federated")
    ways = {name: federated.WAYS[name] for name in (federated.LARGEST, "average", "matched by weights")}
    for name, value in (("WAYS", ways), ("ALONE", 2), ("STEPS", 1), ("ROUNDS", 2), ("DEV_IMAGES", 8)):
        monkeypatch.setattr(federated, name, value)
    run("federated", shared, tmp_path)
    rows = written(tmp_path / "measured-federated.json")
    found = {(row["of"]["start"], row["of"]["way"]): row["scores"] for row in rows}
    assert len(found) == 1 + 2 * (1 + len(ways)) == 9
    (family,) = families.Family.all(shared, tmp_path / "models", [VIT])
    task, images = family.task(1, False), rows[0]["of"]["images"]
    assert sum(images) == 72
    for start in federated.STARTS:
        folders = [tmp_path / "models" / f"federated-0-{start.split()[0]}-{client}" for client in range(3)]
        clients = [transformers.ViTForImageClassification.from_pretrained(folder) for folder in folders]
        mean = {
            name: sum(count / 72 * client.state_dict()[name] for client, count in zip(clients, images, strict=True))
            for name in clients[0].state_dict()
        }
        each = [task.score(client)["loss"] for client in clients]
        assert found[start, federated.APART][0]["loss"] == pytest.approx(sum(each) / 3)
        assert found[start, federated.LARGEST][0]["loss"] == pytest.approx(each[images.index(max(images))])
        clients[0].load_state_dict(mean)
        assert found[start, "average"][0]["loss"] == pytest.approx(task.score(clients[0])["loss"], rel=1e-5)
        assert found[start, "average"][1] != found[start, "average"][0]
        assert found[start, "matched by weights"][0] != found[start, "average"][0]
    assert "starts of their own: matched by weights" in capsys.readouterr().out
