"""T5Gemma 2: Gemma 3's layers in an encoder, which may see pictures, and in a decoder that reads it by one attention.

The decoder's tokens look at each other and, through the same projections and without a rotary embedding, at what the
encoder puts out. So both sides have one stream, and no gain in front of these projections can go into them: those of
the decoder's layers and that of the encoder's last norm would have to change as one.
"""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.joining import joined, relabelled
from cobasin.architectures.multimodal import siglip_tower
from cobasin.architectures.parts import labels, linear, tie_keys
from cobasin.architectures.qk_norm_decoder import normed
from cobasin.architectures.t5gemma import HEADS, TOKENS_READ, stack
from cobasin.architectures.vision_language import PROJECTOR, VISION, vision_of
from cobasin.symmetry.gauges import Norm
from cobasin.symmetry.groups import Permutation
from cobasin.symmetry.spec import Space, Spec

ENCODER, HEAD = "encoder.", "lm_head.out_proj.weight"
WORDS, PICTURE_END = "embed_tokens.weight", "embed_tokens.eoi_embedding"
COMMON = {"encoder_resid": "resid", "encoder_vocab": "vocab"}  # of both sides
ALIASES = {f"{ENCODER}text_model.": ENCODER, f"{ENCODER}{VISION}vision_model.": f"{ENCODER}{VISION}"}


def _encoder(request: Request) -> Spec:
    """The encoder of texts, SigLIP's tower, and what lies between: as in Gemma 3 with pictures."""
    within = replace(request, config=request.config.encoder)
    tower, text = vision_of(within, "siglip_vision_model"), within.config.text_config
    weight, gain = (f"{ENCODER}{PROJECTOR}{name}" for name in ("mm_input_projection_weight", "mm_soft_emb_norm.weight"))
    spec = joined(
        relabelled(
            stack(request, text, ({}, {}), *normed(text), causal=False), name=lambda tensor: f"{ENCODER}{tensor}"
        ),
        siglip_tower(
            request,
            tower,
            f"{ENCODER}{VISION}",
            {"resid": Space(tower.hidden_size, Permutation(), part="residual")},
            {},
        ),
        {weight: "vision_resid resid", gain: "vision_resid", f"{ENCODER}{PICTURE_END}": "resid"},
    )
    return replace(
        spec,
        norms=(*spec.norms, Norm(gain, (weight,), centred=False, stream="vision_resid")),
        plus_one=(*spec.plus_one, gain),
        function_keys=(*spec.function_keys, "mm_tokens_per_image", "eoi_token_index"),
    )


@declares("T5Gemma2", "t5gemma2", *HEADS)
def t5gemma2(request: Request) -> Spec:
    """T5Gemma 2. Its decoder has the encoder's embeddings."""
    config = request.config
    head: dict[str, str] = {}
    if request.head == "ForConditionalGeneration":
        head = {HEAD: "vocab resid"}
    elif request.head != "Model":
        head = linear("score.out_proj", "label", "resid")
    tied = HEAD in head and config.tie_word_embeddings
    decoder = stack(
        request, config.decoder, (head, {HEAD: WORDS} if tied else {}), *normed(config.decoder), causal=True
    )
    both = joined(
        relabelled(decoder, name=lambda tensor: tensor if tensor in head else f"decoder.{tensor}"),
        _encoder(request),
        {f"decoder.{PICTURE_END}": "resid"},
        "encoder_",
        ("decoder", "encoder"),
    )
    spec = relabelled(both, space=lambda name: COMMON.get(name, name))
    shared = (
        {f"decoder.{name}": f"{ENCODER}{name}" for name in (WORDS, PICTURE_END)} if config.tie_word_embeddings else {}
    )
    ties = shared | ({HEAD: f"{ENCODER}{WORDS}"} if tied else {})
    return replace(
        spec,
        spaces={**spec.spaces, "label": labels(config)},
        aliases=ALIASES,
        tied=ties,
        norms=tuple(
            norm for norm in spec.norms if norm.weight != "decoder.layers.{layer}.pre_self_attn_layernorm.weight"
        ),
        function_keys=(
            *spec.function_keys,
            *tie_keys(ties),
            "image_token_index",
            *TOKENS_READ.get(request.head, ()),
        ),
    )
