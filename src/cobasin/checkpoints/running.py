"""Run a checkpoint: build its model, collect its outputs."""

from __future__ import annotations

import contextlib
import inspect
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.limits import COMPOSITES, part_of
from cobasin.checkpoints.wrapped import saved_with
from cobasin.errors import InputError, NotProbed, one_line

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

# What the models of transformers call the outputs that make up their function: those of the first row that a
# model has. Embeddings and hidden states beside logits are on the way to them; a tower of CLIP has both as outputs.
OUTPUT_NAMES = (
    (
        "logits",
        "entity_logits",
        "cls_logits",
        "distillation_logits",
        "prediction_logits",
        "seq_relationship_logits",
        "sop_logits",
        "start_logits",
        "end_logits",
        "relevance_logits",
        "pred_boxes",
        "reconstruction",
        "logits_per_image",
        "projected_states",
        "projected_quantized_states",
    ),
    ("text_embeds", "image_embeds", "last_hidden_state", "pooler_output", "entity_last_hidden_state"),
)
LENGTH_FIRST = "length_first"  # is true of the modules of an XLNet: [length, rows, n] is what they read and write
_JOINING = "eh_proj.weight"  # of a layer that predicts a further token
_IN_TRAINING = ("masked_spec_embed",)  # what only training reads, in place of masked frames
_UNREAD = "encoder.pooler."  # of a composite, whose decoder reads the stream
_ONE_AT_A_TIME = threading.RLock()


def instantiate(checkpoint: Checkpoint, dtype: torch.dtype) -> PreTrainedModel:
    """Build the model of a checkpoint, on disk or in memory, in `dtype` and in evaluation mode.

    The model owns its tensors: changing it leaves the checkpoint as it was. Tensors of the checkpoint that the class
    has no place for at all, such as the pooler of a masked language model, are left unread.

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
    unbuilt = f"{where} cannot be built by transformers from this config"
    cls = model_class(checkpoint.architecture)
    options = {}
    if "add_pooling_layer" in inspect.signature(cls.__init__).parameters:
        # no config says it; transformers would fill in a random pooler
        options["add_pooling_layer"] = any("pooler." in name for name in state)
    # Chinese-CLIP's is set to zero as it is loaded; behind its mask nothing reads it
    padding = [(row, row.clone()) for row in _padding_rows(checkpoint.config, state)]
    try:
        with quiet():
            model, info = cls.from_pretrained(
                None,
                # as it is read back from a file: T5 ties its embeddings, whatever the file says
                config=type(checkpoint.config)(**checkpoint.config.to_dict()),
                state_dict=state,
                dtype=dtype,
                # the fused kernel of the experts knows no float64
                experts_implementation="eager",
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                **options,
            )
    except RuntimeError as error:
        if "negative dimension" in str(error):
            raise InputError(f"{unbuilt}: {one_line(error)}") from error
        if "conversion" not in str(error):
            raise
        # Tensors that transformers joins as it loads them, such as those of the experts of a layer.
        raise InputError(f"{where} is loaded by joining tensors, of which some are missing or too many") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, ImportError, AssertionError) as error:
        # an activation or a padding that it does not know, no heads, a text in place of a number
        raise InputError(f"{unbuilt}: {one_line(error)}") from error
    _check_loaded(model, info, state, where)
    for row, given in padding:
        row.copy_(given)
    if model.config.model_type == "xlnet":
        _fill_anew(model, f"{model.base_model_prefix}.", state, dtype)
        for part in model.base_model.modules():
            setattr(part, LENGTH_FIRST, True)
    part: Any
    for part in model.modules():
        if hasattr(part, "config"):
            part.config.return_dict = True  # parts read by name what other parts return
        if isinstance(sines := getattr(part, "weights", None), Tensor) and sines.is_meta:
            part.weights = None  # TrOCR computes them anew where it has none
    return in_float32_always(model).eval()


def _padding_rows(config: PreTrainedConfig, state: Mapping[str, Tensor]) -> Iterator[Tensor]:
    """The padding's row in every tensor that has one for each token."""
    text = part_of(config, "text_config")
    padding, count = getattr(text, "pad_token_id", None), getattr(text, "vocab_size", None)
    if isinstance(padding, int) and isinstance(count, int) and 0 <= padding < count:
        yield from (x[padding] for x in state.values() if x.ndim == 2 and x.shape[0] == count)


