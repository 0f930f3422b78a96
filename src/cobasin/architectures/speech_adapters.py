"""Adapters of wav2vec 2.0: gated convolutions behind its layers, which shorten the sequence; small FFNs within them."""

from __future__ import annotations

from cobasin.architectures.parts import LAYER, NEURONS, Parts, layer_norm, linear, neurons
from cobasin.symmetry.groups import Permutation
from cobasin.symmetry.spec import Space

ADAPTER_KEYS = ("adapter_stride",)


def shortening(config, bare: bool) -> tuple[str, Parts]:
    """What reads the stream behind the layers: the space that a head reads of it, spaces and templates.

    The last channels are the output of a bare model. The others have signs and scales, in front of their gates.
    Without ``add_adapter`` there is nothing behind the layers.
    """
    if not getattr(config, "add_adapter", False):  # not all that have these layers have the key
        return "resid", ({}, {})
    count, size, read = config.num_adapter_layers, config.output_hidden_size, "resid"
    spaces, templates = {"tap": Space(config.adapter_kernel_size)}, dict[str, str]()
    if size != config.hidden_size:
        read = "narrow"
        templates |= linear("adapter.proj", read, "resid") | layer_norm("adapter.proj_layer_norm", read)
        spaces[read] = Space(size, Permutation() if count or not bare else None, part="ffn")
    for i in range(count):
        written, last = f"shorter{i}", bare and i == count - 1
        spaces[written] = Space(size, None if last else NEURONS, part="ffn")
        out = f"({written} + {written}~)"
        templates |= linear(f"adapter.layers.{i}.conv", out, f"{read} tap")
        read = f"{written}'"
    return read, (spaces, templates)


def within_layers(config) -> Parts:
    """Spaces and templates of what each layer ends in, of which MMS has one for every language."""
    name = "encoder.layers.{layer}.adapter_layer"
    return {"added": Space(config.adapter_attn_dim, neurons("relu"), LAYER, part="ffn")}, {
        **layer_norm(f"{name}.norm"),
        **linear(f"{name}.linear_1", "added", "resid"),
        **linear(f"{name}.linear_2", "resid", "added'"),
    }
