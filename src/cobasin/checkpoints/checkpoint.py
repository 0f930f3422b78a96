"""A checkpoint: a model's config and its tensors by on-disk name, wherever the model comes from."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cobasin.architectures import known
from cobasin.checkpoints.folders import find_folder
from cobasin.checkpoints.json_files import ADAPTER_FILE, CONFIG_FILE, GENERATION_FILE, read_json
from cobasin.checkpoints.sentence_transformers import takes_states
from cobasin.checkpoints.weight_files import (
    SINGLE_FILE,
    Header,
    describe,
    open_weights,
)
from cobasin.checkpoints.wrapped import within
from cobasin.errors import InputError, one_line
from cobasin.modes import usual_modes

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

Content = Callable[[Path], object] | str | None
"""Of a file beside the weights: what writes it to a path, its text; None where there shall be none."""


class Tensors(Mapping[str, Tensor]):
    """Tensors by on-disk name, each read (or computed) when asked for; ``headers`` are known before."""

    headers: dict[str, Header]
    read: Callable[[str], Tensor]

    @usual_modes()
    def __getitem__(self, name: str) -> Tensor:
        if name not in self.headers:
            raise KeyError(name)
        return self.read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.headers)

    def __len__(self) -> int:
        return len(self.headers)


@dataclass(eq=False, repr=False)
class Checkpoint(Tensors):
    """A model's config and its tensors by on-disk name, read lazily.

    Attributes:
        label: what messages call it.
        architecture: the name of the model class that the tensors belong to.
        headers: every tensor's dtype, shape and shard, in file order.
        read: reads (or computes) one tensor, for ``checkpoint[name]``; safe to call from several threads.
        folder: where the model's other files are, such as those of its tokenizer.
        stored: whether its tensors are those of the files there.
        beside: the contents, by name, of files that are others than there, or that a model in memory has not written.
    """

    label: str
    config: PreTrainedConfig
    architecture: str
    headers: dict[str, Header]
    read: Callable[[str], Tensor]
    folder: Path | None = None
    stored: bool = False
    beside: dict[str, Content] = field(default_factory=dict)

    @property
    def running_dtype(self) -> torch.dtype:
        """The dtype to run the model in: float64 where it has tensors of it, else float32."""
        wide = any(header.dtype == torch.float64 for header in self.headers.values())
        return torch.float64 if wide else torch.float32

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(header.size for header in self.headers.values())

    @property
    def parameters(self) -> int:
        """Numbers in all tensors."""
        return sum(math.prod(header.shape) for header in self.headers.values())

    @property
    def rounding(self) -> float:
        """The unit in the last place, relative, of the coarsest tensor of real numbers."""
        dtypes = {header.dtype for header in self.headers.values() if header.dtype.is_floating_point}
        return max(torch.finfo(dtype).eps for dtype in dtypes)

    def __repr__(self) -> str:
        return f"Checkpoint({self.label!r}, {self.architecture}, {len(self)} tensors)"


def load(
    model: str | Path | PreTrainedModel | Mapping[str, Tensor],
    config: PreTrainedConfig | Mapping[str, Any] | None = None,
) -> Checkpoint:
    """Open a model as a Checkpoint; of files, only the headers are read.

    Tensors of safetensors files, and of ``.bin`` files in torch's zip format, stay memory-mapped; older ``.bin`` files
    are read whole. What is read shares its memory with later reads (and with the model or state dict), so it must not
    be changed in place. Code in a file or a repository is never executed.

    Args:
        model: a Hugging Face folder, a hub id "org/name" or "org/name@revision", a `PreTrainedModel` (its tensors
            under the names that `save_pretrained` gives them, tied duplicates dropped), a state dict by on-disk names,
            or a Checkpoint, returned as it is.
        config: of a state dict.

    Raises:
        InputError: for anything that is missing, damaged, unsafe to read or contradictory.
    """
    if isinstance(model, Mapping) and not isinstance(model, Checkpoint):
        return _from_state_dict(model, config)
    if config is not None:
        raise InputError("a config goes with a state dict only; every other kind of model brings its own")
    if isinstance(model, Checkpoint):
        return model
    if isinstance(model, (str, Path)):
        try:
            return _from_folder(find_folder(model), str(model))
        except OSError as error:
            raise InputError(f"{model}: cannot be read: {one_line(error)}") from error
    from transformers import PreTrainedModel

    if isinstance(model, PreTrainedModel):
        return _from_model(model)
    raise InputError(
        f"cannot read a model from {type(model).__name__}; expected a Hugging Face folder, a hub id "
        f'"org/name", a PreTrainedModel, a state dict with its config, or a Checkpoint{within(model)}'
    )


def read_config(folder: Path) -> PreTrainedConfig:
    """The config in a folder; raises InputError where there is none that Transformers reads."""
    path = folder / CONFIG_FILE
    return _parse_config(read_json(path), str(path), folder)


def _from_folder(folder: Path, label: str) -> Checkpoint:
    config = read_config(folder)
    architecture = _architecture(config, label)
    headers, read = open_weights(folder)
    if (folder / ADAPTER_FILE).is_file():
        raise InputError(
            f"{label}: has the weights of a model and {ADAPTER_FILE}, and Transformers would load that adapter on top "
            f"of these; delete {ADAPTER_FILE} where it is merged already, else give the adapter a folder of its own"
        )
    if takes_states(folder) and _headless(architecture, headers):
        architecture = _bare(config, architecture)
    return Checkpoint(label, config, architecture, headers, read, folder, stored=True)


def _bare(config: PreTrainedConfig, default: str) -> str:
    """The class of a config's models without a head; the first, where there are several."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    found = MODEL_MAPPING_NAMES.get(config.model_type, default)
    return found if isinstance(found, str) else found[0]


