"""Gemma 4 that reads pictures: with a tower, or, Unified, with one linear layer for patches and one for sounds.

The tower has norms before and behind its branches, and on queries, keys and values. It may clip what its linear layers
read and write, all coordinates alike: only their order is then free.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cobasin.architectures import Request, declares
from cobasin.architectures.gemma4 import PER_LAYER, PRE_NORMS, gemma4
from cobasin.architectures.gemma4_sounds import OUTPUT, sounds
from cobasin.architectures.joining import relabelled
from cobasin.architectures.parts import LAYER, NEURONS, PER_GROUP, groups, layer_norm, linear, require
from cobasin.architectures.rmsnorm_decoder import POST_NORMS
from cobasin.architectures.vision import norm_before
from cobasin.architectures.vision_language import VISION, decoder, vision_of, whole
from cobasin.symmetry.groups import Diagonal, Orthogonal, Permutation, SignedPermutation
from cobasin.symmetry.spec import Space, Spec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

BLOCK = f"{VISION}encoder.layers.{{layer}}"
BOUNDS = r".*\.(in|out)put_(min|max)"


def _spaces(config: PreTrainedConfig) -> dict[str, Space]:
    width, clipped = config.head_dim, config.use_clipped_linears
    signs, scales = Diagonal(signed=True), Diagonal(signed=True, scaled=True)
    return {
        "layer": Space(config.num_hidden_layers),
        "resid": Space(config.hidden_size, Permutation() if clipped else SignedPermutation, part="residual"),
        **groups(config.num_attention_heads, config.num_key_value_heads),
        "side": Space(2),
        "pair": Space(2),
        "freq": Space(width // 4, None if clipped else signs, (*PER_GROUP, "side"), part="attention"),
        "gain": Space(width // 4, scales, (*LAYER, "side"), part="attention"),
        "vo": Space(width, Permutation() if clipped else Orthogonal(), PER_GROUP, part="attention"),
        "ffn": Space(config.intermediate_size, Permutation() if clipped else NEURONS, LAYER, part="ffn"),
        "pixel": Space(3 * config.patch_size**2),
        "pos": Space(config.position_embedding_size),
    }


def _tower(request: Request) -> Spec:
    config = vision_of(request, "gemma4_vision")
    own, mlp, (before, after) = f"{BLOCK}.self_attn", f"{BLOCK}.mlp", (f"{BLOCK}.{norm}" for norm in PRE_NORMS)
    branches = {
        before: linear(f"{own}.q_proj.linear", "(kv rep side pair freq)", "resid", bias=False)
        | linear(f"{own}.k_proj.linear", "(kv side pair freq)", "resid", bias=False)
        | linear(f"{own}.v_proj.linear", "(kv vo)", "resid", bias=False),
        after: linear(f"{mlp}.gate_proj.linear", "ffn~", "resid", bias=False)
        | linear(f"{mlp}.up_proj.linear", "ffn", "resid", bias=False),
    }
    gains = (before, after, *(f"{BLOCK}.{norm}" for norm in POST_NORMS))
    standards = {f"{VISION}std_bias": "resid", f"{VISION}std_scale": "resid~"}
    return Spec(
        request.architecture,
        _spaces(config),
        {
            f"{VISION}patch_embedder.input_proj.weight": "resid pixel",
            f"{VISION}patch_embedder.position_embedding_table": "side pos resid",
            **{f"{gain}.weight": "resid~" for gain in gains},
            **branches[before],
            **branches[after],
            f"{own}.q_norm.weight": "(side pair gain)",
            f"{own}.k_norm.weight": "(side pair gain')",
            **linear(f"{own}.o_proj.linear", "resid", "(kv rep vo)", bias=False),
            **linear(f"{mlp}.down_proj.linear", "resid", "ffn'", bias=False),
            **(standards if config.standardize else {}),
        },
        norms=()
        if config.use_clipped_linears
        else tuple(norm_before(branch, norm, centred=False) for norm, branch in branches.items()),
        buffers=(BOUNDS,),
        function_keys=(
            "num_attention_heads",
            "hidden_activation",
            "rms_norm_eps",
            "rope_parameters",
            "pooling_kernel_size",
            "use_clipped_linears",
        ),
    )


@declares("Gemma4", "gemma4", "ForConditionalGeneration", per_layer=PER_LAYER)
def gemma4_pictures(request: Request) -> Spec:
    """Gemma 4 that reads pictures, and may hear: what towers make of them passes norms without gains."""
    config = request.config
    # the inputs of layers have those of this token where pictures are
    keys = ("text_config.pad_token_id",) if config.text_config.hidden_size_per_layer_input else ()
    return with_towers(request, decoder(request, gemma4), *keys)


def with_towers(request: Request, decoder: Spec, *keys: str) -> Spec:
    """A decoder that reads what Gemma 4's tower makes of pictures and, where it may hear, of sounds."""
    config = request.config
    projector = linear("embed_vision.embedding_projection", "resid", "vision_resid", bias=False)
    parts = decoder, _tower(request), projector
    if config.audio_config is None:
        return whole(request, *parts, keys=keys, aliases={})
    heard = relabelled(sounds(request), space=lambda name: f"audio_{name}")
    keys += tuple(f"audio_config.{key}" for key in heard.function_keys)
    out = Space(config.audio_config.output_proj_dims, Orthogonal(), part="residual")
    spec = whole(request, *parts, spaces={**heard.spaces, "heard": out}, keys=keys, aliases={})
    templates = {**spec.templates, **heard.templates, **OUTPUT}
    return replace(spec, templates=templates, norms=(*spec.norms, *heard.norms))


@declares("Gemma4Unified", "gemma4_unified", "ForConditionalGeneration", per_layer=PER_LAYER)
def gemma4_unified(request: Request) -> Spec:
    """Gemma 4 Unified. The gains of the norms behind the layer for patches sit in what it writes: an order only."""
    config = request.config
    sees, hears, root = vision_of(request, "gemma4_unified_vision"), config.audio_config, "vision_embedder."
    require(sees.output_proj_dims == sees.mm_embed_dim, "vision_config.output_proj_dims other than mm_embed_dim")
    reader = linear(f"{root}patch_dense", "embedded", "pixel")
    embedder = Spec(
        request.architecture,
        {
            "pixel": Space(3 * sees.model_patch_size**2),
            "embedded": Space(sees.mm_embed_dim, Permutation(), part="residual"),
            "pos": Space(sees.mm_posemb_size),
            "side": Space(2),
        },
        {
            **layer_norm(f"{root}patch_ln1", "pixel"),
            **reader,
            **layer_norm(f"{root}patch_ln2", "embedded"),
            f"{root}pos_embedding": "pos side embedded",
            **layer_norm(f"{root}pos_norm", "embedded"),
        },
        norms=(norm_before(reader, f"{root}patch_ln1", "pixel"),),
        function_keys=("rms_norm_eps",),
    )
    projector = linear("embed_vision.embedding_projection", "resid", "vision_embedded", bias=False)
    spaces, keys = {}, ()
    if hears is not None:
        projector |= linear("embed_audio.embedding_projection", "resid", "wave", bias=False)
        spaces, keys = {"wave": Space(hears.audio_embed_dim)}, ("audio_config.rms_norm_eps",)
    parts = decoder(request, gemma4), embedder, projector
    return whole(request, *parts, spaces=spaces, keys=keys, aliases={})
