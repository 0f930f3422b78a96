"""Model cards of what cobasin writes."""

from __future__ import annotations

_FRONT = "---\nlibrary_name: transformers\ntags:\n- merge\n- cobasin\n---\n"
_ADAPTER_FRONT = _FRONT.replace("transformers", "peft")


def matched(report: dict) -> str:
    """The card of a matched model."""
    return (
        f"{_front(report)}# {report['source']}, matched to {report['anchor']}\n\n"
        f"This model computes the same function as `{report['source']}`. Its weights were transformed by "
        f"[cobasin](https://pypi.org/project/cobasin/) {report['cobasin']} (`--symmetry {report['symmetry']}`) to lie "
        f"close to `{report['anchor']}`, so that the two can be averaged. The transformation is in "
        f"`cobasin.safetensors`, all numbers in `cobasin.json`.\n\n{_numbers(report)}"
    )


def applied(report: dict) -> str:
    """The card of a model or an adapter that was moved by a saved element."""
    verification = report["verification"]
    function = "not run on probe inputs" if verification is None else verification["reason"]
    notes = "".join(f"- note: {note}\n" for note in report["notes"])
    return (
        f"{_front(report)}# {report['model']}, moved by {report['element']}\n\n"
        f"The same function in other weights, by [cobasin](https://pypi.org/project/cobasin/) {report['cobasin']}.\n\n"
        f"- function, in float64: {function}\n{notes}"
    )


def merged(report: dict) -> str:
    """The card of a merged model."""
    rows = "".join(
        f"| `{model}` | {weight:.4g} |\n" for model, weight in zip(report["models"], report["weights"], strict=True)
    )
    head = f"The task head is that of `{report['head_from']}`.\n" if report["head_from"] else ""
    parts = "".join(
        f"\n## `{one['source']}`, matched to `{report['models'][0]}`\n\nTransformation: `cobasin-{i}.safetensors`\n\n"
        f"{_numbers(one)}"
        for i, one in enumerate(report["matches"], start=1)
    )
    return (
        f"{_FRONT}# Merged model\n\nWeighted average by [cobasin](https://pypi.org/project/cobasin/) "
        f"{report['cobasin']}, matched with `--match {report['match']}`.\n\n"
        f"| model | weight |\n|---|---|\n{rows}\n{head}{parts}"
    )


def _front(report: dict) -> str:
    return _ADAPTER_FRONT if report.get("adapter") else _FRONT


def _numbers(report: dict) -> str:
    verification = report["verification"]
    function = "not run on probe inputs (large model)" if verification is None else verification["reason"]
    deviation = max(report["deviation_from_group"].values(), default=0.0)
    notes = "".join(f"- note: {note}\n" for note in report["notes"])
    worst = ", ".join(f"{space} {figure:.3g}" for space, figure in report.get("condition", {}).items())
    notes = (f"- largest condition number of a map: {worst}\n" if worst else "") + notes
    return (
        f"- distance to the anchor, in canonical form: {report['objective'][0]:.6g} before, "
        f"{report['objective'][-1]:.6g} after\n"
        f"- distance of the files as they are: {report['distance_before']:.6g} before, "
        f"{report['distance_after']:.6g} after\n"
        f"- function, in float64: {function}\n"
        f"- deviation of the transformation from its group: {deviation:.1e}\n{notes}"
    )
