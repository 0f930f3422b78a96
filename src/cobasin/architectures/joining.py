"""Types made of types: the same under other names, and two parts of a model as one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from cobasin.symmetry.spec import Space, Spec


def relabelled(spec: Spec, space: Callable[[str], str] = str, name: Callable[[str], str] = str) -> Spec:
    """The same under other names: of the spaces, and of the tensors, but for patterns of names and config keys."""

    def tensor(template: str) -> str:
        return name(re.sub(r"\{[^}]*\}", lambda found: named(found[0]), template))

    def named(type_: str) -> str:
        return re.sub(r"[A-Za-z_]\w*", lambda found: space(found[0]), type_)

    def moved(own: Space) -> Space:
        return replace(own, over=tuple(map(space, own.over)), within=own.within and space(own.within))

    def gauge(declared):
        def field(key: str, value):
            if isinstance(value, tuple):
                return tuple(map(tensor, value))
            if not isinstance(value, str) or key == "part":
                return value
            return space(value) if key in ("stream", "space") else tensor(value)

        return replace(declared, **{key: field(key, value) for key, value in vars(declared).items()})

    return replace(
        spec,
        spaces={space(key): moved(own) for key, own in spec.spaces.items()},
        templates={tensor(template): named(type_) for template, type_ in spec.templates.items()},
        tied={name(tied): name(owner) for tied, owner in spec.tied.items()},
        norms=tuple(map(gauge, spec.norms)),
        scales=tuple(map(gauge, spec.scales)),
        biases=tuple(map(gauge, spec.biases)),
        plus_one=tuple(map(tensor, spec.plus_one)),
    )


def joined(
    text: Spec,
    vision: Spec,
    templates: dict[str, str],
    apart: str = "vision_",
    configs: tuple[str, str] = ("text_config", "vision_config"),
) -> Spec:
    """A model of two towers, each with a config within the config.

    The spaces of the second are called ``apart`` and their name, but for the joint one.
    """
    vision = relabelled(vision, space=lambda name: name if name == "joint" else f"{apart}{name}")
    return replace(
        text,
        spaces={**text.spaces, **vision.spaces},
        templates={**text.templates, **vision.templates, **templates},
        tied={**text.tied, **vision.tied},
        norms=(*text.norms, *vision.norms),
        scales=(*text.scales, *vision.scales),
        biases=(*text.biases, *vision.biases),
        plus_one=(*text.plus_one, *vision.plus_one),
        buffers=(*text.buffers, *vision.buffers),
        unread=(*text.unread, *vision.unread),
        function_keys=(
            *(f"{configs[0]}.{key}" for key in text.function_keys),
            *(f"{configs[1]}.{key}" for key in vision.function_keys),
        ),
    )


def without_keys(spec: Spec, *keys: str) -> Spec:
    """The same of a class that does not read these config keys."""
    return replace(spec, function_keys=tuple(key for key in spec.function_keys if key not in keys))