def _fill_anew(model: torch.nn.Module, prefix: str, state: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    """For a class that makes parameters in float32, and has them rounded to that as they are loaded, whatever dtype."""
    own = model.to(dtype).state_dict()
    for name, given in state.items():
        for full in {name, prefix + name, name.removeprefix(prefix)} & own.keys():
            own[full].copy_(given)


def _check_loaded(model: PreTrainedModel, info: Mapping[str, Any], state: Mapping[str, Tensor], where: str) -> None:
    """Refuse a model that ``state`` does not fill: as the ``info`` of loading tells, and where that tells nothing."""
    for name, found, expected in sorted(info["mismatched_keys"]):
        raise InputError(f"{where} expects {name} of shape {list(expected)}, the checkpoint has {list(found)}")
    missing = {name for name in info["missing_keys"] if not name.endswith(_IN_TRAINING)}
    if model.config.model_type in COMPOSITES:
        missing = {name for name in missing if not name.startswith(_UNREAD)}
    if missing := missing and missing - _constants(type(model), model.config):
        why = saved_with(state)
        raise InputError(
            f"{where} needs tensors that the checkpoint lacks: {_some(missing)}{f'; {why}' if why else ''}"
        )
    # A name that differs from a tensor of the class in its numbers only is a layer too many; any other
    # belongs to a head that this class does not have, and cannot change what it computes.
    known = {re.sub(r"\d+", "#", name) for name in model.state_dict()}
    prefix = f"{model.base_model_prefix}."
    # So is one that predicts a further token, with what joins two streams; transformers knows those of some depths.
    further = tuple(name.removesuffix(_JOINING) for name in state if name.endswith(_JOINING))
    surplus = {
        name
        for name in info["unexpected_keys"]
        if not name.startswith(further) and any(re.sub(r"\d+", "#", full) in known for full in (name, prefix + name))
    }
    if surplus:
        raise InputError(f"{where} has no place for tensors of the checkpoint: {_some(surplus)}")
    unread = {name for name, _ in model.named_buffers()} | info["unexpected_keys"]
    # files may have other names for the modules that buffers are in
    buffers = _last(model.named_buffers()) - _last(model.named_parameters())
    ignored = model._keys_to_ignore_on_load_unexpected or []
    for name, tensor in state.items():
        names = {name, prefix + name, name.removeprefix(prefix)}
        if tensor.is_floating_point() or names & unread or name.rpartition(".")[2] in buffers:
            continue
        if any(re.search(pattern, name) for pattern in ignored):
            continue
        raise InputError(f"{where} computes in floats, the checkpoint has {name} in {tensor.dtype}")


def _last(named: Iterable[tuple[str, Tensor]]) -> set[str]:
    """What the tensors of modules are called within them."""
    return {name.rpartition(".")[2] for name, _ in named}


def in_float32_always(model: PreTrainedModel) -> PreTrainedModel:
    """The model with those parameters in float32 that are multiplied with float32 in a float64 model, too.

    A router that would bring its own to float32 stays in float64.
    """
    part: Any
    for part in model.modules():
        scale = getattr(part, "per_dim_scale", None)  # of Gemma 4's queries of sounds
        if isinstance(scale, torch.nn.Parameter) and scale.dtype == torch.float64:
            scale.data = scale.data.float()
        if hasattr(part, "expert_capacity") and model.dtype == torch.float64:
            part.dtype = torch.float64  # of Switch Transformers
    return model


def _constants(cls: Any, config: PreTrainedConfig) -> set[str]:
    """The parameters that no training changes, which transformers computes where a file lacks them."""
    with torch.device("meta"):
        fresh = cls(config)
    return {name for name, parameter in fresh.named_parameters() if not parameter.requires_grad}


def outputs(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Tensor:
    """Run the model and lay its outputs (logits, or embeddings and hidden states) end to end: [values].

    Padded positions are left out. Floating inputs are cast to the model's dtype.

    Raises:
        NotProbed: the model returns nothing that is compared here.
    """
    # The mask leaves no padding out of a decoder's outputs, which have positions of their own.
    mask = None if "decoder_input_ids" in inputs else inputs.get("attention_mask")
    if mask is not None and (kept := inputs.get("logits_to_keep")) is not None:
        mask = mask[:, kept]
    cast = {name: cast_floats(value, model.dtype) for name, value in inputs.items()}
    with torch.no_grad():
        result = model(**cast, return_dict=True)
    for names in OUTPUT_NAMES:
        found = [value for name in names if (value := result.get(name)) is not None]
        if found:
            return torch.cat([_without_padding(value, mask).flatten() for value in found])
    raise NotProbed(f"{type(model).__name__} returns none of {', '.join(sum(OUTPUT_NAMES, ()))}")


def _without_padding(value: Tensor, mask: Tensor | None) -> Tensor:
    if mask is not None and value.shape[: mask.dim()] == mask.shape:
        return value[mask.bool()]
    return value


def cast_floats(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy in `dtype`; integers keep theirs."""
    return tensor.to(dtype if tensor.is_floating_point() else tensor.dtype, copy=True)


def model_class(architecture: str) -> Any:
    """The class of that name in transformers.

    Raises:
        InputError: there is none.
    """
    import transformers

    cls = getattr(transformers, architecture, None)
    if cls is None or not hasattr(cls, "main_input_name"):
        raise InputError(
            f"transformers {transformers.__version__} has no model class {architecture}; name one that it has under "
            "architectures in config.json, or install a version that has it"
        )
    return cls


def _some(names: Iterable[str]) -> str:
    first, *rest = sorted(names)
    return f"{first} and {len(rest)} more" if rest else first


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' loading report and progress bar: what matters of them is raised.

    In one thread at a time: these are settings of the whole process, and so are torch's default dtype and the tying of
    weights, which transformers changes while it loads.
    """
    from transformers.utils import logging

    with _ONE_AT_A_TIME:
        verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(verbosity)
            if bar:
                logging.enable_progress_bar()