def _headless(architecture: str, headers: Mapping[str, Header]) -> bool:
    """Whether a file has no head of the class that the config names, of which Sentence Transformers runs the body."""
    import transformers

    if architecture.endswith(("ForCausalLM", "LMHeadModel")):
        return not any(re.search(r"\b(lm_head|embed_out)\.", name) for name in headers)
    prefix = getattr(getattr(transformers, architecture, None), "base_model_prefix", "")
    encoder = architecture.endswith(("ForMaskedLM", "ForPreTraining")) and bool(prefix)
    return encoder and not any(name.startswith(f"{prefix}.") for name in headers)


def _from_state_dict(state: Mapping[str, Tensor], config: PreTrainedConfig | Mapping[str, Any] | None) -> Checkpoint:
    label = "state dict"
    if config is None:
        raise InputError("a state dict does not say what model it is; pass its config as well")
    if isinstance(config, Mapping):
        config = _parse_config(dict(config), label)
    from transformers import PreTrainedConfig

    if not isinstance(config, PreTrainedConfig):
        raise InputError(f"{label}: its config is a {type(config).__name__}; expected a PreTrainedConfig or its dict")
    return _from_memory(label, config, _architecture(config, label), dict(state))


def _from_model(model: PreTrainedModel) -> Checkpoint:
    import transformers
    from transformers.core_model_loading import revert_weight_conversion
    from transformers.modeling_utils import remove_tied_weights_from_state_dict

    cls, label = type(model), f"{type(model).__name__} in memory"
    if getattr(transformers, cls.__name__, cls) is not cls:
        raise InputError(
            f"{label}: is not Transformers' class of that name, but {cls.__module__}.{cls.__qualname__}, which may "
            "compute another function; where it computes the same, load its weights by Transformers' class"
        )
    ignored = set(model._keys_to_ignore_on_save or ())
    tensors = {name: tensor for name, tensor in model.state_dict().items() if name not in ignored}
    # Before save_pretrained's own steps, which fail without data in a less readable way.
    describe(tensors, SINGLE_FILE, label)
    try:
        # What save_pretrained does: one name for tied weights, then names and layouts as on disk.
        single = remove_tied_weights_from_state_dict(dict(tensors), model)
        # But a head that shares its weight where the config ties none has no other place to be read from.
        own = {name: tensors[name] for name in tensors.keys() - single.keys() - model.all_tied_weights_keys.keys()}
        tensors = revert_weight_conversion(model, single | own)
    except RuntimeError as error:
        raise InputError(f"{label}: has no form on disk: {one_line(error)}") from error
    config = copy.deepcopy(model.config)
    config.dtype = next((one.dtype for one in model.parameters() if one.is_floating_point()), None)
    made = _from_memory(label, config, type(model).__name__, tensors)
    if model.can_generate() and model.generation_config is not None:
        made.beside[GENERATION_FILE] = model.generation_config.to_json_string()
    return made


def _from_memory(label: str, config: PreTrainedConfig, architecture: str, tensors: dict[str, Tensor]) -> Checkpoint:
    headers = describe(tensors, SINGLE_FILE, label)

    def read(name: str) -> Tensor:
        tensor = tensors[name].detach().cpu()
        return tensor.clone() if tensor.is_inference() else tensor  # learning needs gradients of what is made of it

    return Checkpoint(label, config, architecture, headers, read)


def _parse_config(content: dict[str, Any], label: str, folder: Path | None = None) -> PreTrainedConfig:
    from transformers import CONFIG_MAPPING, AutoConfig

    model_type = content.get("model_type")
    if model_type is None:
        raise InputError(f'{label}: has no model_type; add it to the config, for example "model_type": "bert"')
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        raise InputError(
            f"{label}: model_type {model_type!r} is not known to the installed transformers, and model code "
            f"from a repository is never executed"
        )
    try:
        if folder is None:
            return CONFIG_MAPPING[model_type].from_dict(content)
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # each config class validates in its own way
        raise InputError(f"{label}: transformers refuses this config: {one_line(error)}") from error


def _architecture(config: PreTrainedConfig, label: str) -> str:
    names = config.architectures
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise InputError(
            f"{label}: the config does not name the model's class; add it to the config, "
            f'for example "architectures": ["{_bare(config, "BertModel")}"], or the one with the file\'s head'
        )
    return _spelled(names[0])  # the Auto classes do not read it


def _spelled(name: str) -> str:
    """A class as it is declared: code beside a model may spell it with other capitals or underscores."""
    declared = known()
    return name if name in declared else next((one for one in declared if _plain(one) == _plain(name)), name)


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
