"""LLaVA and those that follow it: a projector of two layers reads the stream of a tower behind some layers of it.

But for VipLLaVA it reads the stream itself, not a norm of it. So the mean of it counts; where nothing else is in the
way, as in SigLIP's tower, any orthogonal map that fixes the ones vector acts on it. What comes behind the last of
these layers is in the files, and is not read.
"""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.multimodal import clip_tower, siglip_tower
from cobasin.architectures.parts import layer_norm, linear, neurons, require
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
TILED = ("vision_feature_select_strategy", "image_grid_pinpoints")
KEYS = {
    "llava": TILED[:1],
    "llava_next": TILED,
    "llava_next_video": (*TILED, "spatial_pool_mode", "spatial_pool_stride"),
    "llava_onevision": (*TILED, "vision_aspect_ratio"),
    "vipllava": ("projector_layernorm_eps",),
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
@declares("LlavaNextVideo", "llava_next_video", "ForConditionalGeneration")
@declares("LlavaOnevision", "llava_onevision", "ForConditionalGeneration")
@declares("VipLlava", "vipllava", "ForConditionalGeneration")
def llava(request: Request) -> Spec:
    """LLaVA 1.5, LLaVA-NeXT (1.6), also of videos, LLaVA-OneVision, Pixtral as Transformers has it, Granite Vision.

    In VipLLaVA a norm of the chosen layers, side by side, is in front of the projector; so their stream keeps its axes.
    """
    config, keys = request.config, KEYS[request.config.model_type]
    biased, read = getattr(config, "multimodal_projector_bias", True), "(chosen vision_resid)"
    tower, normed = config.vision_config.model_type, "projector_layernorm_eps" in keys
    require(tower in TOWERS and not (normed and tower != "clip_vision_model"), f"vision_config.model_type {tower!r}")
    # of what is pooled before the projector only a mean turns with the stream
    require(getattr(config, "spatial_pool_mode", "average") == "average", "spatial_pool_mode other than average")
    places, states = config.vision_feature_layer, config.vision_config.num_hidden_layers + 1  # with the embeddings
    places = [places] if isinstance(places, int) else places
    require(all(-states < place < states and place for place in places), f"vision_feature_layer {places}")
    spec = whole(
        request,
        decoder_of(request, DECODERS),
        TOWERS[tower](request),
        (layer_norm(f"{PROJECTOR}projector_layernorm", read) if normed else {})
        | linear(f"{PROJECTOR}linear_1", "projector", read, biased)
        | linear(f"{PROJECTOR}linear_2", "resid", "projector'", biased)
        | ({"image_newline": "resid"} if "image_grid_pinpoints" in keys else {}),
        spaces={
            "chosen": Space(len(places)),
            "projector": Space(config.text_config.hidden_size, neurons(config.projector_hidden_act), part="ffn"),
        },
        keys=("projector_hidden_act", "vision_feature_layer", *keys),
        aliases=TEXT_ALIASES if tower == "pixtral" else ALIASES,
    )
    return replace(spec, unread=_unread(spec, max(place % states for place in places)))
