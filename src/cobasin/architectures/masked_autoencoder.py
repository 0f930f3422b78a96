"""ViT-MAE with its decoder, as it is published: a second stack, whose stream begins with a map of the first one's."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING

from cobasin.architectures import Request, declares
from cobasin.architectures.joining import joined
from cobasin.architectures.parts import linear
from cobasin.architectures.vision import FUNCTION_KEYS, PICTURE_KEYS, VIT, free_stream, pictures, pre_norm
from cobasin.symmetry.spec import Space, Spec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

LAYERS = "decoder.decoder_layers.{layer}"
ALIASES = {"decoder.decoder_encoder.layer.": "decoder.decoder_layers."}  # what Transformers 5 writes
READER = "decoder.decoder_embed"


def of_decoder(config: PreTrainedConfig) -> PreTrainedConfig:
    """The config of the second stack."""
    small = copy.copy(config)
    for key in ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers"):
        setattr(small, key, getattr(config, f"decoder_{key}"))
    return small


@declares("ViTMAE", "vit_mae", "ForPreTraining")
def vit_mae(request: Request) -> Spec:
    """ViT-MAE: the encoder sees a part of the patches, the decoder makes the pixels of all."""
    config = request.config
    small = of_decoder(config)
    shown, biased, width = pictures(config, tokens=1), (config.qkv_bias,) * 3, getattr(config, "head_dim", None)
    encoder = pre_norm(
        request.architecture,
        config,
        VIT,
        {**shown, "resid": free_stream(config.hidden_size)},
        {
            "embeddings.cls_token": "1 1 resid",
            "embeddings.position_embeddings": "1 pos resid",
            **linear("embeddings.patch_embeddings.projection", "resid", "channel down right"),
        },
        "layernorm",
        linear(READER, "decoder_resid", "resid"),
        biased=biased,
        width=width,
        prefix="vit.",
        aliases=ALIASES,
    )
    decoder = pre_norm(
        request.architecture,
        small,
        VIT._replace(layer=LAYERS),
        {"pos": shown["pos"], "resid": free_stream(small.hidden_size), "pixel": _pixels(shown)},
        {"decoder.mask_token": "1 1 resid", "decoder.decoder_pos_embed": "1 pos resid"},
        "decoder.decoder_norm",
        linear("decoder.decoder_pred", "pixel", "resid"),
        biased=biased,
        width=width,
    )
    # what begins this stream takes over the offset of the encoder's last norm, whose mean it then has to keep
    decoder = replace(decoder, norms=tuple(replace(norm, keeps_mean=True) for norm in decoder.norms))
    keys = (*FUNCTION_KEYS, *PICTURE_KEYS, "mask_ratio", "decoder_num_attention_heads")
    return replace(joined(encoder, decoder, {}, "decoder_"), function_keys=keys)


def _pixels(shown: dict[str, Space]) -> Space:
    """The numbers of a patch."""
    return Space(shown["channel"].size * shown["down"].size * shown["right"].size)
