"""Model cards of what cobasin writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_FRONT = "---\nlibrary_name: transformers\ntags:\n- merge\n- cobasin\n---\n"
_ADAPTER_FRONT = _FRONT.replace("transformers", "peft")


def matched(report: dict) -> str:
    """The card of a matched model."""
    return (
        f"{_front(report)}# {report['source']}, matched to {report['anchor']}\n\n"
        f"This model computes the same function as `{report['source']}`. Its weights were transformed by "
        f"cobasin {report['cobasin']} (`{_freed(report)}`) to lie "
        f"close to `{report['anchor']}`, so that the two can be averaged. The transformation is in "
        f"`cobasin.safetensors`, all numbers in `cobasin.json`.\n\n{_numbers(report)}"
    )


def anchor(report: dict) -> str:
    """The card of an anchor that was moved together with the model that is matched to it."""
    moved, out = report["anchor_report"], report["out"]
    return (
        f"{_front(report)}# {report['anchor']}, moved to meet {report['source']}\n\n"
        f"This model computes the same function as `{report['anchor']}`. Its weights were transformed by "
        f"cobasin {report['cobasin']} (`{_freed(report)}`), as "
        f"those of `{report['source']}`, written to `{out}`, were: the two can be averaged. The transformation is in "
        f"`cobasin.safetensors`, all numbers in `cobasin.json`. Distances are from where it was.\n\n"
        f"{_numbers(moved)}"
    )


def applied(report: dict) -> str:
    """The card of a model or an adapter that was moved by a saved element."""
    return (
        f"{_front(report)}# {report['model']}, moved by {report['element']}\n\n"
        f"The same function in other weights, by cobasin {report['cobasin']}.\n\n"
        f"- function, in float64: {_function(report)}\n{_notes(report)}"
    )


def transported(report: dict) -> str:
    """The card of what a fine-tune has learned, on another base than its own."""
    times = "" if report["scale"] == 1.0 else f", times {report['scale']:g},"
    what = f"What `{report['tuned']}` has learned since `{report['base']}`{times} on top of `{report['new']}`"
    if report.get("adapter"):
        what = f"The adapter `{report['tuned']}` of `{report['base']}`, for `{report['new']}`"
    return (
        f"{_front(report)}# {report['tuned']}, carried to {report['new']}\n\n{what}, by "
        f"cobasin {report['cobasin']}: moved by the transformation that brings "
        f"the one base to the other (`cobasin.safetensors`; `{_freed(report)}`). How much of what was "
        f"learned it keeps was not measured. All numbers are in `cobasin.json`; those here are of the two bases, and "
        f"of what was moved.\n\n{_numbers(report)}"
    )


def merged(report: dict) -> str:
    """The card of a merged model."""
    weights = report["weights"] or [None] * len(report["models"])
    shares: dict[str, float | None] = dict.fromkeys(report["parents"])
    for model, weight in zip(report["models"], weights, strict=True):
        shares[model] = weight if shares[model] is None or weight is None else shares[model] + weight
    rows = "".join(
        f"| {_code(model)} | {'' if shares[model] is None else format(shares[model], '.4g')} | {hash_} |\n"
        for model, hash_ in report["parents"].items()
    )
    head = ""
    if report["head"] == "keep":
        kept = "".join(f"- `{folder}`: that of {_code(model)}\n" for folder, model in report["heads"].items())
        head = f"The models in these folders differ in their task heads only:\n\n{kept}\n"
    elif report["head"]:
        head = f"The task head is that of {_code(report['head'])}.\n\n"
    data = "".join(
        f"- data of {_code(model)}: {one['rows']} rows, sha256 {one['digest']}\n"
        for model, one in report["statistics"].items()
    )
    notes = _notes(report)
    if (objective := report["matching"].get("objective")) is not None:
        notes = f"- distance of all to their mean: {objective[0]:.6g} before, {objective[-1]:.6g} after\n{notes}"
    after = "" if report["after"] is None else _after(report["after"])
    match = "not matched before"
    if report["match"] != "none":
        match = f"matched before (symmetry `{report['match']}`, anchor {_code(report['anchor'])})"
    parts = "".join(
        f"\n## {_code(one['source'])}, matched to {_code(report['reference'])}\n\n"
        f"Transformation: `{one['file']}`\n\n{_numbers(one)}"
        for one in report["matches"]
    )
    return (
        f"{_FRONT}# Merged model\n\nMerged by cobasin {report['cobasin']} with "
        f"`{report['method']}`; the models were {match}.\n\n"
        f"| parent | weight | fingerprint |\n|---|---|---|\n{rows}\n{head}{data}{notes}\n"
        f"```yaml\n{report['recipe'].rstrip()}\n```\n{after}{parts}"
    )


def _after(report: dict) -> str:
    """What followed the merge, apart from it."""
    inputs, losses = report["inputs"], report["losses"]
    source = inputs["kind"] + (f" (sha256 {inputs['digest']})" if inputs["digest"] else "")
    done = {"merge": "the merge itself"}
    if "repair" in report:
        done["repair"] = f"the same, the statistics of {report['repair']['norms']} norms repaired"
    if (heal := report.get("heal")) is not None:
        done["heal"] = f"then healed against {heal['loss']}: at most {heal['steps']} steps, rate {heal['rate']:g}"
    against = list(losses["merge"])
    rows = "".join(
        f"| {text} | {' | '.join(f'{losses[stage][word]:.4g}' for word in against)} |\n" for stage, text in done.items()
    )
    return (
        f"\n## After the merge\n\nThe weights here are those of the last line; what follows the first is no part of "
        f"the merge. It was done on {inputs['count']} {source}, of which {inputs['held_out']} were held out for these "
        f"losses.\n\n| loss | {' | '.join(f'against {word}' for word in against)} |\n|---|{'---|' * len(against)}\n"
        f"{rows}"
    )


def _freed(report: dict) -> str:
    """The options that say what of the symmetry group was matched."""
    return f"--symmetry {report['symmetry']}" + (f" --layers {layers}" if (layers := report.get("layers")) else "")


def _code(text: str) -> str:
    """A name in Markdown, also in a table."""
    fence = "`` " if "`" in text else "`"
    return fence + text.replace("|", "\\|") + fence[::-1]


def _front(report: dict) -> str:
    return _ADAPTER_FRONT if report.get("adapter") else _FRONT


def _numbers(report: dict) -> str:
    deviation = max(report["deviation_from_group"].values(), default=0.0)
    worst = ", ".join(f"{space} {figure:.3g}" for space, figure in report.get("condition", {}).items())
    notes = (f"- largest condition number of a map: {worst}\n" if worst else "") + _notes(report)
    return (
        f"- distance to the anchor, in canonical form: {report['objective'][0]:.6g} before, "
        f"{report['objective'][-1]:.6g} after\n"
        f"- distance of the files as they are: {report['distance_before']:.6g} before, "
        f"{report['distance_after']:.6g} after\n"
        f"- function, in float64: {_function(report)}\n"
        f"- deviation of the transformation from its group: {deviation:.1e}\n{notes}"
    )


def _notes(report: Mapping[str, Any]) -> str:
    return "".join(f"- note: {note}\n" for note in report["notes"])


def _function(report: Mapping[str, Any]) -> str:
    """What is known of the function."""
    verification = report["verification"]
    if verification is None:
        return report["not_verified"]
    rounded = verification.get("rounded")
    return verification["reason"] + (f"; rounded to the dtypes of the file, {rounded}" if rounded else "")
