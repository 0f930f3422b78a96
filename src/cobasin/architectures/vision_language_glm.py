"""GLM's decoders that read pictures beside text: GLM-4.1V, GLM-4.5V and 4.6V.

A convolution makes one of a square of patches behind the tower's last norm. The gain of the norm behind its embeddings
sits in the tower's stream.
"""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.corrected_router import glm4_moe
from cobasin.architectures.interleaved_decoder import glm4
from cobasin.architectures.parts import LAYER, NEURONS, layer_norm, linear, require
from cobasin.architectures.vision import norm_before
from cobasin.architectures.vision_language import decoder_of, whole
from cobasin.architectures.vision_language_qwen import BLOCK, MERGER, MLP, turned_tower
from cobasin.symmetry.groups import Orthogonal, Permutation, SignedPermutation
from cobasin.symmetry.spec import Space, Spec

DECODERS = {"glm4v_text": glm4, "glm4v_moe_text": glm4_moe}
SQUARE = "visual.downsample"


def _tower(request: Request) -> Spec:
    """The tower, whose positions are resampled."""
    config = request.config.vision_config
    kind = config.model_type
    require(kind in ("glm4v_vision", "glm4v_moe_vision"), f"vision_config.model_type {kind!r}")
    up = linear(f"{MLP}.gate_proj", "ffn~", "resid", bias=False) | linear(f"{MLP}.up_proj", "ffn", "resid", bias=False)
    spec = turned_tower(
        request,
        Space(config.hidden_size, SignedPermutation, part="residual"),
        Space(config.out_hidden_size, NEURONS, LAYER, part="ffn"),
        up,
        linear(f"{MLP}.down_proj", "resid", "ffn'", bias=False),
        {
            "visual.patch_embed.proj.bias": "resid",
            "visual.post_conv_layernorm.weight": "resid~",
            "visual.embeddings.position_embedding.weight": "pos resid",
            "visual.post_layernorm.weight": "resid~",
        },
        False,
        "rms_norm_eps",
        biased=(config.attention_bias, False),
    )
    branches = {"norm1": (f"{BLOCK}.attn.qkv.weight",), "norm2": up}
    norms = tuple(norm_before(readers, f"{BLOCK}.{name}", centred=False) for name, readers in branches.items())
    positions = Space((config.image_size // config.patch_size) ** 2)
    return replace(spec, spaces={**spec.spaces, "pos": positions}, norms=norms)


@declares("Glm4v", "glm4v", "ForConditionalGeneration")
@declares("Glm4vMoe", "glm4v_moe", "ForConditionalGeneration")
@declares("Glm46V", "glm46v", "ForConditionalGeneration")
def glm4v(request: Request) -> Spec:
    """GLM-4.1V and GLM-4.6V-Flash, whose decoder is GLM-4 of 2025; GLM-4.5V and 4.6V with experts."""
    config = request.config.vision_config
    size = config.out_hidden_size
    projector = {
        **linear(SQUARE, "merged", "vision_resid tall wide"),
        **linear(f"{MERGER}.proj", "joined", "merged'", bias=False),
        **layer_norm(f"{MERGER}.post_projection_norm", "joined"),
        **linear(f"{MERGER}.gate_proj", "projector~", "joined", bias=False),
        **linear(f"{MERGER}.up_proj", "projector", "joined", bias=False),
        **linear(f"{MERGER}.down_proj", "resid", "projector'", bias=False),
    }
    return whole(
        request,
        decoder_of(request, DECODERS),
        _tower(request),
        projector,
        norm_before((f"{SQUARE}.weight",), "visual.post_layernorm", "vision_resid", centred=False),
        spaces={
            "tall": Space(config.spatial_merge_size),
            "wide": Space(config.spatial_merge_size),
            "merged": Space(size, Orthogonal(scaled=True), part="residual"),
            "joined": Space(size, Permutation(), part="ffn"),
            "projector": Space(config.intermediate_size, NEURONS, part="ffn"),
        },
        aliases={},
    )
