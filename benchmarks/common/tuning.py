"""Fine-tuning a model, and its folder."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cobasin.checkpoints.output import publishing


def fine_tune(
    model: Any, rows: Sequence[Mapping[str, Any]], out: Path, seed: int, tokenizer: Any = None, **arguments: Any
) -> None:
    """Train a model, and write its folder, all or nothing.

    Args:
        model: of Transformers.
        rows: encoded, with labels; padded where there is a ``tokenizer``, which goes along.
        out: the folder.
        seed: of the order of the rows.
        arguments: of ``transformers.TrainingArguments``.
    """
    import datasets
    import transformers

    with publishing(out, False, None) as partial:
        asked = transformers.TrainingArguments(
            output_dir=str(partial),
            seed=seed,
            save_strategy="no",
            report_to="none",
            disable_tqdm=not sys.stderr.isatty(),
            dataloader_pin_memory=False,
            **arguments,
        )
        collator = tokenizer and transformers.DataCollatorWithPadding(tokenizer)
        data = datasets.Dataset.from_list(list(rows))
        transformers.Trainer(model, asked, data_collator=collator, train_dataset=data).train()
        model.save_pretrained(partial)
        if tokenizer is not None:
            tokenizer.save_pretrained(partial)
