"""Checkpoints of a chosen size with random weights, in bfloat16, written shard by shard without building a model."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

STD = 0.02  # of all matrices


@dataclass(frozen=True)
class Geometry:
    """The sizes of a Llama; with ``experts`` those of a Mixtral, one file tensor for each matrix of each expert.

    Layers that are ``alike`` have the weights of the first: a large checkpoint is written in minutes.
    """

    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    experts: int = 0
    alike: bool = False

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape of every tensor, in the order of the file."""
        h, kv = self.hidden, self.hidden // self.heads * self.kv_heads
        yield "model.embed_tokens.weight", (self.vocabulary, h)
        for i in range(self.layers):
            start = f"model.layers.{i}"
            for name, rows in (("q", h), ("k", kv), ("v", kv), ("o", h)):
                yield f"{start}.self_attn.{name}_proj.weight", (rows, h)
            if not self.experts:
                for name, shape in (("gate", (self.ffn, h)), ("up", (self.ffn, h)), ("down", (h, self.ffn))):
                    yield f"{start}.mlp.{name}_proj.weight", shape
            else:
                yield f"{start}.block_sparse_moe.gate.weight", (self.experts, h)
                for expert in range(self.experts):
                    for name, shape in (("w1", (self.ffn, h)), ("w2", (h, self.ffn)), ("w3", (self.ffn, h))):
                        yield f"{start}.block_sparse_moe.experts.{expert}.{name}.weight", shape
            yield f"{start}.input_layernorm.weight", (h,)
            yield f"{start}.post_attention_layernorm.weight", (h,)
        yield "model.norm.weight", (h,)
        yield "lm_head.weight", (self.vocabulary, h)

    @property
    def config(self) -> dict:
        """What config.json says."""
        found = {
            "architectures": ["MixtralForCausalLM" if self.experts else "LlamaForCausalLM"],
            "model_type": "mixtral" if self.experts else "llama",
            "hidden_size": self.hidden,
            "intermediate_size": self.ffn,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        }
        return found | ({"num_local_experts": self.experts, "num_experts_per_tok": 2} if self.experts else {})


def make(geometry: Geometry, folder: Path, seed: int, noise: int | None = None, shard_bytes: int = 10**9) -> Path:
    """Write a checkpoint, unless it is there.

    Args:
        geometry: its sizes.
        folder: where.
        seed: of its weights.
        noise: the seed of noise of 5 % that is added; none where None.
        shard_bytes: of a file, at most, unless a tensor is larger.
    """
    if (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    filled = 0
    for name, shape in geometry.shapes():
        size = 2 * torch.Size(shape).numel()
        if shards[-1] and filled + size > shard_bytes:
            shards.append({})
            filled = 0
        shards[-1][name], filled = shape, filled + size
    drawn: dict[str, Tensor] = {}

    def made(name: str, shape: tuple[int, ...]) -> Tensor:
        if not geometry.alike:
            return _tensor(name, shape, seed, noise)
        first = re.sub(r"layers\.\d+\.", "layers.0.", name)
        if first not in drawn:
            drawn[first] = _tensor(first, shape, seed, noise)
        return drawn[first].clone()  # a file has every tensor once

    weight_map = {}
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        tensors = {name: made(name, shape) for name, shape in shard.items()}
        save_file(tensors, folder / file, {"format": "pt"})
        weight_map |= dict.fromkeys(shard, file)
    total = sum(2 * torch.Size(shape).numel() for _, shape in geometry.shapes())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(geometry.config, indent=2))
    return folder


def _tensor(name: str, shape: tuple[int, ...], seed: int, noise: int | None) -> Tensor:
    def normal(of: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed_of(f"{of} {name}"))
        return torch.randn(shape, generator=generator) * STD

    tensor = normal(seed) if noise is None else normal(seed) + 0.05 * normal(1000 + noise)
    return (tensor + 1 if len(shape) == 1 else tensor).bfloat16()


def seed_of(text: str) -> int:
    """A seed from a text, the same in every process."""
    return zlib.crc32(text.encode())
