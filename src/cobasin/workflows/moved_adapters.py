"""Adapters that were moved: what shows that they compute what they did, and what is said of them."""

from __future__ import annotations

from dataclasses import replace

import torch

from cobasin.adapters.folder import Adapter
from cobasin.adapters.match import apply_to_adapter, products
from cobasin.adapters.merged import merged as base_and_adapter
from cobasin.adapters.move import move_adapter
from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError, NotProbed
from cobasin.finding.acting import acting_on
from cobasin.finding.applying import transform
from cobasin.presenting import progress as bars
from cobasin.symmetry.element import Element
from cobasin.verification import VERIFIED_PARAMETERS, change, judge, verify
from cobasin.workflows.shared import checked, not_run


def products_kept(element: Element, adapter: Adapter) -> dict:
    """What shows that an adapter adds what it did: the products of its factors."""
    before, after = products(adapter), products(apply_to_adapter(element, adapter, torch.float64))
    pairs = zip(before.values(), after.values(), strict=True)
    difference = max(float((old - new).norm() / old.norm().clamp_min(1e-300)) for old, new in pairs)
    reason = f"relative difference {difference:.1e} of the products of the factors"
    return {"deviation_from_group": element.deviation(), "verification": {"reason": reason}}


def on_new_base(moved: Adapter, adapter: Adapter, new: str | None) -> list[str]:
    """Name the base of a moved adapter in its config; what a reader should know of how it was moved."""
    moved.config["base_model_name_or_path"] = new  # of no revision, which moving has left out
    added = len(moved.headers) - len(adapter.headers)
    return [f"{added} biases (lora_bias) were added: they hold constants that the adapter read"] if added else []


def adapter_evidence(element: Element, adapter: Adapter, base: Typed | None) -> dict:
    """What shows that base and adapter together compute what they did, where the base is known and not large."""
    evidence: dict = {"deviation_from_group": element.deviation()}
    if base is None:
        why = f"not run on probe inputs: the base of {adapter.label} is no local folder; name it (--base FOLDER)"
        return evidence | {"verification": None, "not_verified": why}
    element, base = acting_on(element, base.checkpoint)
    if base.checkpoint.parameters > VERIFIED_PARAMETERS:
        return evidence | {"verification": None, "not_verified": "not run on probe inputs (large base)"}
    with bars.status("verifying the function of base and adapter in float64"):
        new_base = Typed.of(transform(element, base.checkpoint, torch.float64))
        moved = move_adapter(element, adapter, base, dtype=torch.float64)
        try:
            before, after = _joined(base, adapter), base_and_adapter(new_base, moved, torch.float64)
        except InputError as error:  # a bias where the base has none, or an adapted embedding that no config can untie
            return evidence | not_run(error)
        try:
            verdict = verify(before, after)
        except NotProbed as error:
            return evidence | not_run(error)
        found = checked(verdict, "base and adapter", base.spec.architecture)
        if verdict.relative_float64 is not None:
            written = base_and_adapter(new_base, move_adapter(element, adapter, base), torch.float64)
            kept, _, reason = judge(change(before, written), verdict.noise_float64)
            found |= {} if kept else {"same": None, "rounded": reason}
    return evidence | {"verification": found}


def _joined(base: Typed, adapter: Adapter) -> Checkpoint:
    """Base and adapter as one model in float64 that says it is stored as the base is: that tells what is rounding."""
    return replace(base_and_adapter(base, adapter, torch.float64), headers=base_and_adapter(base, adapter).headers)
