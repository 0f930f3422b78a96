"""Two towers, for text and for pictures, that meet in a joint space: CLIP and SigLIP.

Of the joint space only cosines are read, so any orthogonal map acts there; a tower alone shows it, and its stream, as
output. Each tower could also change its length there: left out, since nothing keeps the best length away from zero.
"""

from __future__ import annotations

import re
from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.joining import joined
from cobasin.architectures.parts import labels, layer_norm, linear, neurons, require
from cobasin.architectures.vision import (
    FUNCTION_KEYS,
    PICTURE_KEYS,
    Names,
    free_stream,
    norm_before,
    pictures,
    pre_norm,
)
from cobasin.symmetry.gauges import KeyBias, ValueBias
from cobasin.symmetry.groups import Orthogonal, Permutation
from cobasin.symmetry.spec import Space, Spec

TEXT_PROJECTION = {"text_projection.weight": "joint resid"}
VISION_PROJECTION = {"visual_projection.weight": "joint resid"}
TEXT, VISION = "text_model.", "vision_model."
LAYERS = Names(
    "encoder.layers.{layer}",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.out_proj",
    "layer_norm1",
    "layer_norm2",
    "mlp.fc1",
    "mlp.fc2",
)


def _tower(
    request: Request,
    config,
    root: str,
    spaces: dict[str, Space],
    embeddings: dict[str, str],
    final: str,
    head: dict[str, str],
    keys: tuple[str, ...],
    unread: tuple[str, ...] = (),
    **options,
) -> Spec:
    """A tower, whose names begin with ``root``; alone, its file may or may not have the root.

    What its file has besides, patterns ``unread``, is copied.
    """
    return pre_norm(
        request.architecture,
        config,
        LAYERS._replace(layer=root + LAYERS.layer),
        spaces,
        {f"{root}{name}": type_ for name, type_ in embeddings.items()},
        f"{root}{final}",
        head,
        prefix="" if root else TEXT if "vocab" in spaces else VISION,
        buffers=(r"(.*\.)?embeddings\.position_ids", *unread),
        function_keys=(*FUNCTION_KEYS, *keys),
        **options,
    )


def _text(request: Request, config, root: str, spaces: dict[str, Space], head: dict[str, str], *keys: str) -> Spec:
    """The text tower."""
    vocabulary = {"vocab": Space(config.vocab_size), "pos": Space(config.max_position_embeddings)}
    embeddings = {
        "embeddings.token_embedding.weight": "vocab resid",
        "embeddings.position_embedding.weight": "pos resid",
    }
    return _tower(request, config, root, vocabulary | spaces, embeddings, "final_layer_norm", head, keys)


def _clip_text_keys(config) -> tuple[str, ...]:
    """What else changes the function of CLIP's text tower: its mask, and the token whose place is read.

    An ``eos_token_id`` of 2, that of old configs, stands for the largest id in a text: the last of the vocabulary. In
    MetaCLIP 2 it is itself.
    """
    last = config.model_type == "clip_text_model" and config.eos_token_id in (2, config.vocab_size - 1)
    return ("is_causal",) if last else ("is_causal", "eos_token_id")


def clip_tower(request: Request, config, root: str, spaces: dict[str, Space], head: dict[str, str]) -> Spec:
    """CLIP's vision tower. The gain of its first norm sits in the stream: permutations only.

    The mean of the embeddings, which that norm ignores, is left alone.
    """
    embeddings = {
        "embeddings.class_embedding": "resid",
        "embeddings.patch_embedding.weight": "resid channel down right",
        "embeddings.position_embedding.weight": "pos resid",
        **layer_norm("pre_layrnorm"),
    }
    spaces = pictures(config, tokens=1) | spaces
    return _tower(request, config, root, spaces, embeddings, "post_layernorm", head, PICTURE_KEYS)


