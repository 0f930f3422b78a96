"""What the tests of merging share: small models in folders, data for them, recipes, every method with its arguments."""

import copy
import json
from contextlib import AbstractContextManager
from pathlib import Path
from unittest.mock import patch

import torch
import yaml

from cobasin.finding.match import match_all
from cobasin.fusion.registry import Method, methods
from cobasin.merging import merge as merging
from tiny_models import model

CLASSIFIER = "bert/BertForSequenceClassification"
METHODS = [name for name, one in methods().items() if not one.stacks]  # those that fuse
PARAMETERS = {
    "slerp": {"t": 0.3},
    "task_arithmetic": {"weight": 0.6},
    "ties": {"weight": 0.6, "density": 0.5},
    "dare_linear": {"weight": 0.6, "density": 0.5},
    "dare_ties": {"weight": 0.6, "density": 0.5},
    "breadcrumbs": {"weight": 0.6, "density": 0.5, "gamma": 0.1},
    "breadcrumbs_ties": {"weight": 0.6, "density": 0.5, "gamma": 0.1},
    "della": {"weight": 0.6, "density": 0.5},
    "della_linear": {"weight": 0.6, "density": 0.5},
    "sce": {"select_topk": 0.5},
    "nearswap": {"t": 0.05},
}


def saved(folder: Path, case: str, count: int) -> list[Path]:
    """A random model of a case and others not far from it, as folders, in float32."""
    original = model(case, 0, torch.float32)
    start = copy.deepcopy(original.state_dict())
    for seed in range(count):
        noise = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, value in original.state_dict().items():
                if value.is_floating_point():
                    value.copy_(start[name] + 0.1 * seed**0.5 * torch.randn(value.shape, generator=noise))
        original.save_pretrained(folder / str(seed))
    return [folder / str(seed) for seed in range(count)]


def token_rows(path: Path, count: int = 8, labels: int = 2, vocabulary: int = 40, seed: int = 0) -> Path:
    """Rows of random token ids with labels."""
    generator = torch.Generator().manual_seed(seed)
    rows = [
        {"input_ids": torch.randint(5, vocabulary, (4 + i % 5,), generator=generator).tolist(), "label": i % labels}
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def recipe(path: Path, method: str, models: list, own: list[dict] | None = None, **keys) -> Path:
    """A recipe file; ``own`` are parameters, one mapping a model."""
    entries = [{"model": str(one)} | ({"parameters": own[i]} if own else {}) for i, one in enumerate(models)]
    content = {"merge_method": method, "models": entries, **keys}
    path.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return path


def roles(method: Method, models: list) -> tuple[list, object]:
    """Of a base and two others: the models that the method merges, and its base if it has one."""
    if not method.takes_base:
        return models[:2], None
    return models[1 : 1 + (method.most or 2)], models[0]


def matching_once() -> AbstractContextManager:
    """Within it, models are matched the first time only: what a method does with them is quick."""
    found: dict = {}

    def matched(typed, *how, progress, **search):
        key = tuple(model.checkpoint.folder or model.checkpoint.read for model in typed), how, repr(search)
        if key not in found:
            found[key] = match_all(typed, *how, progress=progress, **search)
        return found[key]

    return patch.object(merging, "match_all", matched)
