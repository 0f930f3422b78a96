"""Two towers of any type that meet in a joint space, as in CLIP, each behind the pooler of its first token."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cobasin.architectures import Declaration, Request, declares
from cobasin.architectures.composite import POOLER, headless, part, placed, read_by
from cobasin.architectures.encoder import bert, roberta
from cobasin.architectures.joining import joined
from cobasin.architectures.multimodal import TEXT, TEXT_PROJECTION, VISION, VISION_PROJECTION, clip_tower
from cobasin.architectures.parts import linear, neurons, require
from cobasin.architectures.vision import deit, vit
from cobasin.symmetry.groups import Orthogonal, Permutation
from cobasin.symmetry.spec import Space, Spec

TEXTS: dict[str, Declaration] = {"bert": bert, **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), roberta)}
PICTURES: dict[str, Declaration] = {"vit": vit, "deit": deit}
CLIP = "clip_vision_model"


def _meeting(spec: Spec, projection: Iterable[str], type_: str, **spaces: Space) -> Spec:
    """A tower with its projection to the joint space."""
    templates = {**spec.templates, **dict.fromkeys(projection, type_)}
    return replace(spec, spaces={**spec.spaces, **spaces}, templates=templates)


def _text(request: Request, joint: Space) -> Spec:
    """A tower of texts, with the pooler that a score of choices has."""
    own = part(request, "text_config", TEXT, TEXTS)
    spec = placed(headless(TEXTS[own.config.model_type](replace(own, head="ForMultipleChoice"))), TEXT)
    return _meeting(spec, TEXT_PROJECTION, "joint pool", joint=joint)


def _vision(request: Request, joint: Space) -> Spec:
    """A tower of pictures, whose pooler reads its last norm; CLIP's has none, and shows that norm."""
    own = part(request, "vision_config", VISION, (*PICTURES, CLIP))
    config = own.config
    if config.model_type == CLIP:
        spaces = {"resid": Space(config.hidden_size, Permutation(), part="residual"), "joint": joint}
        return clip_tower(own, config, VISION, spaces, VISION_PROJECTION)
    pool = Space(config.pooler_output_size, neurons(config.pooler_act), part="ffn")
    require(pool.size == config.hidden_size, "vision_config.pooler_output_size other than hidden_size")
    pooler = linear(f"{VISION}{POOLER}", "pool", "resid")
    spec = placed(headless(PICTURES[config.model_type](replace(own, head="ForImageClassification"))), VISION)
    spec = read_by(spec, VISION, (f"{VISION}{POOLER}.weight",))
    spec = replace(spec, templates={**spec.templates, **pooler})
    return _meeting(spec, VISION_PROJECTION, "joint pool'", joint=joint, pool=pool)


@declares("VisionTextDualEncoder", "vision-text-dual-encoder", "Model")
def vision_text_dual_encoder(request: Request) -> Spec:
    """A tower of texts and one of pictures, of which only the cosines are read in the end."""
    joint = Space(request.config.projection_dim, Orthogonal(), part="residual")
    spec = joined(_text(request, joint), _vision(request, joint), {"logit_scale": "scalar"})
    return replace(spec, aliases={f"{VISION}{VISION}": VISION})  # older files with CLIP's tower have it twice
