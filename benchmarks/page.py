"""The tables of the docs, and the lines between models, from what was measured: python benchmarks/page.py.

A page has a block for each, between ``<!-- measured: TABLE [NAME ...] -->`` and ``<!-- end -->``. A table is one of
`TABLES`, as its benchmark shows it in the terminal; it is made of files of ``benchmarks/measured``, of families only of
their rows of test data. Every picture has a digest of what it shows, so that a test can tell whether it is up to date.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

import equal_cost
import federated
import full_size
import identical
import ladder
import mergekit
import no_harm
import one_basin
import plan
import scale
import stacks
import three
import transport
from common import pages
from common.families import PAIRS, Family
from common.measured import Measured, Models, cells
from common.showing import Table

ROOT = Path(__file__).parents[1]
NAMES = ("docs/one-basin", "docs/adapters", "docs/federated", "docs/fusion", "docs/scale", "docs/results", "README")
PAGES = [ROOT / f"{name}.md" for name in NAMES]
MEASURED = ROOT / "benchmarks" / "measured"
SMALL = ROOT / "benchmarks" / "training" / "small"
PICTURES = {
    ROOT / "docs" / "images" / f"one-basin-{picture}.png": name
    for picture, name in (("vit", "cifar10-vit"), ("gpt2", "gpt2-shakespeare"), ("llama", "llama-shakespeare"))
}
OTHER = "other"  # in place of a seed: a model of another recipe
DIGEST = "measured"  # the key of a picture's digest among its texts
COMMANDS = {
    "full-size": "full_size",
    "identical": "identical",
    "measured-federated": "federated",
    "measured-no_harm": "no_harm",
    "measured": "one_basin; of some also ladder, three, equal_cost",
    "mergekit": "mergekit",
    "no_harm": "no_harm",
    "scale": "scale",
    "stacks": "stacks",
    "transport": "transport",
}
TITLES = {
    "cifar10-vit": "ViT, CIFAR-10",
    "cifar10-vit-large": "larger ViT, CIFAR-10",
    "gpt2-shakespeare": "GPT-2",
    "llama-shakespeare": "Llama",
    "bert-shakespeare": "BERT",
    "qwen3": "Qwen3",
    "qwen2-moe": "Qwen2-MoE, 4 experts and a shared one",
    "mixtral": "Mixtral, 4 experts",
    "gemma2": "Gemma 2",
    "olmo2": "OLMo 2",
    "gemma3": "Gemma 3",
    "phi3": "Phi-3",
    "gpt-neox": "GPT-NeoX",
    "opt": "OPT",
    "bloom": "BLOOM",
    "modernbert": "ModernBERT, masked",
    "gpt-oss": "GPT-OSS, 4 experts",
    "deepseek-v3": "DeepSeek-V3, 4 experts and a shared one",
}


def measured(name: str) -> Measured:
    """What was measured of a family on test data."""
    small = SMALL / f"{name}.yaml"
    (family,) = Family.all(ROOT, ROOT, [str(small) if small.exists() else name])
    rows = [row for row in _read(f"measured-{name}") if "test" in row["of"]["data"]]
    return Measured(TITLES[name], family.steps, rows)


def ways(name: str) -> Table:
    """Everything that brings model 1 to model 0, and the parents."""
    own = measured(name)
    return one_basin.table(own, own.models((0, 1))[0])


def pairs(*names: str, among: Sequence[tuple[int | str, int | str]] = PAIRS) -> Table:
    """All pairs that there are, side by side."""
    every: list[tuple[str, Measured, Models]] = []
    for name, pair in product(names, among):
        own = measured(name)
        for i, models in enumerate(own.models(pair)):
            every.append((f"{own.title} {pair[0]}-{pair[1]}{', again' if i else ''}", own, models))
    return one_basin.pairs_table(every)


def architectures(*names: str) -> Table:
    """The first pair of every family, one below the other."""
    every = [(own.title, own, own.models((0, 1))[0]) for own in map(measured, names)]
    across = one_basin.pairs_table(every)
    body = zip(across.columns, *(found for _, *found in across.body), strict=True)
    return Table("architecture", [label for label, *_ in across.body], [list(line) for line in body], "")


def data_free(*names: str) -> Table:
    """The midpoints of the first pairs, matched by weights alone."""
    columns, body = {"accuracy": "accuracy, %", "loss": "loss"}, []
    for name in names:
        own = measured(name)
        models = own.models((0, 1))[0]
        parents, _ = own.parents(models, list(columns))
        found = [
            own.get(models, way="none"),
            *(own.matched(models, one_basin.WAYS[way]) for way in ("paper", "weights")),
        ]
        for i, (column, title) in enumerate(columns.items()):
            middles = [cell for rows in found for cell in cells(rows, [column])]
            body.append([f"{own.title}: {title}", parents[i + 1], *middles])
    return Table("pair", ["parents", "not matched", "paper", "full"], body, "")


def rungs(*names: str) -> Table:
    """The ladder of the first pairs."""
    every = [measured(name) for name in names]
    return ladder.table([(own.title, own, own.models((0, 1))[0]) for own in every])


def three_into_one(name: str) -> Table:
    """Three models into one."""
    own = measured(name)
    return three.table(own, own.models(three.MODELS)[0], three.STEPS)


def equal(name: str) -> Table:
    """Matching and training for as many passes over rows."""
    own = measured(name)
    return equal_cost.table(own, own.models((0, 1))[0], equal_cost.STEPS)


def carried(*names: str) -> Table:
    """What another base can use of a fine-tune."""
    every = {TITLES[name]: _read(f"transport-measured-{name}") for name in names}
    return transport.table({name: [row for row in rows if not row["of"]["dev"]] for name, rows in every.items()})


def scaled(size: str, *cases: str) -> Table:
    """Cases of the benchmark of scale, of pairs of a size."""
    found = _read(f"scale-{size}")
    return scale.table({case: found[case] for case in cases})


def planned() -> Table:
    """What very large pairs would take."""
    return plan.table(plan.Rates.of(_read("scale-1.1b"), scale.SIZES["1.1b"]), plan.PRICE)


def at_full_size(name: str, pair: str) -> Table:
    """Steps of matching next to the bare Grams."""
    rounds = _read("full-size")[f"{name}, {pair}"]["rounds"]
    steps = {what: [full_size.Step(**one) for one in taken] for what, taken in rounds.items()}
    return full_size.table(name, pair, steps)


def provenance() -> Table:
    """By which commands, when, and with which versions all of it was measured."""
    body = []
    for file in sorted(MEASURED.glob("*.json")):
        found = _read(file.stem)
        rows = [{**row, **row.get("of", {})} for row in (found if isinstance(found, list) else _parts(found))]
        days = sorted({row.get("date") or row["committed"] for row in rows})
        versions = [", ".join(f"{name} {version}" for name, version in row.get("versions", {}).items()) for row in rows]
        told = ", ".join(dict.fromkeys(one for one in versions if one))
        if without := versions.count(""):
            told += f"{'; ' if told else ''}not noted of {without}"
        command = next(command for start, command in COMMANDS.items() if file.stem.startswith(start))
        body.append([f"`{file.name}`", command, str(len(rows)), " to ".join(dict.fromkeys((days[0], days[-1]))), told])
    return Table("file", ["benchmarks", "entries", "measured", "versions"], body, "")


def _parts(found: Mapping[str, Any]) -> list[Any]:
    """The cases of a file; where it is one result, that."""
    return [found] if {"date", "committed"} & found.keys() else list(found.values())


TABLES: Mapping[str, Callable[..., Table]] = {
    "ways": ways,
    "data-free": data_free,
    "pairs": pairs,
    "architectures": architectures,
    "pairs-other": partial(pairs, among=((0, OTHER), (1, OTHER))),
    "ladder": rungs,
    "three": three_into_one,
    "equal-cost": equal,
    "no-harm": lambda: no_harm.table(_read("no_harm")),
    "transport": carried,
    "scale": scaled,
    "plan": planned,
    "federated": lambda: federated.table(_read("measured-federated")),
    "full-size": at_full_size,
    "identical": lambda: identical.table(_read("identical")),
    "mergekit": lambda: mergekit.table(_read("mergekit")["rows"]),
    "stacks": lambda: stacks.table(_read("stacks"), TITLES),
    "provenance": provenance,
}


def _read(file: str) -> Any:
    return json.loads((MEASURED / f"{file}.json").read_text("utf-8"))


def make(what: str) -> str:
    """The table of a block."""
    name, *arguments = what.split()
    return "\n".join(TABLES[name](*arguments).markdown())


def draw(path: Path) -> None:
    """Draw one of `PICTURES`."""
    own = measured(PICTURES[path])
    one_basin.picture(own, own.models((0, 1))[0], path)
    texts = PngInfo()
    texts.add_text(DIGEST, digest(PICTURES[path]))
    with Image.open(path) as picture:
        picture.save(path, pnginfo=texts)


def digest(name: str) -> str:
    """A digest of what was measured of a family and is drawn."""
    own = measured(name)
    lines = one_basin.lines(own, own.models((0, 1))[0])
    shown = {way: [path.loss, path.metric] for way, path in lines.items()}
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()


def main() -> None:
    """Draw the pictures, and fill the pages."""
    for path in PICTURES:
        draw(path)
    for page in PAGES:
        page.write_text(pages.filled(page.read_text("utf-8"), make), "utf-8")


if __name__ == "__main__":
    main()
