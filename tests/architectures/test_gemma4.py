"""Gemma 4: which layers share keys and values."""

from transformers import Gemma4TextConfig

from cobasin.architectures import declare
from tiny_models import config


def shared(case):
    return [space for space in declare(config(case), case.split("/")[1]).spaces if space.startswith("shared_")]


def test_layers_that_store_keys_for_none_are_like_others(monkeypatch):
    """Transformers 5.24 has the last layer of every kind store them, whether any reads them or not."""
    assert shared("gemma4-shared/Gemma4ForCausalLM")
    monkeypatch.setattr(Gemma4TextConfig, "kv_sharing_modes", ["store", "store"])
    assert not shared("gemma4-experts/Gemma4ForCausalLM")
