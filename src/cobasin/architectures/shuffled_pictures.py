"""Decoders that read squares of SigLIP's patches as one: Command A Vision, Aya Vision, LFM2-VL.

Where a norm is over a whole square, its gains differ between the patches: the tower's stream has an order only.
"""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.command_decoder import cohere, cohere2
from cobasin.architectures.convolution_decoder import lfm2, lfm2_moe
from cobasin.architectures.multimodal import siglip_tower
from cobasin.architectures.parts import NEURONS, layer_norm, linear, neurons, require
from cobasin.architectures.vision import free_stream, norm_before
from cobasin.architectures.vision_language import PROJECTOR, VISION, decoder_of, vision_of, whole
from cobasin.symmetry.groups import Permutation
from cobasin.symmetry.spec import Space, Spec

COMMAND = {"cohere": cohere, "cohere2": cohere2}
LFM = {"lfm2": lfm2, "lfm2_moe": lfm2_moe}
FIRST, SECOND, MERGED = f"{PROJECTOR}linear_1", f"{PROJECTOR}linear_2", "(merge vision_resid)"


def _whole(
    request: Request, decoder: Spec, kind: str, projector: dict[str, str], neurons: Space, keys: tuple[str, ...] = ()
) -> Spec:
    """Decoder, tower and ``projector``, whose hidden layer is ``neurons``."""
    config, tower = request.config, vision_of(request, kind)
    normed = MERGED in projector.values()
    stream = Space(tower.hidden_size, Permutation(), part="residual") if normed else free_stream(tower.hidden_size)
    return whole(
        request,
        decoder,
        siglip_tower(request, tower, VISION, {"resid": stream}, {}),
        projector,
        *(() if normed else (norm_before((f"{FIRST}.weight",), f"{VISION}post_layernorm", "vision_resid"),)),
        spaces={"merge": Space(config.downsample_factor**2), "projector": neurons},
        keys=keys,
    )


@declares("Cohere2Vision", "cohere2_vision", "ForConditionalGeneration")
@declares("AyaVision", "aya_vision", "ForConditionalGeneration")
def command_pictures(request: Request) -> Spec:
    """Command A Vision; Aya Vision, with a norm over squares of patches. Their projector is gated.

    No norm here is read by rows that carry their charges apart: behind the tower's, neurons have an order only.
    """
    config, aya = request.config, request.config.model_type == "aya_vision"
    rows, group, keys, unread = "(half projector)", Permutation(), (), ()
    normed: dict[str, str] = {}
    if aya:
        require(config.vision_feature_layer == -1, "vision_feature_layer other than -1")
        rows, group, normed = "(projector + projector~)", NEURONS, layer_norm(f"{PROJECTOR}layernorm", MERGED)
        keys = ("vision_feature_select_strategy", "adapter_layer_norm_eps")
        unread = tuple(layer_norm(f"{VISION}post_layernorm"))
    projector = normed | linear(FIRST, rows, MERGED) | linear(SECOND, "resid", "projector'")
    width = getattr(config, "alignment_intermediate_size", config.text_config.hidden_size)  # Aya need not say it
    hidden = Space(width // 2, group, part="ffn")
    spec = _whole(request, decoder_of(request, COMMAND), "siglip_vision_model", projector, hidden, keys)
    return replace(spec, spaces={**spec.spaces, "half": Space(2)}, unread=unread)


@declares("Lfm2Vl", "lfm2_vl", "ForConditionalGeneration")
def lfm2_pictures(request: Request) -> Spec:
    """LFM2-VL, whose pictures have any size."""
    config, biased, act = request.config, request.config.projector_bias, request.config.projector_hidden_act
    projector = linear(FIRST, "projector", MERGED, biased) | linear(SECOND, "resid", "projector'", biased)
    if config.projector_use_layernorm:
        projector |= layer_norm(f"{PROJECTOR}layer_norm", MERGED)
    hidden = Space(config.projector_hidden_size, neurons(act), part="ffn")
    keys = ("projector_hidden_act",)
    return _whole(request, decoder_of(request, LFM), "siglip2_vision_model", projector, hidden, keys)
