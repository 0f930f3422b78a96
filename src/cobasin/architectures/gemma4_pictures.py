"""Gemma 4 with its tower for pictures: norms before and behind its branches, and on queries, keys and values.

A tower may clip what its linear layers read and write, all coordinates alike: only their order is then free.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cobasin.architectures import Request, declares
from cobasin.architectures.gemma4 import PER_LAYER, PRE_NORMS, gemma4
from cobasin.architectures.parts import LAYER, linear, require
from cobasin.architectures.rmsnorm_decoder import NEURONS, PER_GROUP, POST_NORMS
from cobasin.architectures.vision import norm_before
from cobasin.architectures.vision_language import VISION, decoder, vision_of, whole
from cobasin.symmetry.groups import Diagonal, Orthogonal, Permutation, SignedPermutation
from cobasin.symmetry.spec import Space, Spec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

BLOCK = f"{VISION}encoder.layers.{{layer}}"
BOUNDS = r".*\.(in|out)put_(min|max)"


def _spaces(config: PreTrainedConfig) -> dict[str, Space]:
    width, groups, clipped = config.head_dim, config.num_key_value_heads, config.use_clipped_linears
    signs, scales = Diagonal(signed=True), Diagonal(signed=True, scaled=True)
    return {
        "layer": Space(config.num_hidden_layers),
        "resid": Space(config.hidden_size, Permutation() if clipped else SignedPermutation, part="residual"),
        "kv": Space(groups, Permutation(), LAYER, part="heads"),
        "rep": Space(config.num_attention_heads // groups, Permutation(), PER_GROUP, part="heads"),
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
    """Gemma 4 that reads pictures: the averages of squares of patches, through a norm without a gain."""
    config = request.config
    require(config.audio_config is None, "audio_config, a tower for sounds,")
    require(config.vision_config is not None, "a model without vision_config")
    spec = whole(
        request,
        decoder(request, gemma4),
        _tower(request),
        linear("embed_vision.embedding_projection", "resid", "vision_resid", bias=False),
        aliases={},
    )
    # the inputs of layers have those of this token where pictures are
    padded = ("text_config.pad_token_id",) if config.text_config.hidden_size_per_layer_input else ()
    return replace(spec, function_keys=(*spec.function_keys, *padded))
