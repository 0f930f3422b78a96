"""InternVL: a tower with layer scales, squares of whose patches are normalised as one, and a decoder of Qwen's."""

from __future__ import annotations

import copy
from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.moe import qwen3_moe
from cobasin.architectures.parts import PER_HEAD, layer_norm, linear, neurons, require
from cobasin.architectures.qk_norm_decoder import qwen3
from cobasin.architectures.rmsnorm_decoder import qwen2
from cobasin.architectures.vision import FUNCTION_KEYS, PICTURE_KEYS, VIT, pictures, pre_norm
from cobasin.architectures.vision_language import PROJECTOR, TEXT_ALIASES, VISION, decoder_of, vision_of, whole
from cobasin.symmetry.gauges import KeyBias
from cobasin.symmetry.groups import Permutation, SignedPermutation
from cobasin.symmetry.spec import Space, Spec

DECODERS = {"qwen2": qwen2, "qwen3": qwen3, "qwen3_moe": qwen3_moe}
LAYER = f"{VISION}encoder.layer.{{layer}}"
OWN = f"{LAYER}.attention"
NAMES = VIT._replace(
    layer=LAYER,
    query="attention.q_proj",
    key="attention.k_proj",
    value="attention.v_proj",
    output="attention.projection_layer",
    up="mlp.fc1",
    down="mlp.fc2",
)


def _tower(request: Request) -> Spec:
    """The tower. The norm of the projector is over several patches, with gains that differ: permutations only.

    Larger ones have RMSNorms, also over all queries and over all keys.
    """
    config, size = vision_of(request, "internvl_vision"), request.config.vision_config.hidden_size
    require(not config.use_mask_token, "vision_config.use_mask_token")
    spaces = pictures(config, tokens=1) | {"resid": Space(size, Permutation(), part="residual")}
    embeddings = {f"{VISION}embeddings.cls_token": "1 1 resid"}
    embeddings |= linear(f"{VISION}embeddings.patch_embeddings.projection", "resid", "channel down right")
    if config.use_absolute_position_embeddings:
        embeddings[f"{VISION}embeddings.position_embeddings"] = "1 pos resid"
    if config.use_qk_norm:
        heads = config.num_attention_heads
        spaces["qk"] = Space(size // heads, SignedPermutation, PER_HEAD, part="attention")
        embeddings |= dict.fromkeys((f"{OWN}.q_norm.weight", f"{OWN}.k_norm.weight"), "(head qk~)")
    spec = pre_norm(
        request.architecture,
        config,
        NAMES,
        spaces,
        embeddings,
        "" if config.use_mean_pooling else f"{VISION}layernorm",
        {},
        biased=(config.attention_bias,) * 3,
        scales=("lambda_1", "lambda_2"),
        function_keys=(*FUNCTION_KEYS, *PICTURE_KEYS),
    )
    centred = config.norm_type == "layer_norm"
    offsets = () if centred else (f"{LAYER}.layernorm_before.bias", f"{LAYER}.layernorm_after.bias")
    return replace(
        spec,
        templates={name: type_ for name, type_ in spec.templates.items() if name not in offsets},
        biases=tuple(bias for bias in spec.biases if not (config.use_qk_norm and isinstance(bias, KeyBias))),
    )


def _as_in_file(request: Request) -> Request:
    """With a head that is tied where the file has none of its own, as Transformers has it, whatever the config says."""
    config = copy.copy(request.config)
    own = request.has("lm_head.weight") and request.has("embed_tokens.weight")
    config.tie_word_embeddings = config.tie_word_embeddings and not own
    return replace(request, config=config)


@declares("InternVL", "internvl", "ForConditionalGeneration")
def internvl(request: Request) -> Spec:
    """InternVL 2.5, 3 and 3.5, in the layout of Transformers."""
    config = request.config
    require(config.vision_feature_layer == -1, "vision_feature_layer other than -1")
    projector = (
        layer_norm(f"{PROJECTOR}layer_norm", "(merge vision_resid)")
        | linear(f"{PROJECTOR}linear_1", "projector", "(merge vision_resid)")
        | linear(f"{PROJECTOR}linear_2", "resid", "projector'")
    )
    return whole(
        request,
        decoder_of(_as_in_file(request), DECODERS),
        _tower(request),
        projector,
        spaces={
            "merge": Space(int(1 / config.downsample_ratio) ** 2),
            "projector": Space(config.text_config.hidden_size, neurons(config.projector_hidden_act), part="ffn"),
        },
        keys=("projector_hidden_act", "downsample_ratio", "vision_feature_select_strategy"),
        aliases=TEXT_ALIASES,
    )
