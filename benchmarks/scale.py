"""Large checkpoints on one machine: time and memory of averaging, fusing and matching, next to mergekit and to floors.

    python3 -m venv mergekit-env && mergekit-env/bin/pip install torch==2.13.0 mergekit==0.1.5
    python benchmarks/scale.py --mergekit mergekit-env/bin/mergekit-yaml            # 1.1B, about 50 GB of disk
    python benchmarks/scale.py --size 7b --runs 1 --only average,match-related,match-unrelated      # for its memory

Random bfloat16 checkpoints of Llama's geometry, in shards of 1 GB: a model, two copies of it with 5 % noise (related),
one of another seed (unrelated). All layers of 7b have the same weights, so that it is made in minutes. All that is
compared runs in turn, in rounds that begin with another contender each; figures are medians over the rounds, ratios
medians of the ratios within a round. Every command is a process of its own, its imports included. The floors
(`common/floors.py`) are a numpy stream that averages, of files with many tensors also a loop over these, and, but for
7b, the bare arithmetic of matching; mergekit leaves it to the system to bring what it writes to the disk, all others do
that themselves (fsync).
What was measured is kept in ``scale-SIZE.json``, case by case; sweeps, whose runs of one point follow each other, are
drawn beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import yaml
from rich.console import Console
from safetensors import safe_open

from cobasin.evaluation.plots import COLOURS
from common.processes import Figures, in_turn, machine, measured, ratio
from common.results import made, write
from common.showing import Table
from common.synthetic import Geometry, make

FLOORS = Path(__file__).parent / "common" / "floors.py"
SIZES = {
    "1.1b": Geometry(2048, 5632, 22, 32, 4, 32000),
    "7b": Geometry(4096, 11008, 32, 32, 32, 32000, alike=True),  # for its memory
    "tiny": Geometry(32, 48, 2, 4, 2, 64),
}
# 18,000 small matrices, the shape of files with a tensor for each expert
EXPERTS = {"1.1b": Geometry(64, 32, 24, 4, 4, 1000, 250), "tiny": Geometry(16, 8, 2, 2, 2, 32, 5)}
EXPERTS["7b"] = EXPERTS["1.1b"]
COBASIN = [sys.executable, "-c", "from cobasin.cli import main; main()"]
METHODS = ("average", "slerp", "ties", "dare_linear")
SWEEPS = ("layers", "workers", "tensors")
CASES = (*METHODS, "match-related", "match-unrelated", "experts", *SWEEPS, "start")
RANDOM = {"dare_linear"}
FIGURES = {"wall_s": "{:.2f}", "cpu_s": "{:.2f}", "anonymous_mb": "{:,.0f}"}


def recipe(case: str, models: Mapping[str, Path]) -> dict[str, Any]:
    """What is asked of both tools; matching is cobasin's alone."""
    a, b, c = (str(models[name]) for name in ("anchor", "related", "related-2"))
    if case == "slerp":
        content = {"merge_method": "slerp", "models": _list(a, b), "base_model": a, "parameters": {"t": 0.5}}
    elif case in ("ties", "dare_linear"):
        parameters = {"weight": 0.5, "density": 0.5}
        content = {"merge_method": case, "models": _list(b, c), "base_model": a, "parameters": parameters}
    else:
        other = str(models["unrelated"]) if case == "match-unrelated" else b
        content = {"merge_method": "linear", "models": _list(a, other), "parameters": {"weight": 0.5}}
    return content | {"dtype": "bfloat16"}


def _list(*models: str) -> list[dict[str, str]]:
    return [{"model": model} for model in models]


