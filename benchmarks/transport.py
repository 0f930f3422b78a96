"""What another base can use of a fine-tune: task vectors, carried as they are and matched.

    python benchmarks/transport.py [--family gpt2-shakespeare] [--pair 0,1] [--dev]

A base is fine-tuned on another kind of text than it has read, characters that people wrote about an emotion (ISEAR),
and what it has learned is added to a base that was trained from another seed. How many times, is chosen on dev text.
The share of the gain is that of the fine-tune of the new base itself, in loss. Pairs are of the new base and the old.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.checkpoints.output import publishing
from cobasin.checkpoints.running import instantiate
from cobasin.data import Batch, DataConfig, batches, rows_of
from cobasin.evaluation.blend import Blend
from cobasin.evaluation.tasks import evaluate
from cobasin.finding.match import match
from cobasin.finding.transport import transport
from cobasin.symmetry.element import Element
from common.families import Family, blocks
from common.measured import Row
from common.results import Results
from common.showing import Table, announce, pair_of, parser, spread
from common.tuning import fine_tune

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FAMILIES = ["gpt2-shakespeare", "llama-shakespeare"]
STEPS, SIZE, RATE = 300, 16, 1e-3
SCALES = (0.25, 0.5, 0.75, 1.0)
WAYS: Mapping[str, Mapping[str, Any] | None] = {
    "as it is": None,
    "paper": {"symmetry": "paper"},
    "weights": {},
    "activations, made up": {"method": "activations"},
    "learned, made up": {"method": "learned", "symmetry": "gl", "steps": 500, "samples": 128},
}
NEW, OLD, OWN = "the new base", "the fine-tune of the old base", "the fine-tune of the new base"
MINUTES = {"pair": 8.0, "seed": 6.0}  # all matching; two fine-tunes and what is carried


class Texts:
    """Blocks of characters of both kinds of text, as long as the models read.

    Args:
        shared: folder with ``data``.
        folder: of a model, which knows the characters.
        split: ``dev`` or ``test``.
    """

    def __init__(self, shared: Path, folder: Path, split: str):
        emotion = shared / "data" / "emotion" / "isear"
        old = (shared / "data" / "lm" / "tinyshakespeare" / f"{split}.txt").read_text("utf-8")
        texts = [*(_joined(emotion / f"{name}.jsonl") for name in ("train", "dev", split)), old]
        self.train, *rest = (blocks(folder, text) for text in texts)
        self.dev, self.new, self.old = (
            list(batches(load(folder), rows, samples=None, batch_size=64, seed=0)) for rows in rest
        )


def _joined(path: Path) -> str:
    return "\n".join(row["text"] for row in rows_of(DataConfig(path=str(path))))


def fine_tuned(base: Path, texts: Texts, seed: int, out: Path) -> Path:
    """The folder of a fine-tune, which is trained where it is not there."""
    import transformers

    if out.exists():
        return out
    transformers.set_seed(seed)
    model = instantiate(load(base), torch.float32).train()
    rows = [{**row, "labels": row["input_ids"]} for row in texts.train]
    arguments = {"max_steps": STEPS, "per_device_train_batch_size": SIZE, "learning_rate": RATE}
    with publishing(out, False, None) as partial:
        fine_tune(model, rows, partial, seed, lr_scheduler_type="cosine", warmup_steps=STEPS // 10, **arguments)
    return out


def loss(model: Checkpoint | PreTrainedModel, rows: Sequence[Batch]) -> float:
    """Nats a character."""
    running = instantiate(model, torch.float32) if isinstance(model, Checkpoint) else model
    return evaluate(running, rows, "causal_lm").loss


class Pair:
    """Two bases, and what brings the one to the other, found once for all fine-tunes."""

    def __init__(self, base: Checkpoint, new: Checkpoint, texts: Texts):
        self.base, self.new, self.texts = base, new, texts
        self._elements: dict[str, Element] = {}

    def carried(self, tuned: Checkpoint, name: str) -> Callable[[float], Checkpoint | PreTrainedModel]:
        """The new base with so many times what was learned, as a function of that."""
        way = WAYS[name]
        if way is None:
            blend = Blend([self.new, tuned, self.base])
            return lambda scale: blend.at([1.0, scale, -scale])
        if name not in self._elements:
            self._elements[name] = match(self.base, self.new, **way)
        element = self._elements[name]
        return lambda scale: transport(self.base, tuned, self.new, element, scale).checkpoint

    def measure(self, tuned: Checkpoint, name: str) -> dict[str, Any]:
        """The scale that is best on dev text, and the losses that the new base then has on both kinds of text."""
        at = self.carried(tuned, name)
        dev = {scale: loss(at(scale), self.texts.dev) for scale in SCALES}
        scale = min(SCALES, key=dev.__getitem__)
        return {"dev": list(dev.values()), "scale": scale, **both(at(scale), self.texts)}


def both(model: Checkpoint | PreTrainedModel, texts: Texts) -> dict[str, float]:
    """The losses on the text that was learned, and on that of the bases."""
    return {"new": loss(model, texts.new), "old": loss(model, texts.old)}


def run(family: Family, pairs: Sequence[tuple[int, int]], seeds: int, asked: Any) -> Results:
    """Measure bases, fine-tunes, and what every way carries, over pairs and seeds of the fine-tunes."""
    results = Results(asked.out / f"transport-measured-{family.name}.json")
    for numbers in pairs:
        of_pair(family, numbers, seeds, asked, results)
    return results


def of_pair(family: Family, numbers: tuple[int, int], seeds: int, asked: Any, results: Results) -> None:
    """The same of one pair of bases, the new one and the old one, over seeds."""
    folders = family.paths(numbers)
    assert folders is not None
    texts = Texts(asked.shared, folders[0], "dev" if asked.dev else "test")
    pair = Pair(load(folders[1]), load(folders[0]), texts)
    for seed in range(seeds):
        said = {"pair": numbers, "seed": seed, "dev": asked.dev, "steps": STEPS, "rate": RATE}
        made = f"isear-{STEPS}-{RATE}-{seed}"
        own, tuned = (
            load(fine_tuned(start, texts, seed, asked.out / "models" / f"{family.training.folder}{number}-{made}"))
            for start, number in zip(folders, numbers, strict=True)
        )
        for name, model in {NEW: pair.new, OLD: tuned, OWN: own}.items():
            results.get({"model": name, **said}, lambda model=model: both(model, texts))
        for name, way in WAYS.items():
            of = {"way": name, "options": way, "scales": SCALES, **said}
            results.get(of, lambda tuned=tuned, name=name: pair.measure(tuned, name))


def share(row: Row, start: Row, end: Row) -> float:
    """Of what the new base's own fine-tune gains in loss, the share that another model has."""
    return (start["new"] - row["new"]) / (start["new"] - end["new"])


