"""Real data sets in the form they are found in, read for small models, trained where there are any."""

from __future__ import annotations

import io
import json

import numpy as np
import torch
from data_models import bert, named, refusal
from PIL import Image

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.running import instantiate
from cobasin.data import DataConfig, batches, rows_of
from real_models import shared

FEW = {"samples": 24, "batch_size": 8, "seed": 0}
EMOTIONS = ("joy", "anger", "sadness", "disgust", "fear", "trust", "surprise", "love", "shame", "guilt")
ISEAR = ("joy", "fear", "anger", "sadness", "disgust", "shame", "guilt")


def test_isear():
    data = DataConfig(path=str(shared("data", "emotion", "isear")), split="dev")
    assert len(rows_of(data)) == 727
    labels = torch.cat([batch.labels for batch in batches(bert(**named(*ISEAR)), data, **FEW)])
    assert len(labels) == 24
    assert len(labels.unique()) > 3
    message = refusal(batches, bert(**named(*ISEAR[1:])), data, **FEW)
    assert "dev.jsonl: line" in message
    assert "label 'joy' is none of the model's (fear, " in message


def test_labels_of_a_larger_set():
    data = DataConfig(path=str(shared("data", "emotion", "isear", "dev.jsonl")), annotated=list(ISEAR))
    model = bert(problem_type="multi_label_classification", **named(*EMOTIONS))
    labels = torch.cat([batch.labels for batch in batches(model, data, **FEW)])
    unknown = [index for index, name in enumerate(EMOTIONS) if name not in ISEAR]
    assert labels[:, unknown].isnan().all()
    assert (labels.nansum(1) == 1).all()


def test_wnut17_with_its_own_and_coarse_tags():
    data = DataConfig(path=str(shared("data", "ner", "wnut17")), split="dev")
    rows = rows_of(data)
    assert (len(rows), sum(len(row["tokens"]) for row in rows)) == (1009, 15729)
    kinds = sorted({tag for row in rows for tag in row["tags"]} - {"O"})
    own = bert("ForTokenClassification", **named("O", *kinds))
    fine = torch.cat([batch.labels.flatten() for batch in batches(own, data, **{**FEW, "samples": 200})])
    coarse = json.loads(shared("data", "ner", "coarse_map.json").read_text())["wnut17"]
    shorter = [f"{prefix}-{kind}" for kind in ("PER", "ORG", "LOC", "MISC") for prefix in "BI"]
    model = bert("ForTokenClassification", **named("O", *shorter))
    renamed = data.model_copy(update={"labels": coarse})
    made = torch.cat([batch.labels.flatten() for batch in batches(model, renamed, **{**FEW, "samples": 200})])
    assert torch.equal(made < 1, fine < 1)  # no entity, or no word
    assert (made > 0).sum() > 20
    assert "is none of the model's" in refusal(batches, model, data, **{**FEW, "samples": 200})


def test_stsb():
    data = DataConfig(path=str(shared("data", "glue", "stsb")), split="dev")
    made = batches(bert(num_labels=1), data, samples=None, batch_size=500, seed=0)
    assert made.rows == 1500
    batch = next(iter(made))
    assert batch.inputs["token_type_ids"].any()
    assert 0 <= batch.labels.min() < 1
    assert 4 < batch.labels.max() <= 5


def test_shakespeare_by_word_pieces():
    data = DataConfig(path=str(shared("data", "lm", "tinyshakespeare")), split="dev", block=32)
    for head in ("ForMaskedLM", "LMHeadModel"):
        made = batches(bert(head), data, **FEW)
        assert made.rows == 24
        assert next(iter(made)).inputs["input_ids"].shape == (8, 32)


def test_shakespeare_by_characters(tmp_path):
    folder = shared("models", "gpt2-shakespeare-0")
    places = {char: place for place, char in enumerate(json.loads((folder / "chars.json").read_text()))}
    text = shared("data", "lm", "tinyshakespeare", "test.txt").read_text()[: 64 * 128]
    np.savez(tmp_path / "test.npz", ids=np.array([[places[char] for char in text]]))
    checkpoint = load(folder)
    data = DataConfig(path=str(tmp_path / "test.npz"), columns={"input_ids": "ids"})
    made = batches(checkpoint, data, samples=None, batch_size=32, seed=0)
    assert made.rows == 64
    model = instantiate(checkpoint, torch.float32)
    with torch.no_grad():
        loss = np.mean([model(**batch.inputs, labels=batch.labels).loss.item() for batch in made])
    assert 1.6 < loss < 2.1  # 1.818 on all of it; 4.2 by chance


def test_cifar(tmp_path):
    file = np.load(shared("data", "vision", "cifar10_jpeg.npz"))
    header, scan, ends = file["header"].tobytes(), file["test_scan"].tobytes(), file["test_end"].tolist()
    starts = [0, *ends]
    pictures = [Image.open(io.BytesIO(header + scan[starts[i] : starts[i + 1]])) for i in range(200)]
    np.savez(tmp_path / "test.npz", x=np.stack(pictures), y=file["y_test"][:200])
    checkpoint = load(shared("models", "cifar10-vit-seed0"))
    data = DataConfig(
        path=str(tmp_path / "test.npz"),
        columns={"image": "x", "label": "y"},
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        crop=24,
    )
    model = instantiate(checkpoint, torch.float32)
    with torch.no_grad():
        right = [
            (model(**batch.inputs).logits.argmax(1) == batch.labels)
            for batch in batches(checkpoint, data, samples=None, batch_size=100, seed=0)
        ]
    assert torch.cat(right).float().mean() > 0.55  # 0.65 on all of it


def test_images_of_another_kind():
    file = shared("data", "vision", "fashion_mnist.npz")
    data = DataConfig(path=str(file), columns={"image": "x_test", "label": "y_test"}, mean=[0], std=[1], crop=24)
    message = refusal(batches, load(shared("models", "cifar10-vit-seed0")), data, **FEW)
    assert "image has shape [28, 28, 1]; the model reads [height, width, 3]" in message
