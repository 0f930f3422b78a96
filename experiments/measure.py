"""From end models to rows of results: match, merge, evaluate. What was measured before is not measured again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from statistics import mean, median
from typing import Any

import torch

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.running import instantiate
from cobasin.checkpoints.typed import Typed
from cobasin.data import DataConfig, task_of
from cobasin.evaluation.path import loss_path
from cobasin.finding.applying import transform
from cobasin.finding.kept import Kept
from cobasin.finding.match import Matched
from cobasin.fusion.registry import find
from cobasin.merging.merge import Merge, merge_recipe
from cobasin.verification import verify
from common.ensemble import Ensemble
from common.measuring import distances, tolerance
from common.results import Results
from experiment import Experiment, Split, Start, chosen, sweep
from models import End, end_models, rows_digest, untrained
from reading import Reading
from running import models_of, with_head
from starts import content, place_of, short_digest
from world import World

QUICK = 30.0  # seconds
Row = dict[str, Any]


class Measuring:
    """One experiment.

    Args:
        results: what was measured before, and where it is kept.
    """

    def __init__(self, experiment: Experiment, world: World, results: Results):
        self.experiment, self.world, self.results = experiment, world, results
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.reading = Reading(experiment, world)

    def run(self) -> Iterator[Row]:
        """Everything, row by row."""
        measures = {"scores": self.scores, "paths": self.paths, "distances": self.distances, "seconds": self.seconds}
        measure = measures[self.experiment.measure]
        for setting in self.experiment.models:
            for seed in self.experiment.seeds:
                ends = end_models(self.experiment, setting, seed, self.world)
                known = {end.name: end for end in ends}
                for names in self.experiment.grouped(list(known)):
                    for row in measure([known[name] for name in names], seed):
                        yield {"models": setting, "group": names, "seed": seed, **row}

    def scores(self, group: list[End], seed: int) -> Iterator[Row]:
        """Of the parents, of their ensemble, and of what they are merged to."""
        for end in group:
            for test in self.experiment.unseen or [end.data]:
                yield {"way": "parents", "parent": end.name, "test": test, **self._of_parents([end], test)}
        if self._one_task(group):
            for test in self.reading.tests_of(group):
                yield {"way": "ensemble", "test": test, **self._of_parents(group, test)}
        for method in self.experiment.methods:
            random = find(self.experiment.methods[method]["merge_method"]).statistics is not None
            if random or self.experiment.training is not None or seed == self.experiment.seeds[0]:
                for matching in self.experiment.matchings:
                    yield from self._merged(group, seed, method, matching)

    def _merged(self, group: list[End], seed: int, method: str, matching: str) -> Iterator[Row]:
        match = self.experiment.matchings[matching]
        entries = sweep(match, load(group[0].folder).config.num_hidden_layers)
        said = {"way": method, "matching": matching}
        if chosen(match):
            tried = []
            for layers, one in entries:
                scores = self._score(group, seed, method, one, "dev")
                tried.append((mean(found["metric"] for found in scores.values()), layers, one))
                for test, found in scores.items():
                    yield {**said, "layers": layers, "split": "dev", "test": test, **found}
            _, layers, one = max(tried, key=lambda entry: entry[0])
            entries = [(layers, one)]
        for layers, one in entries:
            for test, found in self._score(group, seed, method, one, "test").items():
                yield {**said, **({"layers": layers} if layers else {}), "test": test, **found}

    def _score(self, group: list[End], seed: int, method: str, match: Any, split: Split) -> dict[str, Row]:
        """Of a merge, loss and metric on every test."""
        recipe = self._recipe(group, seed, self.experiment.methods[method], match)

        def measure() -> Row:
            started = time.perf_counter()
            merged, found = self._merge(recipe, group), {}
            for place, model in models_of(merged):
                model.to(self.device)
                for test in self.reading.tests_of(group if place is None else [group[place]]):
                    end = group[place or 0]
                    found[test] = self.reading.evaluated(model, end, test, split)
            return {"scores": found, "seconds": time.perf_counter() - started}

        of = {"merge": self._known(recipe, group), "split": split, "tests": self.reading.digests(group, split)}
        return self.results.get(of, measure, _said(group, method, match, split))["scores"]

    def paths(self, group: list[End], seed: int) -> Iterator[Row]:
        """The loss on the line between two models, with the head of either task."""
        for matching, match in self.experiment.matchings.items():
            recipe = self._recipe(group, seed, {"merge_method": "linear"}, match)
            for place, test in enumerate(self.reading.tests_of(group)):

                def measure(recipe: Row = recipe, place: int = place, test: str = test) -> Row:
                    matched, end = self._merge(recipe, group).matched, group[place]
                    ends = with_head(matched, place if self.experiment.heads == "keep" else None)

                    def evaluated(model: Any) -> tuple[float, float]:
                        found = self.reading.evaluated(model, end, test, "test")
                        return found["loss"], found["metric"]

                    return loss_path(ends[0], ends[1], evaluated, self.experiment.points, self.device).to_dict()

                of = {"path": self._known(recipe, group), "points": self.experiment.points, "head": place}
                of["tests"] = self.reading.digests(group, "test")
                found = self.results.get(of, measure, _said(group, "the line", matching, f"loss of {test}"))
                path = {key: found[key] for key in ("alphas", "loss", "metric", "barrier", "midpoint")}
                yield {"matching": matching, "test": test, **path}

    def distances(self, group: list[End], seed: int) -> Iterator[Row]:
        """How far the second model is from the first, once it is matched or coupled, and whether it is still itself."""
        ways = {name: ({"merge_method": "linear"}, match) for name, match in self.experiment.matchings.items()}
        ways |= {name: (method, "none") for name, method in self.experiment.methods.items() if _couples(method)}
        for name, (method, match) in ways.items():
            recipe = self._recipe(group, seed, method, match)
            # a weight of nothing for the anchor: what is left is the other model, as it was moved
            recipe["models"] = [
                {"model": str(end.folder), "parameters": {"weight": weight}}
                for end, weight in zip(group, (0.0, 1.0), strict=True)
            ]
            recipe["dtype"] = "float64"

            def measure(recipe: Row = recipe) -> Row:
                merged, (anchor, source) = self._merge(recipe, group), (load(end.folder) for end in group)
                element = merged.elements[1]
                # not as merged, in the files' dtype: whether the function is kept is seen without its rounding
                moved = merged.checkpoints[-1] if element is None else transform(element, source, torch.float64)
                pair = Matched([Typed.of(anchor), Typed.of(moved)], [None, None], 0, {})
                verdict, test = verify(source, moved, tolerance(source)), group[1].data
                model = instantiate(moved, torch.float32).to(self.device)
                kept = {"change": verdict.relative_float64, "kept": verdict.same}
                return distances(pair) | kept | self.reading.evaluated(model, group[1], test, "test")

            of = {"distance": self._known(recipe, group), "tests": self.reading.digests(group[1:], "test")}
            found = self.results.get(of, measure, _said(group, "distance", name))
            yield {"matching": name, **{key: value for key, value in found.items() if key != "of"}}

    def seconds(self, group: list[End], seed: int) -> Iterator[Row]:
        """Of training a model, of matching, and of merging with all that it needs but matching."""
        step = "training" if self.experiment.training is None else "fine-tuning"
        for end in group:
            if end.seconds is not None:
                yield {"step": step, "way": end.name, "seconds": end.seconds}
        for matching, match in self.experiment.matchings.items():
            if match != "none":
                recipe = self._recipe(group, seed, {"merge_method": "linear"}, match)
                found = self._timed("matching", recipe, group, lambda merged: merged.matched.report["seconds"])
                yield {"step": "matching", "way": matching, "seconds": found}
        for name, method in self.experiment.methods.items():
            recipe = self._recipe(group, seed, method, "none", cached=False)
            yield {"step": "merging", "way": name, "seconds": self._timed("merging", recipe, group)}

    def _timed(self, step: str, recipe: Row, group: list[End], own: Callable[[Merge], float] | None = None) -> float:
        def measure() -> Row:
            def once() -> float:
                started = time.perf_counter()
                merged = merge_recipe(recipe)
                if own is not None:
                    return own(merged)
                for _ in merged.checkpoint.values():  # computed as it is read
                    pass
                return time.perf_counter() - started

            # what is quick is timed again: the first time includes what is loaded when it is first needed
            times = [once()]
            times += [once() for _ in range(4 if times[0] < QUICK else 0)]
            return {"seconds": median(times), "device": self.device}

        said = _said(group, f"seconds of {step}", recipe["merge_method"], recipe["match"])
        return self.results.get({step: self._known(recipe, group)}, measure, said)["seconds"]

    def _recipe(self, group: list[End], seed: int, method: Mapping[str, Any], match: Any, cached: bool = True) -> Row:
        """What `merge_recipe` runs."""
        names = [str(end.folder) for end in group]
        recipe: Row = {
            "models": [{"model": name} for name in names],
            **self.world.fill(dict(method)),
            "match": self.world.fill(match),
        }
        if self.experiment.heads == "keep":
            recipe["head"] = "keep"
        if "base_model" in recipe and self.experiment.training is not None:  # which end models have heads
            base = place_of(Start(path=recipe["base_model"]), self.world)
            recipe["base_model"] = str(untrained(base, self.reading.data[group[0].data], seed, self.world))
        if find(method["merge_method"]).statistics is not None:
            data = [self.reading.data[end.data].config("train", self.world) for end in group]
            if len({end.data for end in group}) == 1:
                data = data[:1]  # some methods compare the models on the same inputs
            recipe["statistics"] = {"batch_size": 16, **self.experiment.statistics, "seed": seed}
            recipe["statistics"]["data"] = data if len(data) > 1 else data[0]
            if cached:
                recipe["statistics"]["cache"] = str(self.world.out / "statistics")
        return recipe

    def _merge(self, recipe: Row, group: list[End]) -> Merge:
        """Run a recipe; what its match has found is kept, for other methods that merge the same models."""
        known = self._known(recipe, group)
        models = [model["model"] for model in known["models"]]
        of = short_digest({"models": models, "base": known.get("base_model"), "match": known["match"]})
        return merge_recipe(recipe, keep=Kept(self.world.out / "matches" / of))

    def _known(self, recipe: Row, group: list[End]) -> Row:
        """A recipe by the content of its models and data, whatever their names are."""
        names = {str(end.folder): end.content for end in group}
        known = {**recipe, "models": [{**model, "model": names[model["model"]]} for model in recipe["models"]]}
        if "base_model" in recipe:
            known["base_model"] = content(load(recipe["base_model"]).folder)
        if isinstance(known["match"], dict) and (data := known["match"].get("data")) is not None:
            known["match"] = {**known["match"], "rows": rows_digest(DataConfig.of(data).model_dump_json())}
        if "statistics" in recipe:
            settings = {key: value for key, value in recipe["statistics"].items() if key not in ("cache", "data")}
            read = [[self.reading.data[end.data].read, self.reading.digest(end.data, "train")] for end in group]
            known["statistics"] = {**settings, "data": read}
        return known

    def _of_parents(self, group: list[End], test: str) -> Row:
        task = task_of(load(group[0].folder))
        own_labels = task == "multilabel" and len(group) > 1

        def measure() -> Row:
            known = torch.stack([self.reading.annotated(end) for end in group]) if own_labels else None
            models = [instantiate(load(end.folder), torch.float32).to(self.device) for end in group]
            model = models[0] if len(group) == 1 else Ensemble(models, task, known)
            return {"score": self.reading.evaluated(model, group[0], test, "test")}

        of = {"parents": [end.content for end in group], "tests": {test: self.reading.test_digest(test, "test")}}
        way = "alone" if len(group) == 1 else "ensemble"
        if own_labels:
            of["mean"] = "of those that know a label"
        return self.results.get(of, measure, _said(group, f"{way} on {test}"))["score"]

    def _one_task(self, group: list[End]) -> bool:
        """Whether all predict the same: labels of one list. Equal names in two lists, as 0 and 1, say nothing."""
        known = {tuple(sorted((load(end.folder).config.id2label or {}).items())) for end in group}
        lists = {end.data if self.experiment.data[end.data].labels else None for end in group}
        return len(known) == len(lists) == 1


def _couples(method: Mapping[str, Any]) -> bool:
    return find(method["merge_method"]).couple is not None


def _said(group: list[End], *words: Any) -> str:
    """What is measured, in a line: the models and, of settings with many keys, those of one word."""

    def short(word: Any) -> str:
        kept = word.items() if isinstance(word, dict) else ()
        return " ".join(f"{key} {value}" for key, value in kept if isinstance(value, str | int | float)) or str(word)

    return f"{' + '.join(end.name for end in group)}: {', '.join(map(short, words))}"
