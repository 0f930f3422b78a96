"""A model of an architecture that cobasin does not declare, and the spec file in examples/ that declares it."""

from pathlib import Path

import torch
import transformers as T

EXAMPLE = Path(__file__).parents[1] / "examples" / "declare_hyperclovax.py"
# with other tensors, ties or norms
VARIANTS = ({}, {"tie_word_embeddings": True, "attention_bias": False}, {"use_post_norm": True, "mlp_bias": True})


def hyperclovax(seed: int = 0, **options):
    """A tiny random HyperCLOVA X, without norms behind its branches."""
    torch.manual_seed(seed)
    sizes = {
        "hidden_size": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "intermediate_size": 20,
        "vocab_size": 40,
        "max_position_embeddings": 32,
        "pad_token_id": None,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "use_post_norm": False,
        "attention_bias": True,
    }
    return T.HyperCLOVAXForCausalLM(T.HyperCLOVAXConfig(**{**sizes, **options})).eval()


def changed(folder: Path, *replacements: tuple[str, str]) -> Path:
    """A copy of the example with parts of its text replaced."""
    text = EXAMPLE.read_text()
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    (folder / "changed.py").write_text(text)
    return folder / "changed.py"
