"""Run a checkpoint: build its model, make inputs for it, collect its outputs."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cobasin.checkpoint import Checkpoint
from cobasin.errors import InputError
from cobasin.weight_files import one_line

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

# What the models of transformers call the outputs that make up their function, heads first.
OUTPUT_NAMES = (
    "logits",
    "prediction_logits",
    "seq_relationship_logits",
    "start_logits",
    "end_logits",
    "last_hidden_state",
    "pooler_output",
)
SPECIAL_TOKENS = ("pad", "bos", "eos", "cls", "sep", "mask", "unk", "decoder_start")


def instantiate(checkpoint: Checkpoint, dtype: torch.dtype) -> PreTrainedModel:
    """Build the model of a checkpoint, on disk or in memory, in `dtype` and in evaluation mode.

    The model owns its tensors: changing it leaves the checkpoint as it was.  Tensors of the checkpoint
    that the class has no place for at all, such as the pooler of a masked language model, are left
    unread.

    Raises:
        InputError: transformers has no such class, or tensors are missing, too many, or of another shape.
    """
    return build(checkpoint, {name: cast_floats(checkpoint[name], dtype) for name in checkpoint}, dtype)


def build(checkpoint: Checkpoint, state: dict[str, Tensor], dtype: torch.dtype) -> PreTrainedModel:
    """The checkpoint's class, filled with `state` (on-disk names, in `dtype`), whose storage it takes over.

    Raises:
        InputError: as `instantiate`.
    """
    where = f"{checkpoint.label}: {checkpoint.architecture}"
    cls = model_class(checkpoint.architecture)
    options = {}
    if "add_pooling_layer" in inspect.signature(cls.__init__).parameters:
        # no config says it; transformers would fill in a random pooler
        options["add_pooling_layer"] = any("pooler." in name for name in state)
    try:
        with _quiet():
            model, info = cls.from_pretrained(
                None,
                config=checkpoint.config,
                state_dict=state,
                dtype=dtype,
                # the fused kernel of the experts knows no float64
                experts_implementation="eager",
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                **options,
            )
    except (KeyError, ValueError, ImportError) as error:  # an activation or a rotary scaling it does not know
        raise InputError(f"{where} cannot be built by transformers from this config: {one_line(error)}") from error
    except RuntimeError as error:
        if "conversion" not in str(error):
            raise
        # Tensors that transformers joins as it loads them, such as those of the experts of a layer.
        raise InputError(f"{where} is loaded by joining tensors, of which some are missing or too many") from error
    for name, found, expected in sorted(info["mismatched_keys"]):
        raise InputError(f"{where} expects {name} of shape {list(expected)}, the checkpoint has {list(found)}")
    if info["missing_keys"]:
        raise InputError(f"{where} needs tensors that the checkpoint lacks: {_some(info['missing_keys'])}")
    # A name that differs from a tensor of the class in its numbers only is a layer too many; any other
    # belongs to a head that this class does not have, and cannot change what it computes.
    known = {re.sub(r"\d+", "#", name) for name in model.state_dict()}
    surplus = {
        name
        for name in info["unexpected_keys"]
        if any(re.sub(r"\d+", "#", full) in known for full in (name, f"{model.base_model_prefix}.{name}"))
    }
    if surplus:
        raise InputError(f"{where} has no place for tensors of the checkpoint: {_some(surplus)}")
    return model.eval()


def probe(config: PreTrainedConfig, architecture: str, seed: int = 0) -> dict[str, Tensor]:
    """Inputs that a model of this config and class runs on.

    Token ids [2, length] with the second row a third shorter and an attention mask, length at most 32;
    one row [1, length] where the class cannot take a padded batch; or pixel values [2, channels, height,
    width] from a normal distribution.  The same seed gives the same inputs.

    Raises:
        InputError: the class is unknown, or takes inputs of another kind.
    """
    generator = torch.Generator().manual_seed(seed)
    cls = model_class(architecture)
    size = getattr(config, "image_size", None)
    if cls.main_input_name == "pixel_values" and size is not None:
        height, width = (size, size) if isinstance(size, int) else size
        return {"pixel_values": torch.randn(2, config.num_channels, height, width, generator=generator)}
    if cls.main_input_name != "input_ids" or hasattr(config, "vision_config"):
        raise InputError(f"{architecture}: reads {cls.main_input_name}; probes are text or images of a fixed size")

    # RoBERTa's position table has rows for the padding token and those before it, which are no positions.
    length = max(2, min(32, positions(config) - 4))
    pad = getattr(config, "pad_token_id", None)
    specials = set()
    for kind in SPECIAL_TOKENS:
        named = getattr(config, f"{kind}_token_id", None)
        specials.update(named if isinstance(named, list) else [named])
    # Vocabularies keep their special tokens in the first rows, whether or not the config names them.
    plain = [i for i in range(5, config.vocab_size) if i not in specials]
    ids = torch.tensor(plain or range(config.vocab_size))
    tokens = ids[torch.randint(len(ids), (2, length), generator=generator)]
    decoder_tokens = ids[torch.randint(len(ids), (2, length), generator=generator)]
    mask = torch.ones_like(tokens)
    mask[1, length - max(1, length // 3) :] = 0
    accepted = inspect.signature(cls.forward).parameters
    if "decoder_input_ids" in accepted and isinstance(eos := config.eos_token_id, int):
        # Sequence classification with a decoder reads the position of the last end-of-sequence token.
        tokens[torch.arange(2), mask.sum(1) - 1] = eos
    # Some configs have -1 for "no padding token".
    tokens[mask == 0] = max(pad or 0, 0)
    inputs = {"input_ids": tokens, "attention_mask": mask}
    if "decoder_input_ids" in accepted:
        inputs["decoder_input_ids"] = decoder_tokens
    if architecture.endswith("ForSequenceClassification") and pad is None:
        # Decoders find the last token of a row by the padding token, and refuse a batch without one.
        inputs = {name: value[:1] for name, value in inputs.items()}
    if architecture.endswith("ForMultipleChoice"):
        inputs = {name: value[None] for name, value in inputs.items()}
    return {name: value for name, value in inputs.items() if name in accepted}


def outputs(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Tensor:
    """Run the model and lay its outputs (logits, or the hidden states of a bare model) end to end: [values].

    Padded positions are left out.  Floating inputs are cast to the model's dtype.

    Raises:
        InputError: the model returns nothing that is compared here.
    """
    # The mask leaves no padding out of a decoder's outputs, which have positions of their own.
    mask = None if "decoder_input_ids" in inputs else inputs.get("attention_mask")
    cast = {name: cast_floats(value, model.dtype) for name, value in inputs.items()}
    with torch.no_grad():
        result = model(**cast, return_dict=True)
    found: list[Tensor] = []
    for name in OUTPUT_NAMES:
        value = result.get(name)
        if value is None:
            continue
        if mask is not None and value.shape[: mask.dim()] == mask.shape:
            value = value[mask.bool()]
        found.append(value.flatten())
    if not found:
        raise InputError(f"{type(model).__name__} returns none of {', '.join(OUTPUT_NAMES)}")
    return torch.cat(found)


def cast_floats(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy in `dtype`; integers keep theirs."""
    return tensor.to(dtype if tensor.is_floating_point() else tensor.dtype, copy=True)


def positions(config: PreTrainedConfig) -> int:
    """The rows of the position table; 512 where the config sets no limit."""
    return getattr(config, "max_position_embeddings", None) or 512


def model_class(architecture: str) -> Any:
    """The class of that name in transformers.

    Raises:
        InputError: there is none.
    """
    import transformers

    cls = getattr(transformers, architecture, None)
    if cls is None or not hasattr(cls, "main_input_name"):
        raise InputError(f"transformers {transformers.__version__} has no model class {architecture}")
    return cls


def _some(names: Iterable[str]) -> str:
    first, *rest = sorted(names)
    return f"{first} and {len(rest)} more" if rest else first


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' loading report and progress bar: what matters of them is raised."""
    from transformers.utils import logging

    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()