def siglip_tower(
    request: Request, config, root: str, spaces: dict[str, Space], head: dict[str, str], **options
) -> Spec:
    """SigLIP's vision tower; its pooling head is not read where it is not part of ``head``."""
    keys, patch = PICTURE_KEYS, "channel down right"
    if config.model_type == "siglip2_vision_model":  # pictures of any size, cut into patches before
        keys, patch = ("patch_size", "num_patches"), "pixel"
        pixels = config.num_channels * config.patch_size**2
        spaces = {"pixel": Space(pixels), "pos": Space(config.num_patches)} | spaces
    else:
        spaces = pictures(config, tokens=0) | spaces
    embeddings = linear("embeddings.patch_embedding", "resid", patch)
    embeddings["embeddings.position_embedding.weight"] = "pos resid"
    pooled = any(name.startswith(f"{root}head.") for name in head)
    unread = () if pooled else (rf"{re.escape(root)}head\..*",)
    return _tower(request, config, root, spaces, embeddings, "post_layernorm", head, keys, unread, **options)


def _fixed(size: int) -> Space:
    return Space(size, part="residual")


def _permuted(size: int) -> Space:
    return Space(size, Permutation(), part="residual")


@declares("CLIP", "clip", "Model")
@declares("MetaClip2", "metaclip_2", "Model")
def clip(request: Request) -> Spec:
    """CLIP and MetaCLIP 2."""
    text, vision = request.config.text_config, request.config.vision_config
    joint = Space(request.config.projection_dim, Orthogonal(), part="residual")
    spaces = {"resid": free_stream(text.hidden_size), "joint": joint}
    return joined(
        _text(request, text, TEXT, spaces, TEXT_PROJECTION, *_clip_text_keys(text)),
        clip_tower(request, vision, VISION, {"resid": _permuted(vision.hidden_size)}, VISION_PROJECTION),
        {"logit_scale": "scalar"},
    )


@declares("CLIP", "clip_text_model", "TextModel")
@declares("MetaClip2", "metaclip_2_text_model", "TextModel")
def clip_text(request: Request) -> Spec:
    """CLIP's text tower, with the stream as output."""
    config = request.config
    return _text(request, config, "", {"resid": _fixed(config.hidden_size)}, {}, *_clip_text_keys(config))


@declares("CLIP", "clip_text_model", "TextModelWithProjection")
@declares("MetaClip2", "metaclip_2_text_model", "TextModelWithProjection")
def clip_text_projection(request: Request) -> Spec:
    """CLIP's text tower, with the stream and its projection as outputs."""
    config = request.config
    spaces = {"resid": _fixed(config.hidden_size), "joint": _fixed(config.projection_dim)}
    return _text(request, config, TEXT, spaces, TEXT_PROJECTION, *_clip_text_keys(config))


@declares("CLIP", "clip_vision_model", "VisionModel")
@declares("MetaClip2", "metaclip_2_vision_model", "VisionModel")
def clip_vision(request: Request) -> Spec:
    """CLIP's vision tower, with the stream as output."""
    config = request.config
    return clip_tower(request, config, "", {"resid": _fixed(config.hidden_size)}, {})


@declares("CLIP", "clip_vision_model", "VisionModelWithProjection")
@declares("MetaClip2", "metaclip_2_vision_model", "VisionModelWithProjection")
def clip_vision_projection(request: Request) -> Spec:
    """CLIP's vision tower, with the stream and its projection as outputs."""
    config = request.config
    spaces = {"resid": _fixed(config.hidden_size), "joint": _fixed(config.projection_dim)}
    return clip_tower(request, config, VISION, spaces, VISION_PROJECTION)


@declares("CLIP", "clip", "ForImageClassification")
@declares("MetaClip2", "metaclip_2", "ForImageClassification")
def clip_classifier(request: Request) -> Spec:
    """CLIP's vision tower with a head on the mean of its patches, which the tower's last norm is not in front of."""
    config = request.config.vision_config
    spaces = {"resid": _permuted(config.hidden_size), "label": labels(request.config)}
    spec = clip_tower(request, config, VISION, spaces, linear("classifier", "label", "resid"))
    return replace(_classifier(spec), unread=tuple(layer_norm(f"{VISION}post_layernorm")))


def _classifier(spec: Spec) -> Spec:
    """A tower with a head, whose keys are those of a part of its config."""
    return replace(spec, function_keys=tuple(f"vision_config.{key}" for key in spec.function_keys))


