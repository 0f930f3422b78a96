"""Random Llamas in folders, each with a tokenizer of its own."""

from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from command_line import near, stock
from tiny_models import model

LLAMA = "llama-gqa/LlamaForCausalLM"
LETTERS = ["<unk>", "<s>", "</s>", *"abcdefghijklmnopqrstuvw"]


def folder(path: Path, seed: int, tokens: list[str], added: tuple[str, ...] = (), rows: int | None = None) -> Path:
    """A random Llama with a tokenizer of these tokens and special ones beside them, and maybe rows for more."""
    made = near(model(LLAMA, seed, torch.float32), vocab_size=rows or len(tokens) + len(added))
    made.generation_config.eos_token_id = made.config.eos_token_id = tokens.index("</s>")
    made.save_pretrained(path)
    write_tokenizer(path, tokens, added)
    return path


def write_tokenizer(path: Path, tokens: list[str], added: tuple[str, ...] = ()) -> None:
    words = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    tokenizer.add_tokens([AddedToken(token, special=True) for token in added])
    tokenizer.save_pretrained(path)


def embedding(path: Path, token: str) -> torch.Tensor:
    """The row of a token, by the tokenizer beside the model."""
    ids = AutoTokenizer.from_pretrained(path).get_vocab()
    return stock(path).get_input_embeddings().weight[ids[token]].detach()
