"""T5Gemma: an encoder and a decoder made of Gemma 2's layers, each with a stream of its own.

The decoder's layers look at the encoder's stream between their two other branches, without a rotary embedding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cobasin.architectures import Request, declares
from cobasin.architectures.joining import joined, relabelled, without_keys
from cobasin.architectures.parts import LAYER, labels, linear, require, tie_keys
from cobasin.architectures.rmsnorm_decoder import (
    GEMMA_KEYS,
    gated,
    head_width,
    projections,
    rmsnorm_decoder,
    rotary,
)
from cobasin.symmetry.gauges import Norm
from cobasin.symmetry.groups import Orthogonal, Permutation
from cobasin.symmetry.spec import Space, Spec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

HEADS = ("ForConditionalGeneration", "Model", "ForSequenceClassification", "ForTokenClassification")
PRE_NORMS = ("pre_self_attn_layernorm", "pre_feedforward_layernorm")
POST_NORMS = ("post_self_attn_layernorm", "post_feedforward_layernorm")
CROSS = "layers.{layer}.cross_attn"
PER_GROUP = ("layer", "cross_kv")
# classifiers shift what the encoder reads to the right for the decoder
TOKENS_READ = {
    "ForSequenceClassification": ("pad_token_id", "decoder.bos_token_id"),
    "ForTokenClassification": ("decoder.bos_token_id",),
}


def _stack(request: Request, config: PreTrainedConfig, head: tuple[dict[str, str], dict[str, str]]) -> Spec:
    """A stack of layers as in Gemma 2."""
    require(not config.attention_bias, "attention_bias")
    spec = stack(request, config, head, rotary(head_width(config)), projections(), config.is_decoder)
    # what tokens see where a caller does not say it
    return replace(spec, function_keys=(*spec.function_keys, "pad_token_id"))


def stack(
    request: Request,
    config: PreTrainedConfig,
    head: tuple[dict[str, str], dict[str, str]],
    spaces: dict[str, Space],
    attention: dict[str, str],
    causal: bool,
) -> Spec:
    """A stack of layers with this ``attention``, behind which ``head`` stands: its tensors and their ties."""
    spec = rmsnorm_decoder(
        replace(request, config=config),
        spaces,
        attention,
        gated(),
        PRE_NORMS,
        POST_NORMS,
        plus_one=True,
        keys=GEMMA_KEYS,
        own_head=head,
    )
    unread = (*tie_keys(spec.tied), *(() if causal else ("is_causal",)))
    return without_keys(replace(spec, buffers=()), *unread)


def _crossed(spec: Spec, config: PreTrainedConfig) -> Spec:
    """The decoder with what its layers read of the encoder's stream."""
    groups, width = config.num_key_value_heads, head_width(config)
    basis = Space(width, Orthogonal(scaled=True), PER_GROUP, part="attention")
    before, behind = (f"layers.{{layer}}.{place}_cross_attn_layernorm.weight" for place in ("pre", "post"))
    cross = {
        f"{CROSS}.q_proj.weight": "(cross_kv cross_rep cross_qk) resid",
        f"{CROSS}.k_proj.weight": "(cross_kv cross_qk') encoder_resid",
        f"{CROSS}.v_proj.weight": "(cross_kv cross_vo) encoder_resid",
        f"{CROSS}.o_proj.weight": "resid (cross_kv cross_rep cross_vo')",
    }
    return replace(
        spec,
        spaces={
            **spec.spaces,
            "cross_kv": Space(groups, Permutation(), LAYER, part="heads"),
            "cross_rep": Space(config.num_attention_heads // groups, Permutation(), PER_GROUP, part="heads"),
            "cross_qk": basis,
            "cross_vo": basis,
        },
        templates={**spec.templates, **cross, before: "resid~", behind: "resid~"},
        norms=(*spec.norms, *((Norm(before, (f"{CROSS}.q_proj.weight",), centred=False),) if spec.norms else ())),
        plus_one=(*spec.plus_one, before, behind),
    )


@declares("T5Gemma", "t5gemma", *HEADS)
def t5gemma(request: Request) -> Spec:
    """T5Gemma. A bare model shows both streams."""
    config, name = request.config, "lm_head.out_proj.weight"
    require(config.is_encoder_decoder, "is_encoder_decoder=false")
    head: dict[str, str] = {}
    if request.head == "ForConditionalGeneration":
        head = {name: "vocab resid"}
    elif request.head != "Model":
        head = linear("score.out_proj", "label", "resid")
    ties = {name: "embed_tokens.weight"} if name in head and config.tie_word_embeddings else {}
    decoder = _crossed(_stack(request, config.decoder, (head, ties)), config.decoder)
    encoder = _stack(request, config.encoder, ({}, {}))
    spec = joined(
        relabelled(decoder, name=lambda tensor: tensor if tensor in head else f"decoder.{tensor}"),
        relabelled(encoder, name=lambda tensor: f"encoder.{tensor}"),
        {},
        "encoder_",
        ("decoder", "encoder"),
    )
    read = tuple(f"decoder.{CROSS}.{part}_proj.weight" for part in "kv")
    last = Norm("encoder.norm.weight", read, centred=False, stream="encoder_resid")
    return replace(
        spec,
        spaces={**spec.spaces, "label": labels(config)},
        norms=(*spec.norms, *((last,) if spec.norms else ())),
        function_keys=(*spec.function_keys, *tie_keys(spec.tied), *TOKENS_READ.get(request.head, ())),
    )


@declares("T5Gemma", "t5gemma", "EncoderModel")
def t5gemma_encoder(request: Request) -> Spec:
    """T5Gemma's encoder alone."""
    require(not request.config.is_encoder_decoder, "is_encoder_decoder=true")
    stack = _stack(replace(request, head="Model"), request.config.encoder, ({}, {}))
    spec = relabelled(stack, name=lambda tensor: f"encoder.{tensor}")
    return replace(spec, function_keys=tuple(f"encoder.{key}" for key in spec.function_keys))
