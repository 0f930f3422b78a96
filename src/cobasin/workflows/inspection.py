"""What `cobasin inspect` shows: the type of a model, and the architectures that are known."""

from __future__ import annotations

import math
from collections import Counter
from inspect import getsourcefile, getsourcelines
from typing import Any

from cobasin.architectures import declare, registered
from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from cobasin.symmetry.spec import Spec


def inspect(model: Any) -> dict:
    """Spaces, groups, sizes, and tensors by type, of anything `load` takes.

    ``dimension`` is that of the symmetry group as a manifold: the number of independent continuous directions
    in which the weights can move without changing the function (with the norms folded, where they can be).

    Raises:
        InputError: as `load`; for an architecture that is not declared, and tensors that do not fit its declaration.
    """
    typed = Typed.of(load(model))
    spec = typed.spec
    types: Counter[str] = Counter()
    parameters: Counter[str] = Counter()
    for entry in (entry for name, entry in spec.entries.items() if name not in spec.tied):
        types[entry.layout.text] += 1
        parameters[entry.layout.text] += math.prod(entry.layout.shape)
    spaces = describe_spaces(spec)
    return {
        "model": typed.checkpoint.label,
        "architecture": spec.architecture,
        "dtypes": sorted({str(h.dtype).removeprefix("torch.") for h in typed.checkpoint.headers.values()}),
        "parameters": sum(parameters.values()),
        "spaces": spaces,
        "dimension": sum(space["dimension"] for space in spaces),
        "types": [{"type": t, "tensors": count, "parameters": parameters[t]} for t, count in types.items()],
    }


def describe_spaces(spec: Spec) -> list[dict]:
    """One row a space that tensors use: size, group (with the norms folded, if they can be), copies, dimension."""
    used = {axis.space for entry in spec.entries.values() for axis in entry.layout.axes}
    elements: Counter[str] = Counter()
    for key in spec.sites:
        elements[key[0]] += math.prod(spec.batch(key[0]))
    rows = []
    for name, space in spec.spaces.items():
        if name not in used:
            continue
        group = spec.group(name, folded=bool(spec.norms))
        text, dimension = group.describe(space.size) if group else ("fixed", 0)
        rows.append(
            {
                "space": name,
                "size": space.size,
                "group": text,
                "over": list(space.over),
                "elements": elements[name],
                "dimension": dimension * elements[name],
                "part": space.part,
            }
        )
    return rows


def known_architectures() -> list[dict]:
    """Every declared class with the group of every space, at the sizes of Transformers' default configuration.

    ``lines`` is the length of the function that declares it, ``file`` where that is. ``groups`` is empty for a
    declaration that does not cover the default configuration, of which ``note`` then says why.
    """
    from transformers import AutoConfig

    rows = []
    for architecture, declared in registered().items():
        groups, note = {}, None
        try:
            config = AutoConfig.for_model(declared.model_type)
            for part, kind in config.sub_configs.items():  # towers that a model may lack
                if getattr(config, part, None) is None:
                    other = kind is AutoConfig  # of another model
                    setattr(config, part, config.sub_configs_defaults[part].default_config if other else kind())
            spec = declare(config, architecture)
            groups = {row["space"]: row["group"] for row in describe_spaces(spec)}
        except InputError as error:
            note = str(error)
        rows.append(
            {
                "architecture": architecture,
                "family": declared.family,
                "head": declared.head,
                "model_type": declared.model_type,
                "groups": groups,
                "note": note,
                "lines": len(getsourcelines(declared.declaration)[0]),
                "file": getsourcefile(declared.declaration),
            }
        )
    return rows
