"""What a merge would do, from the headers and the recipe alone: ``cobasin merge --dry-run``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from cobasin.checkpoints.alike import omissions
from cobasin.checkpoints.preprocessors import other_pixels
from cobasin.checkpoints.typed import Typed
from cobasin.finding.forms import UNTIED, check_free, possible_forms
from cobasin.finding.learning import check_movable
from cobasin.finding.search import Search
from cobasin.matching.choice import Choice
from cobasin.matching.neurons import TABLE
from cobasin.matching.order import LARGE, pairs_size
from cobasin.matching.state import HELD
from cobasin.merging.after import Afterwards
from cobasin.merging.chat import chat_template
from cobasin.merging.owners import owners
from cobasin.merging.parameters import Parameters
from cobasin.merging.parents import ends, matches, prepare, remarks
from cobasin.merging.results import result
from cobasin.merging.stacked import as_fused
from cobasin.merging.statistics import batches_of
from cobasin.recipe import Recipe
from cobasin.statistics.activations import SAMPLED
from cobasin.symmetry.groups.assignment import EXACT
from cobasin.symmetry.spec import Spec

FLOAT32, FLOAT64 = 4, 8
PARTS = 8  # of tables of pairs, at a time


def plan(recipe: Recipe, models: Mapping[str, Any]) -> dict[str, Any]:
    """What merging by this recipe reads, computes, needs and writes; no tensor is read.

    Sizes are in bytes. Memory is an estimate of what is allocated beside the mapped files, phase by phase.

    Raises:
        InputError: for all that can be refused before tensors are read; also for data that do not fit a model.
    """
    typed = prepare(recipe, models)
    read = batches_of(recipe, typed)
    afterwards = Afterwards.of(recipe, typed, owners(recipe)[0])
    _check_matching(recipe, typed)
    merged = ends(recipe, typed)
    fused, _ = as_fused(recipe, merged, merged)
    parameters = Parameters(recipe, fused[0])
    notes = remarks(recipe, typed, chat_template(recipe, typed))
    groups: dict[str, dict[str, Any]] = {}
    for part, own in parameters.items():
        group = {"parameters": own, "tensors": 0, "first": parameters.on_disk(part)}
        groups.setdefault(repr(own), group)["tensors"] += 1
    results = [result(recipe, fused[owner], fused[owner]) for owner in owners(recipe)]
    found: dict[str, Any] = {
        "models": recipe.referenced,
        "architecture": typed[0].spec.architecture,
        "method": recipe.merge_method,
        "base": recipe.base,
        "match": {key: getattr(recipe.match, key) for key in ("symmetry", "anchor", "layers", "method")}
        | ({} if matches(recipe, typed) else {"symmetry": "none"}),
        "head": recipe.head,
        "folders": len(results) if recipe.head == "keep" else None,
        "tensors": len(results[0].headers),
        "parameters": results[0].parameters,
        "bytes_read": sum(model.checkpoint.size for model in typed),
        "bytes_written": sum(result.size for result in results),
        "memory": _memory(recipe, typed),
        "groups": list(groups.values()),
        "statistics": None,
        "after": None,
        "notes": [*notes, *omissions(typed), *other_pixels(typed), *parameters.idle],
    }
    if afterwards is not None:
        asked = afterwards.asked
        found["after"] = {
            "repair": asked.repair is not None,
            "heal": asked.heal and asked.heal.steps,
            "inputs": afterwards.inputs.report,
        }
    if parameters.spec.tied != typed[0].spec.tied:
        found["notes"].append(UNTIED)
    if read and recipe.statistics is not None:
        found["statistics"] = {
            "kind": recipe.method.statistics,
            "rows": {name: one.rows for name, one in zip(recipe.inputs, read, strict=True)},
            "cache": None if recipe.method.statistics == "grams_in_turn" else recipe.statistics.cache,
        }
    return found


def _check_matching(recipe: Recipe, typed: list[Typed]) -> None:
    """All that matching checks before it reads tensors."""
    if matches(recipe, typed):
        match = recipe.match
        choice = Choice.parse(match.symmetry, match.layers)
        choice.check(typed[0].spec)
        search, forms = Search(**match.search), possible_forms(ends(recipe, typed)[0].spec, choice)
        search.prepared(typed)
        check_free(forms, choice, match.symmetry)
        if search.method == "learned":
            check_movable(forms, choice, match.symmetry, search)


def _memory(recipe: Recipe, typed: list[Typed]) -> dict[str, int]:
    """Bytes by phase."""
    spec, models = typed[0].spec, len(recipe.inputs)
    sizes = {name: math.prod(entry.layout.shape) for name, entry in spec.entries.items() if name not in spec.tied}
    # of models that nothing moves the tensors of a stack are fused one by one
    unmoved = not matches(recipe, typed)
    fused_at_once = [
        size // len(stack) if unmoved and (stack := spec.entries[name].stack) else size for name, size in sizes.items()
    ]
    largest, whole = max(fused_at_once) * FLOAT32, sum(sizes.values()) * FLOAT32
    # what is computed and what is being written; of what is not computed in slices also the tensors of all models, and
    # what is made of them on the way
    sliced = recipe.method.elementwise or "dtype" in recipe.method.inputs
    memory = {"fusing": (2 + 2 * len(typed) * (not sliced)) * largest}
    if not unmoved:
        memory["matching"], moved = _matching(recipe, spec, sizes)
        memory["fusing"] += len(typed) * moved
        if recipe.match.anchor == "consensus":
            memory["matching"] += whole  # a mean
    if recipe.method.couple is not None:
        memory["coupling"] = whole  # a model that is run to see how its modules follow one another
    if recipe.method.statistics is not None:
        maps = [entry.layout.shape for entry in spec.entries.values() if entry.index and len(entry.layout.shape) == 2]
        grams = sum((inputs + 1) ** 2 for _, inputs in maps) * FLOAT64  # less where maps read the same
        one = {
            "fisher": whole,
            "grams": grams,
            "grams_in_turn": grams,
            "activations": SAMPLED * sum(outputs for outputs, _ in maps) * FLOAT32,
        }[recipe.method.statistics]
        running = whole * (2 if recipe.method.statistics == "fisher" else 1)  # with its gradients
        memory["statistics"] = running + models * one
    if recipe.after is not None:  # healing also: gradients, two moments, and what did best so far
        memory["after the merge"] = whole * (1 + len(typed) + 4 * (recipe.after.heal is not None))
    return memory


def gains_size(n: int) -> int:
    """Bytes of the table of what every pair of so many neurons gains, as it is solved."""
    return n**2 * (FLOAT64 if n <= EXACT else FLOAT32)


def _matching(recipe: Recipe, spec: Spec, sizes: Mapping[str, int]) -> tuple[int, int]:
    """Bytes of what is held to find elements, by all workers, and of the largest tensor that is moved, in float32."""
    choice = Choice.parse(recipe.match.symmetry, recipe.match.layers)
    keys = [key for key in spec.sites if choice.frees(spec, key)]
    ordered = any(spec.spaces[key[0]].part == "heads" for key in keys)
    streams = {key[0] for key in keys if spec.spaces[key[0]].part == "residual"}
    held, largest = 0, 0
    for space in {key[0] for key in keys}:
        free = [key for key in keys if key[0] == space]
        moved = FLOAT32 * max(sizes.get(site.tensor, 0) for key in free for site in spec.sites[key])
        n, workers = spec.sizes[space], min(len(free), torch.get_num_threads())
        if spec.spaces[space].part == "ffn":  # what every pair gains, made in parts of tables
            tables = gains_size(n) + PARTS * min(TABLE, n**2 * FLOAT32)
            workers = 1 if n**2 * FLOAT32 > LARGE else workers
        else:  # Grams, those of all pairs of heads where their order is free, and what a solver makes of them
            alike = {key[0] for key in keys if spec.spaces[key[0]].over == spec.spaces[space].over}
            tables = pairs_size(spec, alike if ordered else [space], ordered)
            workers = 1 if ordered and tables > LARGE else workers
            if streams and space not in streams:  # tensors are held as streams have moved them
                family = ("experts", "ffn") if spec.spaces[space].part == "experts" else ("heads", "attention")
                layer = [key for key in keys if spec.index(key) == spec.index(free[0])]
                names = {site.tensor for key in layer if spec.spaces[key[0]].part in family for site in spec.sites[key]}
                tables += min(HELD, FLOAT32 * sum(sizes.get(name, 0) for name in names))
        held, largest = max(held, workers * (tables + 3 * moved)), max(largest, moved)
    return held, largest
