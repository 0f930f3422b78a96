"""A trained model merged with a copy of itself that computes the same function in other weights, by every method.

    python benchmarks/identical.py [--shared ../shared] [--out benchmarks/out/identical.json]

The copy is the model moved by a random element of its symmetry group: neurons and heads in another order, heads and
residual stream in other bases. A merge of the two should be the model. Methods with a base get the model as the base
and two such copies (SLERP: one) to merge. Test loss in nats a character; fixed seeds for the elements.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.checkpoints.typed import Typed
from cobasin.evaluation.running import instantiate, outputs, probe
from cobasin.finding.applying import transform
from cobasin.fusion.registry import Method, methods
from cobasin.merging.merge import merge
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import form_of
from pairs import shakespeare  # type: ignore[import-not-found]

MODEL = "llama-shakespeare-0"
HALF = {"weight": 0.5}  # of each task vector
PARAMETERS = {
    "slerp": {"t": 0.5},
    "task_arithmetic": HALF,
    "ties": HALF | {"density": 0.5},
    "dare_linear": HALF | {"density": 0.5},
    "dare_ties": HALF | {"density": 0.5},
}


def scrambled(checkpoint: Checkpoint, seed: int = 0) -> Checkpoint:
    """The same function in other weights."""
    return transform(Element.sample(form_of(Typed.of(checkpoint).spec, folded=True), seed), checkpoint)


def write_text(shared: Path, folder: Path, out: Path) -> dict:
    """Training text as rows of character ids: what the methods with statistics read."""
    number = {c: i for i, c in enumerate(json.loads((folder / "chars.json").read_text()))}
    text = (shared / "data/lm/tinyshakespeare/train.txt").read_text()[: 128 * 64]
    rows = [[number[c] for c in text[i : i + 128]] for i in range(0, len(text), 128)]
    out.write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in rows))
    return {"data": {"path": str(out)}, "samples": 64}


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=Path("../shared"), help="folder with data/ and models/")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out/identical.json"))
    options = parser.parse_args()
    folder = options.shared / "models" / MODEL
    model, evaluate = load(folder), shakespeare(options.shared, folder)
    copy = scrambled(model)
    rows: dict = {"model": evaluate(model)["loss"], "copy": evaluate(copy)["loss"], "change": change(model, copy)}
    with tempfile.TemporaryDirectory() as place:
        statistics = write_text(options.shared, folder, Path(place) / "text.jsonl")
        for name, method in track(methods().items(), "merging", console=Console(stderr=True)):
            found = {symmetry: merged(method, symmetry, model, copy, statistics) for symmetry in ("none", "full")}
            rows[name] = {
                symmetry: {"loss": evaluate(one)["loss"], "change": change(model, one)}
                for symmetry, one in found.items()
            }
    table = Table(
        *("method", "test loss, not matched", "matched", "change of the logits, not matched", "matched"),
        title=f"{MODEL} (test loss {rows['model']:.4f}) and a copy with the same function ({rows['copy']:.4f}), merged",
    )
    for name in methods():
        none, full = rows[name]["none"], rows[name]["full"]
        losses = f"{none['loss']:.4f}", f"{full['loss']:.4f}"
        table.add_row(name, *losses, f"{none['change']:.1e}", f"{full['change']:.1e}")
    Console().print(table)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