def table(every: Mapping[str, Sequence[Row]]) -> Table:
    """Of families, side by side: the rows of each."""
    columns, body = [], dict[str, list[str]]()
    for title, rows in every.items():
        own: dict[str, list[Row]] = {}
        for row in rows:
            own.setdefault(row["of"].get("model") or f"carried, {row['of']['way']}", []).append(row)
        starts, ends = ({_models(row): row for row in own[name]} for name in (NEW, OWN))
        for name, found in own.items():
            shares = [100 * share(row, starts[_models(row)], ends[_models(row)]) for row in found]
            body.setdefault(name, [name]).extend(
                [
                    spread([row["new"] for row in found]),
                    spread(shares, "{:.0f}"),
                    spread([row["old"] for row in found]),
                    ", ".join(f"{row['scale']:g}" for row in found if "scale" in row),
                ]
            )
        columns += [f"{title}: {word}" for word in ("loss", "share of the gain, %", "on the old text", "times")]
    return Table(
        "fine-tunes on emotions",
        columns,
        list(body.values()),
        "Nats a character; mean and standard deviation over pairs and seeds of the fine-tunes. How many times what was "
        "learned is added was chosen on dev text.",
    )


def _asked(rows: Sequence[Row], pairs: Sequence[tuple[int, int]], asked: Any) -> list[Row]:
    """The rows of these settings: the file may have others."""
    said = {"dev": asked.dev, "steps": STEPS, "rate": RATE}

    def of_these(of: Mapping[str, Any]) -> bool:
        way = "way" not in of or (of["options"], of["scales"]) == (WAYS.get(of["way"]), list(SCALES))
        return way and said.items() <= of.items() and tuple(of["pair"]) in pairs and of["seed"] < asked.seeds

    return [row for row in rows if of_these(row["of"])]


def _models(row: Row) -> tuple[int, ...]:
    """The seeds of the two bases, and of the fine-tunes."""
    return *row["of"]["pair"], row["of"]["seed"]


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser(__doc__, families=False)
    options.add_argument("--family", action="append", choices=FAMILIES, help="only this one (again for more)")
    options.add_argument("--pair", action="append", type=pair_of, help="seeds of the new base and the old, like 0,1")
    asked = options.parse_args(arguments)
    families = Family.all(asked.shared, asked.out / "models", asked.family or FAMILIES)
    wanted = asked.pair or [(0, 1), (1, 0)]
    pairs = {family.name: family.pairs(wanted) for family in families}
    count = sum(map(len, pairs.values()))
    cost = count * (MINUTES["pair"] + asked.seeds * MINUTES["seed"])
    announce(cost, f"{count} pairs; models and results that are there are not made again")
    for family in families:
        if own := pairs[family.name]:
            found = run(family, own, asked.seeds, asked)
            table({family.name: _asked(found.rows, own, asked)}).show()


if __name__ == "__main__":
    main()
