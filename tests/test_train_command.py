"""The command that trains the models of the benchmarks."""

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
import transformers
import yaml

from command_line import snapshot, stock
from real_models import shared

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
train, data, texts = (import_module(name) for name in ("train", "training.data", "training.texts"))

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
TRAINING = {"max_steps": 2, "per_device_train_batch_size": 4, "learning_rate": 1e-2}
FAMILIES = {
    "causal": {
        "architecture": "LlamaForCausalLM",
        "config": {"model_type": "llama", "max_position_embeddings": 8, **SIZES},
        "data": "tinyshakespeare",
    },
    "masked": {
        "architecture": "BertForMaskedLM",
        "config": {"model_type": "bert", "max_position_embeddings": 8, **SIZES},
        "data": "tinyshakespeare",
    },
    "images": {
        "architecture": "ViTForImageClassification",
        "config": {"model_type": "vit", "image_size": 8, "patch_size": 4, "num_labels": 10, **SIZES},
        "data": "cifar10",
        "held_out": 4,
        "padding": 1,
    },
}
LOADER = """
import numpy as np
def cifar10():
    draw = np.random.default_rng(0)
    return draw.integers(0, 256, (24, 10, 10, 3), np.uint8), np.arange(24) % 10, None, None
"""


@pytest.fixture
def world(tmp_path):
    """A folder with data, and the files of families."""
    text = tmp_path / "data/lm/tinyshakespeare"
    text.mkdir(parents=True)
    (text / "train.txt").write_text("To be, or not to be, that is the question:\n" * 3)
    (text / "dev.txt").write_text("to be, or not to be, that is")
    (tmp_path / "data/vision").mkdir()
    (tmp_path / "data/vision/cifar10_jpeg.npz").touch()
    (tmp_path / "data/load.py").write_text(LOADER)
    for name, family in FAMILIES.items():
        write(tmp_path, name, family)
    return tmp_path


def write(world, name, family, **changes):
    family = {"folder": f"{name}-", "training": TRAINING} | family | changes
    (world / f"{name}.yaml").write_text(yaml.safe_dump(family))


def run(world, name, seed=0, out="out"):
    return train.main([str(name), "--seed", str(seed), "--shared", str(world), "--out", str(world / out)])


def refused(world, capsys, name, seed=0):
    """The one line with which it is refused; nothing is written."""
    before = snapshot(world)
    assert run(world, name, seed) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert snapshot(world) == before
    return line


@pytest.mark.parametrize(("kind", "file"), [("causal", "chars.json"), ("masked", "tokenizer.json"), ("images", None)])
def test_seed_makes_the_model(world, kind, file, capsys):
    for seed, out in ((0, "out"), (1, "out"), (0, "again")):
        assert run(world, world / f"{kind}.yaml", seed, out) == 0
    first, other, again = (world / path for path in (f"out/{kind}-0", f"out/{kind}-1", f"again/{kind}-0"))
    weights = [(folder / "model.safetensors").read_bytes() for folder in (first, other, again)]
    assert weights[0] == weights[2] != weights[1]
    assert (first / "config.json").read_text() == (other / "config.json").read_text()
    record = json.loads((first / "training.json").read_text())
    assert record["seed"] == 0
    assert record["training"] == TRAINING
    assert record["dev"]["loss"] > 0
    assert ("accuracy" in record["dev"]) == (kind == "images")
    assert stock(first).num_parameters() > 0
    assert file is None or (first / file).exists()
    assert {path.name for path in (world / "out").iterdir()} == {f"{kind}-0", f"{kind}-1"}  # nothing half done
    printed = capsys.readouterr().out
    assert f"{stock(first).num_parameters():,} parameters: 2 steps of 4 out of" in printed
    assert json.dumps(record["dev"]) in printed