class Bench:
    """The runs of one size, in a folder."""

    def __init__(self, options: argparse.Namespace, geometry: Geometry, folder: Path):
        self.options, self.geometry, self.folder, self.out = options, geometry, folder, folder / "out"

    def models(self, *names: str) -> dict[str, Path]:
        """The models of these names, made where they are missing."""
        seeds = {"anchor": (0, None), "related": (0, 1), "related-2": (0, 2), "unrelated": (1, None)}
        return {
            name: make(self.geometry, self.folder / name, *seeds[name]) if name in names else self.folder / name
            for name in seeds
        }

    def process(self, command: Sequence[str], **environment: str) -> Figures:
        """Run a command that writes `out`, which is removed before; what earlier ones left to the system is written."""
        shutil.rmtree(self.out, ignore_errors=True)
        os.sync()
        return measured(command, environment)

    def run(self, case: str) -> dict[str, list[Figures]]:
        """All contenders of a case."""
        needed = {"ties": ("related", "related-2"), "dare_linear": ("related", "related-2")}
        other = "unrelated" if case == "match-unrelated" else "related"
        models = self.models("anchor", *needed.get(case, (other,)))
        content = recipe(case, models)
        peer, own = self.folder / f"{case}-peer.yaml", self.folder / f"{case}.yaml"
        peer.write_text(yaml.safe_dump(content))
        match = {"match": {"symmetry": "ffn,attention"}} if case.startswith("match") else {}
        own.write_text(yaml.safe_dump(content | match))
        contenders: dict[str, Callable[[], Figures]] = {}

        def floor(name: str, what: str, *out: Path) -> None:
            command = [sys.executable, FLOORS, what, models["anchor"], models[other], *out]
            contenders[name] = partial(self.process, list(map(str, command)))

        if case in ("average", "match-related", "match-unrelated", "experts"):
            floor("numpy stream", "average", self.out)
        if case == "experts":
            floor("loop over the tensors", "tensors", self.out)
        if case.startswith("match") and not self.geometry.alike:  # that is run for its memory
            floor("grams and assignments", "gram")
        if self.options.mergekit is not None:
            command = [str(self.options.mergekit), str(peer), str(self.out), "--no-copy-tokenizer"]
            contenders["mergekit"] = partial(self.process, command)
        contenders["cobasin"] = partial(self.process, [*COBASIN, "merge", str(own), "--out", str(self.out)])
        return in_turn(contenders, self.options.runs)

    def difference(self, case: str) -> dict[str, float] | None:
        """How far the two tools' files are apart, in units of the last place of bfloat16."""
        if self.options.mergekit is None or case in RANDOM:
            return None
        kept = self.folder / "peer-out"
        shutil.rmtree(kept, ignore_errors=True)
        measured([str(self.options.mergekit), str(self.folder / f"{case}-peer.yaml"), str(kept), "--no-copy-tokenizer"])
        self.process([*COBASIN, "merge", str(self.folder / f"{case}.yaml"), "--out", str(self.out)])
        theirs, largest, entries, apart = _reader(kept), 0.0, 0, 0
        for name, read in _reader(self.out).items():
            places = _last_places(theirs[name](name), read(name))
            largest = max(largest, float(places.max()))
            entries, apart = entries + places.numel(), apart + int((~(places <= 1)).sum())
        shutil.rmtree(kept)
        return {"largest": largest, "share_beyond_one": apart / entries}


def _reader(folder: Path) -> dict[str, Callable[[str], torch.Tensor]]:
    files = [safe_open(path, framework="pt") for path in sorted(folder.glob("model*.safetensors"))]
    return {name: file.get_tensor for file in files for name in file.keys()}  # noqa: SIM118 - not a dict


