"""Models brought together, and what their average is worth."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.checkpoints.fingerprint import fingerprint
from cobasin.checkpoints.probes import probe
from cobasin.checkpoints.running import instantiate, model_class, outputs
from cobasin.checkpoints.typed import Typed
from cobasin.checkpoints.writer import save
from cobasin.comparing.distance import distance
from cobasin.evaluation.blend import Blend
from cobasin.evaluation.path import loss_path
from cobasin.execution.devices import device_of
from cobasin.finding.applying import transform
from cobasin.finding.match import Matched, match_all
from cobasin.learning.inputs import SAMPLES, TEXTS
from cobasin.verification import verify
from common.families import Family, parents
from common.measured import Measured, Models
from common.results import Results


class Bench:
    """A family, its task, and the results that all benchmarks share.

    Models are matched and scored on a GPU where there is one; what was measured there is kept apart.

    Args:
        family: whose models are measured.
        train: rows of training data that learning may use.
        dev: measure on dev data.
        out: folder of the results.
    """

    def __init__(self, family: Family, train: int, dev: bool, out: Path):
        self.family = family
        self.task, self.device = family.task(train, dev), device_of("auto")
        self.results = Results(out / f"measured-{family.name}.json")
        self._prints: dict[int, str] = {}

    def parents(self, seeds: Sequence[int]) -> dict[str, Any]:
        """Scores of the models themselves (``each``) and of their probability ``ensemble``."""

        def measure() -> dict[str, Any]:
            return parents(self.task, self.folders(seeds), self.device)

        return self.results.get(self._of(seeds, way="parents"), measure)

    def raw(self, seeds: Sequence[int]) -> dict[str, Any]:
        """What the average of the models as they are is worth; see `_worth`."""

        def measure() -> dict[str, Any]:
            typed = [Typed.of(load(folder)) for folder in self.folders(seeds)]
            matched = Matched(typed, [None] * len(typed), 0, {})
            return self._worth(seeds, matched) | distances(matched)

        return self.results.get(self._of(seeds, way="none"), measure)

    def matched(self, seeds: Sequence[int], options: dict[str, Any], seed: int = 0) -> dict[str, Any]:
        """What the average is worth once the models are matched, what the match took, and whether functions are kept.

        Args:
            seeds: of the models; the first is the anchor, unless the options say otherwise.
            options: of `match_all`; with ``data: True`` on training data.
            seed: of what is random.
        """

        def measure() -> dict[str, Any]:
            started = time.process_time()
            matched = self.match(seeds, options, seed)
            found: dict[str, Any] = {"cpu_seconds": time.process_time() - started}
            found |= self._worth(seeds, matched) | distances(matched)
            notes = [line for element in matched.elements if element for line in element.report["notes"]]
            return found | {"notes": notes} | self._kept(seeds, matched)

        return self.results.get(self._of(seeds, way="match", options=options, seed=seed), measure)

    def match(self, seeds: Sequence[int], options: dict[str, Any], seed: int = 0) -> Matched:
        """Bring the models together."""
        options = {"anchor": 0, "seed": seed, "device": str(self.device)} | options
        if options.get("samples") == "few":
            options["samples"] = SAMPLES if self.task.kind == "image" else TEXTS
        if options.pop("data", False):
            options["data"] = self.task.train
            if options["method"] == "learned":  # activations are compared on as many as they are by default
                options["samples"] = self.task.samples
        return match_all(self.folders(seeds), **options)

    def _worth(self, seeds: Sequence[int], matched: Matched) -> dict[str, Any]:
        """What the average is worth.

        Its loss and accuracy; ``excess``, the loss above the mean of the parents'; of two models the ``barrier``, and
        the ``path`` that has it.
        """
        ends = matched.ends
        found: dict[str, Any] = self.task.score(Blend(ends, self.device).at([1 / len(ends)] * len(ends)))
        each = [parent["loss"] for parent in self.parents(seeds)["each"]]
        found["excess"] = found["loss"] - sum(each) / len(each)
        if len(ends) == 2:

            def evaluate(model: Any) -> tuple[float, float]:
                score = self.task.score(model)
                return score["loss"], score["accuracy"]

            path = loss_path(ends[0], ends[1], evaluate, device=self.device)
            found |= {"barrier": path.barrier, "path": {"loss": path.loss, "metric": path.metric}}
        return found

    def _kept(self, seeds: Sequence[int], matched: Matched) -> dict[str, Any]:
        """The largest relative change of logits in float64, whether it is rounding, and whether the files load."""
        moved = [(folder, e) for folder, e in zip(self.folders(seeds), matched.elements, strict=True) if e is not None]
        verdicts = []
        for folder, element in moved:
            source = load(folder)
            verdicts.append(verify(source, transform(element, source, torch.float64), tolerance(source)))
        return {
            "function": max(verdict.relative_float64 or 0.0 for verdict in verdicts),
            "function_kept": all(verdict.same for verdict in verdicts),
            "loads": all(loads(transform(element, folder)) for folder, element in moved),
        }

    def other(
        self, seeds: Sequence[int], what: Mapping[str, Any], measure: Callable[[], Mapping[str, Any]]
    ) -> dict[str, Any]:
        """A result of something else that was done with training data, which ``what`` says."""
        return self.results.get(self._of(seeds, train=self.task.samples, **what), measure)

    def measured(self, steps: int | None = None) -> Measured:
        """Everything that was measured so far, on these data; learned in so many steps, where not by default."""

        def own(of: Mapping[str, Any]) -> bool:
            return of["data"] == self.task.data and of.get("train") in (None, self.task.samples)

        rows = [row for row in self.results.rows if own(row["of"])]
        return Measured(self.family.name, steps or self.family.steps, rows)

    def folders(self, seeds: Sequence[int]) -> list[Path]:
        """Of the models."""
        folders = self.family.paths(seeds)
        assert folders is not None, f"{self.family.name}: not all of the seeds {seeds} are there"
        return folders

    def models(self, seeds: Sequence[int]) -> Models:
        """The models by their content."""
        for seed, folder in zip(seeds, self.folders(seeds), strict=True):
            if seed not in self._prints:
                self._prints[seed] = fingerprint(load(folder))[:16]
        return {str(seed): self._prints[seed] for seed in seeds}

    def _of(self, seeds: Sequence[int], **what: Any) -> dict[str, Any]:
        """What a result is of: the models by their content, the data, and ``what`` was done."""
        if what.get("options", {}).get("data"):
            what["train"] = self.task.samples
        if self.device.type != "cpu":
            what["device"] = torch.cuda.get_device_name() if self.device.type == "cuda" else self.device.type
        return {"models": self.models(seeds), "data": self.task.data, **what}


def tolerance(checkpoint: Checkpoint) -> float:
    """The largest relative change of logits in float64 that is rounding; Transformers computes RMSNorm in float32."""
    return 5e-6 if hasattr(checkpoint.config, "rms_norm_eps") else 1e-9


def distances(matched: Matched) -> dict[str, float]:
    """Of the models as they are averaged, the mean over pairs where there are more than two.

    Heads count, also those that no match has untied: so the figures of all matches compare.
    """
    ends = (Typed.of(end) for end in matched.ends)
    untied = [(end.untied() if end.spec.unties else end).checkpoint for end in ends]
    pairs = [distance(a, b) for a, b in combinations(untied, 2)]
    files, canonical = (sum(figures) / len(pairs) for figures in zip(*pairs, strict=True))
    return {"distance_files": files, "distance_canonical": canonical}


def loads(checkpoint: Checkpoint) -> bool:
    """Whether the model, written, is loaded by Transformers alone, and computes there what it does here."""
    inputs = probe(checkpoint.config, checkpoint.architecture)
    with tempfile.TemporaryDirectory() as folder:
        save(checkpoint, Path(folder) / "model")
        cls = model_class(checkpoint.architecture)
        model, info = cls.from_pretrained(Path(folder) / "model", output_loading_info=True)
    complete = not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    there, here = outputs(model.eval(), inputs), outputs(instantiate(checkpoint, model.dtype), inputs)
    return complete and torch.allclose(there, here, rtol=0, atol=1e-5 * float(here.abs().max()))