def _pooled(request: Request, config, root: str, resid: Space, joint: Space) -> Spec:
    """SigLIP's vision tower with its attention-pooling head, which writes the joint space as a stream of its own.

    The input projections of the pooling attention are one tensor, whose keys and values read the last norm while
    its queries read the probe: the norm cannot fold. That the probe may trade with the query bias is left out.
    """
    require(getattr(config, "vision_use_head", True), "vision_use_head=false")  # a field since 5.23
    head, heads = f"{root}head", config.num_attention_heads
    own, out = f"{head}.attention.in_proj", f"{head}.attention.out_proj"
    fused = "(pool_head pool_qk + pool_head pool_qk' + pool_head pool_vo)"
    base = Space(config.hidden_size // heads, Orthogonal(scaled=True), ("pool_head",), part="attention")
    norm = norm_before([f"{head}.mlp.fc1.weight"], f"{head}.layernorm", "joint")
    return siglip_tower(
        request,
        config,
        root,
        {
            "resid": resid,
            "joint": joint,
            "pool_head": Space(heads, Permutation(), part="heads"),
            "pool_qk": base,
            "pool_vo": base,
            "pool_ffn": Space(config.intermediate_size, neurons(config.hidden_act), part="ffn"),
        },
        {
            f"{head}.probe": "1 1 resid",
            f"{own}_weight": f"{fused} resid",
            f"{own}_bias": fused,
            **linear(out, "joint", "(pool_head pool_vo')"),
            **layer_norm(f"{head}.layernorm", "joint"),
            **linear(f"{head}.mlp.fc1", "pool_ffn", "joint"),
            **linear(f"{head}.mlp.fc2", "joint", "pool_ffn'"),
        },
        norms=(replace(norm, keeps_mean=True),) if joint.folded else (),  # cosines read the mean of the joint space
        biases=(KeyBias(f"{own}_bias", block=1), ValueBias(f"{own}_bias", f"{out}.weight", f"{out}.bias", block=2)),
    )


@declares("Siglip", "siglip", "Model")
@declares("Siglip2", "siglip2", "Model")
def siglip(request: Request) -> Spec:
    """SigLIP and SigLIP 2, those of whose files that take pictures of one size are of the former class."""
    text, vision = request.config.text_config, request.config.vision_config
    require(text.projection_size == vision.hidden_size, "projection_size other than the vision tower's hidden_size")
    joint = free_stream(vision.hidden_size)
    head = linear(f"{TEXT}head", "joint", "resid")
    return joined(
        _text(request, text, TEXT, {"resid": free_stream(text.hidden_size), "joint": joint}, head),
        _pooled(request, vision, VISION, _permuted(vision.hidden_size), joint),
        {"logit_scale": "1", "logit_bias": "1"},
    )


@declares("Siglip", "siglip", "ForImageClassification")
@declares("Siglip2", "siglip2", "ForImageClassification")
def siglip_classifier(request: Request) -> Spec:
    """SigLIP's vision tower with a head on the mean of its stream; the pooling head in the file is not read."""
    config = request.config.vision_config
    spaces = {"resid": free_stream(config.hidden_size), "label": labels(request.config)}
    return _classifier(siglip_tower(request, config, VISION, spaces, linear("classifier", "label", "resid")))


@declares("Siglip", "siglip_text_model", "TextModel")
@declares("Siglip2", "siglip2_text_model", "TextModel")
def siglip_text(request: Request) -> Spec:
    """SigLIP's text tower, stream and projection fixed."""
    config = request.config
    spaces = {"resid": _fixed(config.hidden_size), "joint": _fixed(config.projection_size)}
    return _text(request, config, "", spaces, linear("head", "joint", "resid"))


@declares("Siglip", "siglip_vision_model", "VisionModel")
@declares("Siglip2", "siglip2_vision_model", "VisionModel")
def siglip_vision(request: Request) -> Spec:
    """SigLIP's vision tower, stream and projection fixed."""
    config = request.config
    stream = _fixed(config.hidden_size)
    return _pooled(request, config, "", stream, stream)
