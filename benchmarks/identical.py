"""A trained model merged with a copy of itself that computes the same function in other weights, by every method.

    python benchmarks/identical.py [--dev]

The copy is the model moved by a random element of its symmetry group: neurons and heads in another order, heads and
residual stream in other bases. A merge of the two should be the model. Methods with a base get the model as the base
and two such copies (SLERP: one) to merge. Loss in nats a character; fixed seeds for the elements.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.checkpoints.probes import probe
from cobasin.checkpoints.running import instantiate, outputs
from cobasin.checkpoints.typed import Typed
from cobasin.finding.applying import transform
from cobasin.fusion.registry import Method, methods
from cobasin.merging.merge import merge
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import form_of
from common.families import Family, Task
from common.results import made, write
from common.showing import Table, parser

FAMILY = "llama-shakespeare"
SAMPLES = 64
HALF = {"weight": 0.5}  # of each task vector
PARAMETERS = {
    "slerp": {"t": 0.5},
    "task_arithmetic": HALF,
    "ties": HALF | {"density": 0.5},
    "dare_linear": HALF | {"density": 0.5},
    "dare_ties": HALF | {"density": 0.5},
    "della": HALF | {"density": 0.5},
    "della_linear": HALF | {"density": 0.5},
    "breadcrumbs": HALF | {"density": 0.5, "gamma": 0.1},
    "breadcrumbs_ties": HALF | {"density": 0.5, "gamma": 0.1},
    "sce": {"select_topk": 0.5},
    "nearswap": {"t": 0.05},
}


def scrambled(checkpoint: Checkpoint, seed: int = 0) -> Checkpoint:
    """The same function in other weights."""
    spec = Typed.of(checkpoint).spec
    return transform(Element.sample(form_of(spec, folded=not spec.unties), seed), checkpoint)


def write_text(task: Task, out: Path) -> dict:
    """Training text as rows of character ids: what the methods with statistics read."""
    assert isinstance(task.train, list)  # of a language model
    out.write_text("".join(json.dumps(row) + "\n" for row in task.train[:SAMPLES]))
    return {"data": {"path": str(out)}, "samples": SAMPLES}


def merged(method: Method, symmetry: str, model: Checkpoint, copy: Checkpoint, statistics: dict) -> Checkpoint:
    models = [model, copy]
    if method.takes_base:
        models = [copy] if method.most == 1 else [copy, scrambled(model, 1)]
    options = {"statistics": statistics} if method.statistics else {}
    base = model if method.takes_base else None
    parameters = PARAMETERS.get(method.name, {})
    return merge(models, method.name, base=base, symmetry=symmetry, **options, **parameters).checkpoint


def change(model: Checkpoint, other: Checkpoint) -> float:
    """Largest relative difference of the logits on probe inputs, in float64."""
    inputs = probe(model.config, model.architecture)
    a, b = (outputs(instantiate(one, torch.float64), inputs) for one in (model, other))
    return float((a - b).abs().max() / a.abs().max())


def table(found: Mapping[str, Any]) -> Table:
    """What each method makes of a model and its copy."""
    columns = ["test loss, not matched", "matched", "change of the logits, not matched", "matched"]
    body = [
        [f"`{name}`", *(f"{row[s]['loss']:.4f}" for s in row), *(f"{row[s]['change']:.1e}" for s in row)]
        for name, row in found["merged"].items()
    ]
    caption = (
        f"{found['name']} (loss {found['model']:.4f}) merged with a copy that has the same function "
        f"({found['copy']:.4f}); {found['data']}"
    )
    return Table("method", columns, body, caption)


def main(arguments: Sequence[str] | None = None) -> None:
    asked = parser(__doc__, seeds=False, families=False).parse_args(arguments)
    family = Family.all(asked.shared, asked.out / "models", [FAMILY])[0]
    folders = family.paths([0])
    if folders is None:
        raise SystemExit(1)
    model, task = load(folders[0]), family.task(0, asked.dev)
    copy = scrambled(model)

    def loss(checkpoint: Checkpoint) -> float:
        return task.score(instantiate(checkpoint, torch.float32))["loss"]

    found: dict[str, Any] = {"model": loss(model), "copy": loss(copy), "change": change(model, copy), "merged": {}}
    with tempfile.TemporaryDirectory() as place:
        statistics = write_text(task, Path(place) / "text.jsonl")
        fusing = {name: method for name, method in methods().items() if not method.stacks}
        for name, method in track(fusing.items(), "merging", console=Console(stderr=True)):
            both = {symmetry: merged(method, symmetry, model, copy, statistics) for symmetry in ("none", "full")}
            found["merged"][name] = {
                symmetry: {"loss": loss(one), "change": change(model, one)} for symmetry, one in both.items()
            }
    found |= {"name": folders[0].name, "data": task.data, **made()}
    table(found).show()
    write(asked.out / "identical.json", found)


if __name__ == "__main__":
    main()
