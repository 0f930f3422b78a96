"""BLIP, which writes about a picture: a BERT that looks back, and at what a vision transformer makes of the picture."""

from __future__ import annotations

import copy
from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.encoder import bert_masked_lm, bert_spec
from cobasin.architectures.encoder_decoder import heads, multi_head
from cobasin.architectures.joining import joined, relabelled, without_keys
from cobasin.architectures.parts import layer_norm, linear, require, tie_keys
from cobasin.architectures.vision import (
    FUNCTION_KEYS,
    PICTURE_KEYS,
    Names,
    free_stream,
    norm_before,
    pictures,
    pre_norm,
    require_squares,
)
from cobasin.symmetry.gauges import KeyBias, ValueBias
from cobasin.symmetry.spec import Spec

LAST = "vision_model.post_layernorm"
QKV = "self_attn.qkv"
TOWER = Names(
    "vision_model.encoder.layers.{layer}",
    QKV,
    QKV,
    QKV,
    "self_attn.projection",
    "layer_norm1",
    "layer_norm2",
    "mlp.fc1",
    "mlp.fc2",
)
CROSS = "text_decoder.bert.encoder.layer.{layer}.crossattention"
PROJECTIONS = ("self.query", "self.key", "self.value", "output.dense")


def _tower(request: Request) -> Spec:
    """The vision tower, without what reads its last norm."""
    config = request.config.vision_config
    require_squares(config, "vision_config.")
    embeddings = {"class_embedding": "1 1 resid", "position_embedding": "1 pos resid"}
    embeddings |= linear("patch_embedding", "resid", "channel down right")
    return pre_norm(
        request.architecture,
        config,
        TOWER,
        {**pictures(config, tokens=1), "resid": free_stream(config.hidden_size)},
        {f"vision_model.embeddings.{name}": type_ for name, type_ in embeddings.items()},
        LAST,
        {},
        function_keys=(*FUNCTION_KEYS, *PICTURE_KEYS),
    )


def _decoder(request: Request) -> Spec:
    """The BERT, without types of segments, and with cross-attention behind the attention of each layer."""
    config = copy.copy(request.config.text_config)
    require(config.is_decoder, "text_config.is_decoder = false")
    config.tie_word_embeddings |= request.config.tie_word_embeddings  # either ties
    alone = replace(request, config=config)
    spec = without_keys(bert_spec(alone, *bert_masked_lm(alone), ""), "position_embedding_type", "is_decoder")
    spec = relabelled(spec, name=lambda name: f"text_decoder.{'' if name.startswith('cls.') else 'bert.'}{name}")
    templates = {name: type_ for name, type_ in spec.templates.items() if "token_type" not in name}
    count = config.num_attention_heads
    output = f"{CROSS}.output.dense"
    return replace(
        spec,
        spaces={**spec.spaces, **heads("cross_", count, config.hidden_size // count, "layer")},
        templates=templates
        | multi_head(CROSS, "cross_", "resid", "vision_resid", PROJECTIONS)
        | layer_norm(f"{CROSS}.output.LayerNorm"),
        biases=(
            *spec.biases,
            KeyBias(f"{CROSS}.self.key.bias"),
            ValueBias(f"{CROSS}.self.value.bias", f"{output}.weight", f"{output}.bias"),
        ),
        buffers=(r"text_decoder\.bert\.embeddings\.position_ids",),
    )


@declares("Blip", "blip", "ForConditionalGeneration")
def blip(request: Request) -> Spec:
    """BLIP for captions. Keys and values of all cross-attentions read the tower's last norm."""
    spec = joined(_decoder(request), _tower(request), {})
    readers = [f"{CROSS}.{name}.weight" for name in PROJECTIONS[1:3]]
    keys = (*spec.function_keys, *tie_keys(spec.tied))
    return replace(spec, norms=(*spec.norms, norm_before(readers, LAST, "vision_resid")), function_keys=keys)
