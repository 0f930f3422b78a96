"""Run the paper's experiments: train, match, merge, evaluate; tables and pictures.

    python experiments/run.py table1-emotion [figure4 ...] [--small] [--out experiments/out] [--model roberta-base]
    python experiments/run.py table1-ner --setting "a start each"
    python experiments/run.py all --small

An item is a file of this folder (or any YAML file of that form): what is in it, and nothing else, is what is done.
Every step is kept by the content of what it was made of, so a run that was interrupted goes on where it was. Of every
item there is ITEM.json with all that was measured, ITEM.md with its tables, and pictures. A GPU is used where there is.
"""

from __future__ import annotations

import argparse
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "benchmarks")]

from checking import at, check  # noqa: E402 - both folders have to be on the path
from cobasin.errors import InputError  # noqa: E402
from common.results import Results, made, write  # noqa: E402
from common.showing import announce  # noqa: E402
from experiment import Experiment, items  # noqa: E402
from measure import Measuring  # noqa: E402
from models import rows_digest  # noqa: E402
from pictures import draw  # noqa: E402
from starts import content  # noqa: E402
from tables import markdown  # noqa: E402
from world import World  # noqa: E402


def run(item: str, experiment: Experiment, world: World, results: Results, options: Namespace) -> dict[str, Any]:
    """One item: measured, written, drawn."""
    name = Path(item).stem
    measuring = Measuring(experiment, world, results)
    rows = list(measuring.run())
    found = {
        "item": name,
        "file": item if item.endswith(".yaml") else None,
        "title": experiment.title,
        "small": options.small,
        "model": options.model,
        "setting": options.setting,
        "settings": experiment.model_dump(exclude_defaults=True),
        "rows": rows,
        "minutes": round(results.seconds / 60, 2),
        "device": measuring.device,
        **made(),
    }
    write(world.out / f"{name}.json", found)
    (world.out / f"{name}.md").write_text(markdown(found), "utf-8")
    draw(found, world.out)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code: 0, or 2 for bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("items", nargs="+", metavar="ITEM", help=f"{', '.join(items())}, a YAML file, or all")
    parser.add_argument("--small", action="store_true", help="few rows, one seed: to see that everything runs")
    parser.add_argument("--model", help="a folder or hub id that all end models start from")
    parser.add_argument("--setting", help="use one entry of the file's models only, such as 'a start each'")
    parser.add_argument("--shared", type=Path, default=Path("../shared"), help="folder with data/ and models/")
    parser.add_argument("--out", type=Path, default=Path("experiments/out"), help="folder of all that is made")
    options = parser.parse_args(arguments)
    if options.setting is not None and (options.model is not None or options.items == ["all"]):
        parser.error("--setting is of an item's own models: not with --model, nor with all")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    for kept in (content, rows_digest):
        kept.cache_clear()  # files may have changed since an earlier run of this process
    wanted = items() if options.items == ["all"] else options.items
    try:
        experiments = {item: Experiment.read(item, options.small, options.model, options.setting) for item in wanted}
        times = ", ".join(f"{item} {one.minutes:g}" for item, one in experiments.items())
        announce(sum(one.minutes for one in experiments.values()), f"{times}; what is there is not made again")
        world = World(options.shared, options.out / "small" if options.small else options.out)
        there = next(path for path in (world.out, *world.out.parents) if path.exists())
        if not there.is_dir() or not os.access(there, os.W_OK):
            raise InputError(f"--out {options.out}: {there} is no folder that can be written to; choose another one")
        results = {item: Results(world.out / f"measured-{Path(item).stem}.json") for item in experiments}
        for item, experiment in experiments.items():
            with at(item):
                check(experiment, world, results[item])
        for item, experiment in experiments.items():
            found = run(item, experiment, world, results[item], options)
            print(markdown(found))
            print(f"{item}: {found['minutes']} minutes of measuring, in {world.out}", file=sys.stderr, flush=True)
    except InputError as error:
        print("error:", " ".join(str(error).split()), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
