"""Declarations that somebody writes: a draft of one, and (`checking`) whether one is right.

The draft is the source of a spec file, for an architecture that nobody has declared: text, for a person to check and
then to pass with ``--spec``.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

from cobasin.architectures import registered
from cobasin.checkpoints.checkpoint import load
from cobasin.proposal.attention import attention
from cobasin.proposal.draft import Draft
from cobasin.proposal.rest import ends, ffn, function_keys, norms, unknown

WIDTH = 120  # of a line
MODULES = {
    "cobasin.architectures": ("Request", "declares"),
    "cobasin.architectures.parts": ("neurons",),
    "cobasin.symmetry.gauges": ("KeyBias", "Norm", "SoftmaxShift", "ValueBias"),
    "cobasin.symmetry.groups": ("Orthogonal", "Permutation", "Rotation2", "SignedPermutation"),
    "cobasin.symmetry.spec": ("Space", "Spec"),
}


def propose(model: Any) -> str:
    """The source of a Python file that declares the architecture of a model. It is a draft, and says what it guessed.

    Args:
        model: anything `load` takes; its architecture need not be declared. No tensor is read.

    Raises:
        InputError: for a model that is no decoder or encoder with one stack of layers.
    """
    draft = Draft(load(model))
    for step in (attention, ffn, ends, norms, unknown, function_keys):
        step(draft)
    return render(draft)


def render(draft: Draft) -> str:
    """A draft as Python source."""
    function = re.sub(r"\W", "_", draft.model_type)
    body = [
        f'@declares("{draft.family}", "{draft.model_type}", "{draft.head}")',
        f"def {function}(request: Request) -> Spec:",
        f'    """{draft.family}: a draft, UNVERIFIED."""',
        "    config = request.config",
        *(f"    {name} = {value}" for name, value in draft.variables.items()),
        "    return Spec(",
        "        request.architecture,",
        *_block("spaces", "{}", [_call(f'"{name}": Space', parts, 3) for name, parts in draft.spaces.items()]),
        *_block("templates", "{}", [f'"{name}": "{draft.templates[name]}"' for name in draft.shapes]),
        f'        prefix="{draft.prefix}",',
    ]
    if draft.tied:
        ties = ", ".join(f'"{name}": "{twin}"' for name, twin in draft.tied.items())
        body.append(f"        tied={{{ties}}} if config.tie_word_embeddings else {{}},")
    body += [
        *_block("norms", "()", [_call("Norm", parts, 3) for parts in draft.norms]),
        *_block("biases", "()", [_call(name, parts, 3) for name, parts in draft.biases]),
        *_block("absent", "()", [f'r"{pattern}"' for pattern in draft.absent]),
        *_block("buffers", "()", [f'r"{pattern}"' for pattern in draft.buffers]),
        *_block("function_keys", "()", [f'"{key}"' for key in draft.keys]),
        "    )",
    ]
    source = "\n".join(body)
    imports = [
        f"from {module} import {', '.join(used)}"
        for module, names in MODULES.items()
        if (used := [name for name in names if re.search(rf"\b{name}\b", source)])
    ]
    return "\n".join([*_header(draft), "", *imports, "", "", source, ""])


def _header(draft: Draft) -> list[str]:
    declared = registered().get(draft.architecture)
    return [
        f'"""UNVERIFIED draft of a declaration of {draft.architecture}: from tensor names, shapes and config alone.',
        "",
        "Settle these points against the model's code:",
        "",
        *(
            textwrap.fill(doubt, WIDTH - 2, initial_indent=f"{number:2}. ", subsequent_indent="    ")
            for number, doubt in enumerate(draft.doubts, start=1)
        ),
        "",
        "Then see whether it holds: cobasin inspect MODEL --spec THIS_FILE --check"
        if declared is None
        else f"{draft.architecture} is declared already, by {declared.declaration.__module__}: --spec refuses this one",
        '"""',
    ]


def _call(name: str, arguments: list[str], depth: int) -> str:
    """A call, over several lines where it is long; so is an argument that is a tuple."""
    line = f"{name}({', '.join(arguments)})"
    if len(line) + 4 * depth < WIDTH:
        return line
    indent = "    " * (depth + 1)
    parts = []
    for argument in arguments:
        if argument.startswith("(") and len(argument) + len(indent) >= WIDTH:
            argument = _call("", argument[1:-1].rstrip(",").split(", "), depth + 1)
        parts.append(f"{indent}{argument},")
    return "\n".join([f"{name}(", *parts, f"{'    ' * depth})"])


def _block(name: str, brackets: str, lines: list[str]) -> list[str]:
    """A keyword argument over several lines; none where it is empty."""
    if not lines:
        return []
    return [f"        {name}={brackets[0]}", *(f"            {line}," for line in lines), f"        {brackets[1]},"]