def test_weight_decay_of_norms_too(world):
    """So much of it that a step of Adam, of the learning rate in size, cannot hide it."""
    training = TRAINING | {"weight_decay": 20.0}
    gains = []
    for decay_all in (False, True):
        write(world, f"decaying-{decay_all}", FAMILIES["causal"], training=training, decay_all=decay_all)
        assert run(world, world / f"decaying-{decay_all}.yaml") == 0
        gains.append(stock(world / f"out/decaying-{decay_all}-0").model.norm.weight)
    assert (gains[0] > 0.95).all()
    assert (gains[1] < 0.9).all()


def test_all_texts_by_pieces_of_words(world, monkeypatch):
    """Emotions, pairs, sentences and plays; nothing of a test set. Two seeds read the same tokens."""
    emotion, ner, glue = (world / "data" / name for name in ("emotion/a", "ner/b", "glue/c"))
    for folder in (emotion, ner, glue):
        folder.mkdir(parents=True)
    for split in ("train", "dev", "test"):
        word = "zebra" if split == "test" else "question"
        (emotion / f"{split}.jsonl").write_text(json.dumps({"text": f"the {word} of joy", "labels": ["joy"]}) + "\n")
        (glue / f"{split}.jsonl").write_text(json.dumps({"text": f"a {word}", "text_b": "an answer"}) + "\n")
        (ner / f"{split}.conll").write_text(f"Paris\tB-LOC\n{word}\tO\n\n")
    found = texts.texts(world, 8, masked=True)
    tokenizer = found.train.tokenizer
    assert tokenizer.decode(found.train.windows[0]) == "the question of joy a question"
    pieces = tokenizer.get_vocab()
    assert sorted(pieces.values()) == list(range(found.vocabulary))
    assert {"question", "answer", "paris"} <= pieces.keys()
    assert "zebra" not in pieces
    with monkeypatch.context() as patched:
        patched.setattr(texts, "VOCABULARY", 0)  # then there are characters
        fewer = texts.texts(world, 8, masked=True).train.tokenizer.get_vocab()
    assert {"q", "##q", "[MASK]"} <= fewer.keys()
    assert "question" not in fewer
    write(world, "words", FAMILIES["masked"], data="texts")
    for seed in (0, 1):
        assert run(world, world / "words.yaml", seed) == 0
    first, other = (world / f"out/words-{seed}" for seed in (0, 1))
    assert stock(first).config.vocab_size == len(pieces)
    assert stock(first).config.pad_token_id == pieces["[PAD]"]
    assert (first / "tokenizer.json").read_text() == (other / "tokenizer.json").read_text()


