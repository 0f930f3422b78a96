"""Random tiny models as tensors by spec name, float64, without building a model."""

import torch
from transformers import BertConfig, GPT2Config, LlamaConfig, Mamba2Config, Qwen3_5TextConfig, StableLmConfig, ViTConfig

from cobasin.architectures import declare
from cobasin.checkpoints.checkpoint import load
from cobasin.symmetry.form import form_of as form

CONFIGS = {
    "bert": (
        "BertForMaskedLM",
        lambda: BertConfig(
            hidden_size=12,
            num_attention_heads=3,
            num_hidden_layers=2,
            intermediate_size=10,
            vocab_size=20,
            max_position_embeddings=6,
        ),
    ),
    "vit": (
        "ViTForImageClassification",
        lambda: ViTConfig(
            hidden_size=12,
            num_attention_heads=3,
            num_hidden_layers=2,
            intermediate_size=10,
            image_size=8,
            patch_size=4,
        ),
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        lambda: GPT2Config(
            n_embd=12,
            n_head=3,
            n_layer=2,
            vocab_size=20,
            n_positions=6,
            n_inner=10,
            tie_word_embeddings=False,
        ),
    ),
    "llama": ("LlamaForCausalLM", lambda: llama_config()),
    "llama with biases": ("LlamaForCausalLM", lambda: llama_config(attention_bias=True, mlp_bias=True)),
    "llama mqa": ("LlamaForCausalLM", lambda: llama_config(num_key_value_heads=1)),
}
BY_NAME = CONFIGS | {
    "stablelm": (
        "StableLmForCausalLM",
        lambda: StableLmConfig(
            hidden_size=24,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_hidden_layers=2,
            intermediate_size=10,
            vocab_size=20,
            qk_layernorm=True,
            partial_rotary_factor=0.34,
            use_parallel_residual=True,
            tie_word_embeddings=False,
        ),
    ),
    "qwen3.5": (
        "Qwen3_5ForCausalLM",
        lambda: Qwen3_5TextConfig(
            hidden_size=12,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            num_hidden_layers=2,
            layer_types=["linear_attention", "full_attention"],
            intermediate_size=10,
            vocab_size=20,
            linear_num_key_heads=3,
            linear_num_value_heads=6,
            linear_key_head_dim=5,
            linear_value_head_dim=4,
        ),
    ),
    "mamba2": (  # a gain that differs from head to head
        "Mamba2ForCausalLM",
        lambda: Mamba2Config(
            hidden_size=12,
            expand=2,
            num_heads=6,
            head_dim=4,
            n_groups=3,
            state_size=5,
            num_hidden_layers=2,
            vocab_size=20,
        ),
    ),
}


def llama_config(**changes):
    return LlamaConfig(
        **dict(
            hidden_size=16,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=6,
            num_hidden_layers=2,
            intermediate_size=10,
            vocab_size=20,
            tie_word_embeddings=False,
        )
        | changes
    )


def spec_of(family):
    architecture, config = BY_NAME[family]
    return declare(config(), architecture)


def form_of(family, folded=True):
    """A family's spec with all norms folded and all free biases moved."""
    return form(spec_of(family), folded=folded, free_biases=True)


def random_state(spec, seed=0):
    """A model with normal tensors and norm gains around one."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, entry in spec.entries.items():
        if name not in spec.tied:
            tensor = torch.randn(entry.layout.shape, generator=generator, dtype=torch.float64)
            gain = len(tensor.shape) == 1 and name.endswith("weight")
            state[name] = 1 + 0.2 * tensor if gain else 0.5 * tensor
    return state | {name: state[twin] for name, twin in spec.tied.items()}


def distance(a, b):
    """Euclidean distance over all tensors of ``b``."""
    return sum(float((a[name] - b[name]).square().sum()) for name in b) ** 0.5


def checkpoint(family, state):
    """The state as a checkpoint in memory."""
    architecture, make = CONFIGS[family]
    config = make()
    config.architectures = [architecture]
    return load({name: state[name] for name in state if name not in spec_of(family).tied}, config)
