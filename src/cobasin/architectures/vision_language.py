"""Decoders that read pictures beside text: a tower for pictures, and a projector from it to the decoder's stream.

The decoder is one that is declared for text alone. What the projector makes of a picture takes the place of
embeddings, and is written to the stream as these are.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from cobasin.architectures import Declaration, Request, declares
from cobasin.architectures.joining import joined, relabelled, without_keys
from cobasin.architectures.latent_decoder import deepseek_v3
from cobasin.architectures.multimodal import siglip_tower
from cobasin.architectures.parts import LAYER, NEURONS, attention, linear, neurons, require, sides, tie_keys
from cobasin.architectures.qk_norm_decoder import gemma3
from cobasin.architectures.rmsnorm_decoder import gemma, gemma2, llama, mistral
from cobasin.architectures.vision import free_stream, norm_before
from cobasin.symmetry.gauges import Norm
from cobasin.symmetry.groups import Orthogonal, Permutation, SignedPermutation
from cobasin.symmetry.spec import Space, Spec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

TEXT, VISION, PROJECTOR = "language_model.", "vision_tower.", "multi_modal_projector."
HEADS = ("lm_head.", "score.")
PLACED = ("image_token_id", "video_token_id", "audio_token_id")  # of what stands where something else is read
PALIGEMMA = {"gemma": gemma, "gemma2": gemma2}
MISTRAL3 = {"mistral": mistral, "ministral3": mistral, "mistral4": deepseek_v3}
# files on the hub have other beginnings than Transformers 5 has, which are those of the templates
TEXT_ALIASES = {"language_model.model.": TEXT, "language_model.lm_head.": "lm_head."}
ALIASES = TEXT_ALIASES | {"vision_tower.vision_model.": VISION}


def decoder(request: Request, declaration: Declaration, root: str = TEXT) -> Spec:
    """The decoder, whose tensors have the names that they have within the whole: they begin with ``root``."""
    config = copy.copy(request.config.text_config)
    config.tie_word_embeddings = getattr(request.config, "tie_word_embeddings", False)  # Llama 3.2 ties nothing
    config.num_labels = request.config.num_labels
    head = request.head if request.head.endswith("Classification") else "ForCausalLM"
    spec = declaration(Request(config, request.architecture, head, request.names))
    named = relabelled(spec, name=lambda name: name if name.startswith(HEADS) else f"{root}{name}")
    named = without_keys(named, *tie_keys(spec.tied))  # the whole has it
    return replace(
        named,
        absent=tuple(re.escape(root) + pattern for pattern in spec.absent),
        buffers=tuple(re.escape(root) + pattern for pattern in spec.buffers),
        further=(),  # a whole file has them elsewhere
    )


def decoder_of(request: Request, declarations: Mapping[str, Declaration], root: str = TEXT) -> Spec:
    """The decoder, whose type is one of these."""
    kind = request.config.text_config.model_type
    require(kind in declarations, f"text_config.model_type {kind!r}")
    return decoder(request, declarations[kind], root)


def vision_of(request: Request, kind: str) -> PreTrainedConfig:
    """The config of the tower, which has to be of this type."""
    found = request.config.vision_config
    require(found is not None, "vision_config of null")
    require(found.model_type == kind, f"vision_config.model_type {found.model_type!r}")
    return found


def whole(
    request: Request,
    decoder: Spec,
    tower: Spec,
    projector: dict[str, str],
    *norms: Norm,
    spaces: dict[str, Space] | None = None,
    keys: tuple[str, ...] = (),
    aliases: dict[str, str] = ALIASES,
) -> Spec:
    """Decoder, tower and projector; ``norms`` are those that read the tower's stream for the projector."""
    require(isinstance(request.config.image_token_id, int), "image_token_id other than a number")
    spec = joined(decoder, tower, projector)
    return replace(
        spec,
        spaces={**spec.spaces, **(spaces or {})},
        prefix="model.",
        aliases=aliases,
        norms=(*spec.norms, *norms),
        function_keys=(
            *(*spec.function_keys, *tie_keys(spec.tied), *keys),
            *(key for key in PLACED if hasattr(request.config, key)),
        ),
    )