def _last_places(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The differences of two bfloat16 tensors over the spacing of bfloat16 at the larger of the two."""
    x, y = x.float(), y.float()
    spacing = torch.exp2(torch.maximum(x.abs(), y.abs()).clamp_min(2.0**-126).log2().floor() - 7)
    return (x - y).abs() / spacing


def sweep(options: argparse.Namespace, what: str) -> list[dict[str, Any]]:
    """Averaging and matching against the number of layers, or of workers; averaging of small tensors against theirs."""
    small = what == "tensors"
    rows, whole = [], (EXPERTS if small else SIZES)[options.size]
    field = {"layers": "layers", "tensors": "experts"}.get(what)
    counts = sorted({max(1, getattr(whole, field) * i // 4) for i in (1, 2, 3, 4)}) if field else [1, 2]
    for count in counts:
        sizes = asdict(whole) | ({field: count} if field else {})
        name = f"{sizes['layers']}-layers"
        if small:
            name = "experts" if count == whole.experts else f"{count}-experts"
        bench = Bench(options, Geometry(**sizes), options.folder / f"{options.size}-{name}")
        models = bench.models("anchor", "related")
        number = sum(1 for _ in bench.geometry.shapes()) if small else count
        for case in ("average",) if small else ("average", "match-related"):
            path = bench.folder / f"{case}.yaml"
            match = {"match": {"symmetry": "ffn,attention"}} if case.startswith("match") else {}
            path.write_text(yaml.safe_dump(recipe(case, models) | match))
            command = [*COBASIN, "merge", str(path), "--out", str(bench.out)]
            threads = {"OMP_NUM_THREADS": str(count)} if what == "workers" else {}
            figures = [bench.process(command, **threads) for _ in range(options.runs)]
            rows.append({what: number, "case": case, **_medians(figures)})
        if field and count != getattr(whole, field):
            shutil.rmtree(bench.folder)
    return rows


def start(runs: int) -> dict[str, list[Figures]]:
    """Importing, and the help of the command line."""
    programs = {
        "import torch": "import torch",
        "import torch, transformers": "import torch; from transformers import LlamaConfig",  # what a merge needs
        "import torch, cobasin": "import torch, cobasin",
        "import cobasin": "import cobasin",
        "cobasin --help": "import sys; sys.argv = ['cobasin', '--help']; from cobasin.cli import main; main()",
    }
    return in_turn({name: partial(measured, [sys.executable, "-c", code]) for name, code in programs.items()}, runs)


def _medians(figures: Sequence[Figures]) -> dict[str, float]:
    return {name: median(getattr(one, name) for one in figures) for name in FIGURES}


def table(cases: Mapping[str, Mapping[str, Any]]) -> Table:
    """Medians of cases, as they were written, and how they compare with cobasin's."""
    body, notes = [], []
    for case, told in cases.items():
        rounds = {name: [Figures(**one) for one in figures] for name, figures in told["rounds"].items()}
        for name, figures in rounds.items():
            line = [f"{case}: {name}", *(form.format(_medians(figures)[what]) for what, form in FIGURES.items())]
            if "cobasin" in rounds and name != "cobasin":
                line += [f"{ratio(rounds['cobasin'], figures, what):.2f}" for what in ("wall_s", "cpu_s")]
            body.append(line + [""] * (6 - len(line)))
        if apart := told.get("difference"):
            notes.append(
                f"{case}: the entries of mergekit's file are at most {apart['largest']:.3g} units of bfloat16's last "
                f"place from cobasin's, {apart['share_beyond_one']:.2g} of them more than one"
            )
    columns = ["wall s", "CPU s", "anonymous MB", "cobasin's wall / its", "cobasin's CPU / its"]
    return Table("medians over the rounds", columns, body, ". ".join(notes))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="1.1b")
    parser.add_argument("--runs", type=int, default=5, help="rounds")
    parser.add_argument("--only", default=",".join(CASES), help=f"cases out of {', '.join(CASES)}")
    parser.add_argument("--mergekit", type=Path, help="mergekit-yaml in an environment of its own; left out without")
    parser.add_argument("--folder", type=Path, default=Path("benchmarks/out/scale"))
    options = parser.parse_args(arguments)
    if unknown := set(options.only.split(",")) - set(CASES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if options.mergekit is not None:
        options.mergekit = options.mergekit.absolute()
    said = machine() | made()
    if said["load_at_start"] > 0.5:
        Console().print(f"the machine is not quiet: its load is {said['load_at_start']:.1f}")
    for case in options.only.split(","):
        kept = measure(options, case)
        shown(case, kept).show()
        path = options.folder / f"scale-{options.size}.json"
        found = json.loads(path.read_text()) if path.exists() else {}
        write(path, found | {case: {"of": said | {"runs": options.runs}, **kept}})


def measure(options: argparse.Namespace, case: str) -> dict[str, Any]:
    """What there is to keep of a case; a sweep is drawn, too."""
    if case in SWEEPS:
        rows = sweep(options, case)
        draw(rows, case, options.folder / f"scale-{options.size}-{case}.png")
        return {"rows": rows}
    if case == "start":
        return {"rounds": _rounds(start(options.runs))}
    sizes = EXPERTS if case == "experts" else SIZES
    name = "experts" if case == "experts" else f"{sizes[options.size].layers}-layers"
    bench = Bench(options, sizes[options.size], options.folder / f"{options.size}-{name}")
    kept: dict[str, Any] = {"rounds": _rounds(bench.run(case))}
    if case in METHODS and (difference := bench.difference(case)) is not None:
        kept["difference"] = difference
    shutil.rmtree(bench.out, ignore_errors=True)
    return kept


def shown(case: str, kept: Mapping[str, Any]) -> Table:
    """A case."""
    if case not in SWEEPS:
        return table({case: kept})
    rows = [[str(row[case]), row["case"], *(f"{row[what]:.2f}" for what in FIGURES)] for row in kept["rows"]]
    return Table(case, ["", *FIGURES], rows)


def _rounds(found: Mapping[str, Sequence[Figures]]) -> dict[str, list[dict[str, float]]]:
    return {name: [asdict(one) for one in figures] for name, figures in found.items()}


def draw(rows: Sequence[Mapping[str, Any]], what: str, path: Path) -> None:
    """Wall time and memory of averaging and matching, against the number of layers, workers or tensors."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    for axes, (key, label) in zip(
        figure.subplots(1, 2), (("wall_s", "wall time, s"), ("anonymous_mb", "anonymous memory, MB")), strict=True
    ):
        for case, colour in zip(dict.fromkeys(row["case"] for row in rows), COLOURS, strict=False):
            own = [row for row in rows if row["case"] == case]
            name = "average" if case == "average" else "match FFN and attention, average"
            axes.plot([row[what] for row in own], [row[key] for row in own], color=colour, marker="o", label=name)
        axes.set_xticks(sorted({row[what] for row in rows}))
        axes.set_xlabel(what, fontsize=12)
        axes.set_title(label, fontsize=13, loc="left")
        axes.set_ylim(0, 1.06 * max(row[key] for row in rows))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=12)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