def test_next_tokens_of_texts_with_their_ends(world):
    """A causal model sees where texts begin and end, and knows these tokens by their names."""
    (world / "data/emotion/a").mkdir(parents=True)
    for split in ("train", "dev"):
        (world / f"data/emotion/a/{split}.jsonl").write_text('{"text": "to be"}\n{"text": "that is"}\n')
    write(world, "words", FAMILIES["causal"], data="texts")
    assert run(world, world / "words.yaml") == 0
    found = texts.texts(world, 8, masked=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(world / "out/words-0")
    assert tokenizer.decode(found.train.windows[0]) == "[CLS] to be [SEP] [CLS] that is [SEP]"
    config = stock(world / "out/words-0").config
    tokens = [config.pad_token_id, config.bos_token_id, config.eos_token_id]
    assert tokens == tokenizer.convert_tokens_to_ids(["[PAD]", "[CLS]", "[SEP]"])
    assert not hasattr(config, "cls_token_id")  # a Llama knows of none


def untrained(family, seed, folder):
    config = family.made_config()
    family.read_data(config, folder)
    return family.model(seed, config)


def test_training_changes_weights_and_leaves_the_config(world):
    start = untrained(train.Family.read(str(world / "images.yaml")), 0, world)
    start.save_pretrained(world / "start")
    assert run(world, world / "images.yaml") == 0
    trained, start = (stock(world / folder).state_dict() for folder in ("out/images-0", "start"))
    assert all((trained[name] != start[name]).any() for name in start)
    assert (world / "out/images-0/config.json").read_text() == (world / "start/config.json").read_text()


def test_a_finished_model_is_left_alone(world, capsys):
    assert run(world, world / "causal.yaml") == 0
    before = snapshot(world)
    (world / "data/lm/tinyshakespeare/train.txt").rename(world / "away.txt")  # not even read
    capsys.readouterr()
    assert run(world, world / "causal.yaml") == 0
    assert "is trained already" in capsys.readouterr().out
    (world / "away.txt").rename(world / "data/lm/tinyshakespeare/train.txt")
    assert snapshot(world) == before


def test_a_model_of_other_settings_is_not_taken_for_it(world, capsys):
    assert run(world, world / "causal.yaml") == 0
    text = (world / "causal.yaml").read_text()
    changed = text.replace("max_steps: ", "max_steps: 1")
    assert changed != text
    (world / "causal.yaml").write_text(changed)
    capsys.readouterr()
    assert run(world, world / "causal.yaml") == 2
    assert "was trained with another training; remove it to train it anew" in capsys.readouterr().err
    (record,) = world.rglob("training.json")
    record.write_text("{")
    assert run(world, world / "causal.yaml") == 2
    assert f"{record}: is not valid JSON" in capsys.readouterr().err


def test_what_was_trained_before_norms_could_decay_is_still_taken(world, capsys):
    assert run(world, world / "causal.yaml") == 0
    path = world / "out/causal-0/training.json"
    record = json.loads(path.read_text())
    assert record.pop("decay_all") is False
    path.write_text(json.dumps(record))
    assert run(world, world / "causal.yaml") == 0
    assert "is trained already" in capsys.readouterr().out
    write(world, "causal", FAMILIES["causal"], decay_all=True)
    assert run(world, world / "causal.yaml") == 2
    assert "was trained with another decay_all" in capsys.readouterr().err


def test_an_interrupted_run_leaves_nothing_and_can_be_started_again(world, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(transformers.Trainer, "evaluate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(world, world / "causal.yaml")
    assert not list(world.glob("out/**/*"))
    assert run(world, world / "causal.yaml") == 0


def test_what_cannot_be_trained_is_refused_in_one_line(world, capsys):
    line = refused(world, capsys, "gpt5")
    assert "gpt5: no such family; choose one of" in line
    assert "gpt2-shakespeare" in line
    assert "away.yaml: cannot be read" in refused(world, capsys, world / "away.yaml")
    assert "--seed -1" in refused(world, capsys, world / "causal.yaml", -1)
    for name, changes, text in (
        ("key", {"colour": "red"}, "colour: 'red': Extra inputs"),
        ("data", {"data": "mnist"}, "data: 'mnist': expected 'cifar10', 'tinyshakespeare' or 'texts'"),
        ("steps", {"training": {}}, "max_steps is missing"),
        ("argument", {"training": {"max_steps": 2, "rate": 1}}, "training: "),
        ("class", {"architecture": "GPT5LMHeadModel"}, "GPT5LMHeadModel: cannot be made"),
        ("type", {"config": {**FAMILIES["causal"]["config"], "model_type": "gpt5"}}, "config: Unrecognized"),
    ):
        write(world, name, FAMILIES["causal"], **changes)
        assert text in refused(world, capsys, world / f"{name}.yaml")
    write(world, "size", FAMILIES["images"], config={**FAMILIES["images"]["config"], "image_size": 12})
    assert "image_size 12; the images have 10 pixels" in refused(world, capsys, world / "size.yaml")
    (world / "out/causal-0").mkdir(parents=True)
    (world / "out/causal-0/mine").touch()
    assert "is not empty" in refused(world, capsys, world / "causal.yaml")
    (world / "data/lm/tinyshakespeare/dev.txt").unlink()
    assert "dev.txt: no such file" in refused(world, capsys, world / "causal.yaml", 1)
    (world / "data/vision/cifar10_jpeg.npz").unlink()
    write(world, "words", FAMILIES["masked"], data="texts")
    (world / "data/lm/tinyshakespeare/train.txt").unlink()
    assert "no texts in it" in refused(world, capsys, world / "words.yaml")
    assert "cifar10_jpeg.npz: no such file" in refused(world, capsys, world / "images.yaml")


def test_images_are_cut_at_random_only_for_training():
    images = torch.arange(2 * 3 * 4 * 4, dtype=torch.uint8).view(2, 3, 4, 4)
    labels = torch.tensor([3, 5])
    batch = data.Images(images, labels, 2, random=False).__getitems__([1])
    mean, deviation = (torch.tensor(x)[:, None, None] for x in ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)))
    torch.testing.assert_close(batch["pixel_values"][0], (images[1, :, 1:3, 1:3] / 255 - mean) / deviation)
    assert batch["labels"].tolist() == [5]
    torch.manual_seed(0)
    pixels = data.Images(images, labels, 2, random=True).__getitems__([1] * 500)["pixel_values"]
    found = {tuple(square) for square in ((pixels * deviation + mean) * 255).round().int()[:, 0].flatten(1).tolist()}
    squares = [images[1, 0, i : i + 2, j : j + 2] for i in range(3) for j in range(3)]
    assert found == {tuple(x.flatten().tolist()) for square in squares for x in (square, square.flip(-1))}


def test_the_first_token_of_a_block_is_not_predicted():
    batch = data.Blocks(torch.arange(11), 4).__getitems__([1])
    assert batch["input_ids"].tolist() == [[4, 5, 6, 7]]
    assert batch["labels"].tolist() == [[-100, 5, 6, 7]]


def test_masks_are_drawn_anew_for_training_and_kept_for_dev():
    tokenizer = data.characters("abcd\n", 8)
    ids = torch.tensor(tokenizer.convert_tokens_to_ids(list("abcd\n" * 20)))
    kept, drawn = data.MaskedWindows(ids, 8, 1, tokenizer, seed=0), data.MaskedWindows(ids, 8, 1, tokenizer)
    rows = list(range(len(kept)))
    first, again = kept.__getitems__(rows), kept.__getitems__(rows)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(*(drawn.__getitems__(rows)["labels"] for _ in range(2)))
    masked = first["labels"] != -100
    assert 0.1 < masked[:, 1:-1].double().mean() < 0.2
    assert not masked[:, [0, -1]].any()
    text = torch.where(masked, first["labels"], first["input_ids"])
    assert tokenizer.decode(text[0]) == "[CLS]abcd\na[SEP]"
    assert tokenizer("abcd\na")["input_ids"] == text[0].tolist()


@pytest.mark.parametrize("name", ["gpt2-shakespeare", "llama-shakespeare", "cifar10-vit"])
def test_families_extend_the_shared_models(name, tmp_path):
    family = train.Family.read(name)
    there = shared("models", f"{family.folder}0")
    config = family.made_config()
    if family.data != "cifar10":
        family.read_data(config, shared()).beside(tmp_path)
        assert (tmp_path / "chars.json").read_text() == (there / "chars.json").read_text()
    family.model(2, config).save_pretrained(tmp_path)
    files = [path.name for path in there.glob("*config.json")]
    assert files
    for file in files:
        made, found = (json.loads((folder / file).read_text()) for folder in (tmp_path, there))
        if name == "cifar10-vit":  # of the start, which the shared models' configs do not tell
            made["initializer_range"] = found["initializer_range"]
        made["transformers_version"] = found["transformers_version"]  # of the one that wrote it
        assert made == found


@pytest.mark.parametrize("name", train.names())
def test_every_family_can_be_made(name):
    family = train.Family.read(name)
    assert family.arguments(0).max_steps > 0
    with torch.device("meta"):
        assert family.model(0, family.made_config()).num_parameters() > 0
