"""Fine-tuning a model, and the settings that all training here shares."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from cobasin.errors import InputError

if TYPE_CHECKING:
    from transformers import TrainingArguments


def training_arguments(seed: int, /, **given: Any) -> TrainingArguments:
    """What is given, and what holds for all training here where it is not.

    Raises:
        InputError: they cannot be used.
    """
    from transformers import TrainingArguments

    numbers = {field.name for field in fields(TrainingArguments) if type(field.default) in (int, float)}
    if wrong := [name for name in given if name in numbers and isinstance(given[name], str)]:
        raise InputError(f"training: {wrong[0]}: {given[wrong[0]]!r}: expected a number")
    own: dict[str, Any] = {"seed": seed, "save_strategy": "no", "report_to": "none"}
    own |= {"disable_tqdm": not sys.stderr.isatty(), "dataloader_pin_memory": torch.cuda.is_available()}
    try:
        found = TrainingArguments(**(own | given))
    except (TypeError, ValueError) as error:
        raise InputError(f"training: {' '.join(str(error).split())}") from None
    if found.eval_strategy != "no":
        raise InputError(f"training: eval_strategy {given['eval_strategy']!r}: nothing is evaluated; leave it out")
    return found


def fine_tune(
    model: Any,
    rows: Sequence[Mapping[str, Any]],
    folder: Path,
    seed: int,
    collator: Any = None,
    loss: Callable[..., Any] | None = None,
    /,
    **arguments: Any,
) -> dict[str, Any]:
    """Train a model, and write it; the ``seconds`` of training, and the ``device``.

    Args:
        model: of Transformers; it is on the CPU at the end.
        rows: encoded, with labels.
        folder: one that is there.
        seed: of the order of the rows.
        collator: makes a batch of rows; None where all have the same length.
        loss: of outputs and labels; None for the model's own.
        arguments: of ``transformers.TrainingArguments``.

    Raises:
        InputError: the arguments cannot be used; the training diverged.
    """
    import transformers

    trainer = transformers.Trainer(
        model,
        training_arguments(seed, **({"output_dir": str(folder)} | arguments)),
        data_collator=collator,
        train_dataset=rows,  # type: ignore[arg-type] - any sequence will do
        compute_loss_func=loss,
    )
    started = time.perf_counter()
    with redirect_stdout(sys.stderr):  # where the Trainer prints its losses: they are no results
        trainer.train()
    seconds = time.perf_counter() - started
    if wrong := next((name for name, x in model.named_parameters() if not x.isfinite().all()), None):
        raise InputError(f"training: it diverged: {wrong} is not finite; lower learning_rate")
    model.to("cpu").save_pretrained(folder)
    return {"seconds": seconds, "device": str(trainer.args.device)}