def pixtral_tower(request: Request, order: str = "pair freq") -> Spec:
    """Pixtral: a Llama that sees all patches, turned by row and column. Its first norm's gain sits in the stream.

    ``order`` is how a rotary pair lies in the head.
    """
    config, root, layer = vision_of(request, "pixtral"), VISION, f"{VISION}transformer.layers.{{layer}}"
    width, (down, right) = config.hidden_size // config.num_attention_heads, sides(config.patch_size)
    key = order.replace("pair", "pair'")
    own, mlp, before, after = (
        f"{layer}.{part}" for part in ("attention", "feed_forward", "attention_norm", "ffn_norm")
    )
    branches = {
        before: linear(f"{own}.q_proj", f"(head {order})", "resid", bias=False)
        | linear(f"{own}.k_proj", f"(head {key})", "resid", bias=False)
        | linear(f"{own}.v_proj", "(head vo)", "resid", bias=False),
        after: linear(f"{mlp}.gate_proj", "ffn~", "resid", bias=False)
        | linear(f"{mlp}.up_proj", "ffn", "resid", bias=False),
    }
    return Spec(
        request.architecture,
        {
            "layer": Space(config.num_hidden_layers),
            "resid": Space(config.hidden_size, SignedPermutation, part="residual"),
            **attention(config.num_attention_heads, width, rotated=width),
            "ffn": Space(config.intermediate_size, NEURONS, LAYER, part="ffn"),
            "channel": Space(config.num_channels),
            "down": Space(down),
            "right": Space(right),
        },
        {
            f"{root}patch_conv.weight": "resid channel down right",
            **dict.fromkeys((f"{root}ln_pre.weight", f"{before}.weight", f"{after}.weight"), "resid~"),
            **branches[before],
            **branches[after],
            **linear(f"{own}.o_proj", "resid", "(head vo')", bias=False),
            **linear(f"{mlp}.down_proj", "resid", "ffn'", bias=False),
        },
        norms=tuple(norm_before(branch, norm, centred=False) for norm, branch in branches.items()),
        function_keys=("num_attention_heads", "hidden_act", "rope_parameters"),
    )


@declares("Gemma3", "gemma3", "ForConditionalGeneration", "ForSequenceClassification")
def gemma3_pictures(request: Request) -> Spec:
    """Gemma 3 with SigLIP's tower, whose last gain sits in what is averaged over patches: permutations only."""
    tower = vision_of(request, "siglip_vision_model")
    weight, gain = f"{PROJECTOR}mm_input_projection_weight", f"{PROJECTOR}mm_soft_emb_norm.weight"
    spec = whole(
        request,
        decoder(request, gemma3),
        siglip_tower(request, tower, VISION, {"resid": Space(tower.hidden_size, Permutation(), part="residual")}, {}),
        {weight: "vision_resid resid", gain: "vision_resid"},
        Norm(gain, (weight,), centred=False, stream="vision_resid"),
        keys=("mm_tokens_per_image",),
    )
    return replace(spec, plus_one=(*spec.plus_one, gain))


def with_pixtral(request: Request, decoder: Spec, tower: Spec) -> Spec:
    """A decoder behind Pixtral's tower, a square of whose patches becomes one token."""
    config = request.config
    require(config.vision_feature_layer == -1, "vision_feature_layer other than -1")
    biased = config.multimodal_projector_bias
    merger = linear(f"{PROJECTOR}patch_merger.merging_layer", "merged", "(vision_resid merge)", bias=False)
    return whole(
        request,
        decoder,
        tower,
        {f"{PROJECTOR}norm.weight": "vision_resid~"}
        | merger
        | linear(f"{PROJECTOR}linear_1", "projector", "merged'", biased)
        | linear(f"{PROJECTOR}linear_2", "resid", "projector'", biased),
        norm_before(merger, f"{PROJECTOR}norm", "vision_resid", centred=False),
        spaces={
            "merge": Space(config.spatial_merge_size**2),
            "merged": Space(config.vision_config.hidden_size, Orthogonal(scaled=True), part="residual"),
            "projector": Space(config.text_config.hidden_size, neurons(config.projector_hidden_act), part="ffn"),
        },
        keys=("projector_hidden_act",),
        aliases=TEXT_ALIASES,
    )


@declares("Mistral3", "mistral3", "ForConditionalGeneration")
def mistral3(request: Request) -> Spec:
    """Mistral Small 3.1 and 4, Ministral 3."""
    return with_pixtral(request, decoder_of(request, MISTRAL3), pixtral_tower(request))


@declares("PaliGemma", "paligemma", "ForConditionalGeneration")
def paligemma(request: Request) -> Spec:
    """PaliGemma 1 and 2: SigLIP's tower, a linear map, and Gemma or Gemma 2."""
    tower = vision_of(request, "siglip_vision_model")
    projector = linear(f"{PROJECTOR}linear", "resid", "vision_resid")
    # Gemma 2's config says it; the whole reads it of any
    softcapping = () if request.config.text_config.model_type == "gemma2" else ("text_config.final_logit_softcapping",)
    return whole(
        request,
        decoder_of(request, PALIGEMMA),
        siglip_tower(request, tower, VISION, {"resid": free_stream(tower.hidden_size)}, {}),
        projector,
        norm_before(projector, f"{VISION}post_layernorm", "vision_resid"),
        keys=softcapping,
    )


@declares("SmolVLM", "smolvlm", "ForConditionalGeneration")
@declares("Idefics3", "idefics3", "ForConditionalGeneration")
def idefics3(request: Request) -> Spec:
    """Idefics 3 and SmolVLM: SigLIP's tower, a linear map of squares of its patches, and Llama."""
    config, tower, root = request.config, request.config.vision_config, "vision_model."
    projector = linear("connector.modality_projection.proj", "resid", "(merge vision_resid)", bias=False)
    return whole(
        request,
        decoder_of(request, {"llama": llama}, "text_model."),
        siglip_tower(request, tower, root, {"resid": free_stream(tower.hidden_size)}, {}),
        projector,
        norm_before(projector, f"{root}post_layernorm", "vision_resid"),
        spaces={"merge": Space(config.scale_factor**2)},
        aliases={},
    )
