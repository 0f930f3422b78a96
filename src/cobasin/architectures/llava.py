"""LLaVA, LLaVA-NeXT, LLaVA-OneVision: a projector of two layers reads the stream of a tower behind some layers of it.

It reads the stream itself, not a norm of it. So the mean of the stream counts; where nothing else is in the way, as in
SigLIP's tower, any orthogonal map that fixes the ones vector acts on it. What comes behind the last of these layers is
in the files, and is not read.
"""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.multimodal import clip_tower, siglip_tower
from cobasin.architectures.parts import linear, neurons, require
from cobasin.architectures.rmsnorm_decoder import granite, llama, mistral, qwen2
from cobasin.architectures.vision import free_stream
from cobasin.architectures.vision_language import (
    ALIASES,
    PROJECTOR,
    TEXT_ALIASES,
    VISION,
    decoder_of,
    pixtral_tower,
    whole,
)
from cobasin.symmetry.groups import Permutation
from cobasin.symmetry.spec import Space, Spec

DECODERS = {"llama": llama, "mistral": mistral, "qwen2": qwen2, "granite": granite}
TILES = {
    "llava": (),
    "llava_next": ("image_grid_pinpoints",),
    "llava_onevision": ("image_grid_pinpoints", "vision_aspect_ratio"),
}


def _clip(request: Request) -> Spec:
    """CLIP's tower. The gain of its first norm sits in the stream."""
    config = request.config.vision_config
    return clip_tower(request, config, VISION, {"resid": Space(config.hidden_size, Permutation(), part="residual")}, {})


def _siglip(request: Request) -> Spec:
    """SigLIP's tower, whose writers keep their mean."""
    config = request.config.vision_config
    spec = siglip_tower(request, config, VISION, {"resid": free_stream(config.hidden_size)}, {})
    return replace(spec, norms=tuple(replace(norm, keeps_mean=True) for norm in spec.norms))


TOWERS = {"clip_vision_model": _clip, "siglip_vision_model": _siglip, "pixtral": pixtral_tower}


def _unread(spec: Spec, read: int) -> tuple[str, ...]:
    """The tower's layers but for the first ``read``, and the norm behind them."""
    layers = (name for name, entry in spec.entries.items() if entry.index.get("vision_layer", -1) >= read)
    return (*layers, *(name for name in spec.templates if name.startswith(f"{VISION}post_layernorm.")))


@declares("Llava", "llava", "ForConditionalGeneration")
@declares("LlavaNext", "llava_next", "ForConditionalGeneration")
@declares("LlavaOnevision", "llava_onevision", "ForConditionalGeneration")
def llava(request: Request) -> Spec:
    """LLaVA 1.5, LLaVA-NeXT (1.6), LLaVA-OneVision, Pixtral as Transformers has it, Granite Vision."""
    config, biased = request.config, request.config.multimodal_projector_bias
    tower = config.vision_config.model_type
    require(tower in TOWERS, f"vision_config.model_type {tower!r}")
    places, states = config.vision_feature_layer, config.vision_config.num_hidden_layers + 1  # with the embeddings
    places = [places] if isinstance(places, int) else places
    require(all(-states < place < states and place for place in places), f"vision_feature_layer {places}")
    tiled = TILES[config.model_type]
    spec = whole(
        request,
        decoder_of(request, DECODERS),
        TOWERS[tower](request),
        linear(f"{PROJECTOR}linear_1", "projector", "(chosen vision_resid)", biased)
        | linear(f"{PROJECTOR}linear_2", "resid", "projector'", biased)
        | ({"image_newline": "resid"} if tiled else {}),
        spaces={
            "chosen": Space(len(places)),
            "projector": Space(config.text_config.hidden_size, neurons(config.projector_hidden_act), part="ffn"),
        },
        keys=("projector_hidden_act", "vision_feature_layer", "vision_feature_select_strategy", *tiled),
        aliases=TEXT_ALIASES if tower == "pixtral" else ALIASES,
    )
    return replace(spec, unread=_unread(spec, max(place % states for place in places)))
