"""Two towers as in CLIP, whose text tower is a BERT: Chinese-CLIP and AltCLIP."""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.encoder import bare_pooler, bert_spec
from cobasin.architectures.joining import joined, relabelled, without_keys
from cobasin.architectures.multimodal import TEXT, TEXT_PROJECTION, VISION, VISION_PROJECTION, clip_tower
from cobasin.architectures.parts import layer_norm, linear
from cobasin.symmetry.groups import Orthogonal, Permutation
from cobasin.symmetry.spec import Space, Spec

OF_BERT = ("is_decoder", "position_embedding_type")  # config keys that these do not read
BUFFERS = (r"(.*\.)?embeddings\.(position|token_type)_ids",)


def _text(request: Request, config, root: str, head: dict[str, str], **spaces: Space) -> Spec:
    """A BERT whose names begin with ``root``, in front of ``head``."""
    spec = without_keys(bert_spec(replace(request, config=config), {}, {}, ""), *OF_BERT)
    kept = tuple(f"{root}{name}" for name in spec.unread)
    spec = relabelled(spec, name=lambda template: f"{root}{template}")
    return replace(
        spec,
        spaces={**spec.spaces, **spaces},
        templates={**spec.templates, **head},
        buffers=BUFFERS,
        unread=kept,
    )


def _projected(request: Request, config, root: str, head: dict[str, str], proj: Space) -> Spec:
    """AltCLIP's text tower: a RoBERTa, another norm, and a projection. Only the latter is read, so the stream moves."""
    moves = replace(request, head="")
    found = linear(f"{root}transformation", "proj", "resid") | layer_norm(f"{root}pre_LN")
    spec = _text(moves, config, f"{root}roberta.", found | head, proj=proj)
    return replace(
        spec,
        aliases={f"{root}roberta.encoder.layers.": f"{root}roberta.encoder.layer."},
        function_keys=(*spec.function_keys, "pad_token_id"),  # positions are counted from it
    )


def _beside_pictures(request: Request, text: Spec) -> Spec:
    """A text tower that projects into the joint space, and CLIP's vision tower."""
    config = request.config
    stream = Space(config.vision_config.hidden_size, Permutation(), part="residual")
    spaces = {"resid": stream, "joint": Space(config.projection_dim, Orthogonal(), part="residual")}
    vision = clip_tower(request, config.vision_config, VISION, spaces, VISION_PROJECTION)
    return joined(text, vision, {"logit_scale": "scalar"})


@declares("ChineseCLIP", "chinese_clip", "Model")
def chinese_clip(request: Request) -> Spec:
    """Chinese-CLIP."""
    return _beside_pictures(
        request, _text(replace(request, head=""), request.config.text_config, TEXT, TEXT_PROJECTION)
    )


@declares("AltCLIP", "altclip", "Model")
def altclip(request: Request) -> Spec:
    """AltCLIP. Between its two projections of a text any basis will do.

    Transformers 5 writes the layers of its vision tower under another name than files had before.
    """
    text = request.config.text_config
    between = Space(text.project_dim, Orthogonal(scaled=True), part="ffn")
    head = {name: "joint proj'" for name in TEXT_PROJECTION}
    spec = _beside_pictures(request, _projected(request, text, TEXT, head, between))
    return replace(spec, aliases={**spec.aliases, f"{VISION}encoder.layer.": f"{VISION}encoder.layers."})


@declares("ChineseCLIP", "chinese_clip_text_model", "TextModel")
def chinese_clip_text(request: Request) -> Spec:
    """Chinese-CLIP's text tower, with the stream as output."""
    bare = replace(request, head="Model")
    return _text(bare, request.config, "", bare_pooler(bare, "pooler.dense"))


@declares("AltCLIP", "altclip_text_model", "TextModel")
def altclip_text(request: Request) -> Spec:
    """AltCLIP's text tower, with what it projects as output."""
    return _projected(request, request.config, "", {}, Space(request.config.project_dim, part="residual"))


@declares("ChineseCLIP", "chinese_clip_vision_model", "VisionModel")
@declares("AltCLIP", "altclip_vision_model", "VisionModel")
def clip_vision_alone(request: Request) -> Spec:
    """Their vision towers, which are CLIP's, with the stream as output."""
    return clip_tower(request, request.config, "", {"resid": Space(request.config.hidden_size, part="residual")}, {})
