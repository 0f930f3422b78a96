"""Decoders of which some layers have no rotary embedding: SmolLM3, Granite with windows, Llama 4 with experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cobasin.architectures import Request, declares
from cobasin.architectures import interleaved_decoder as interleaved
from cobasin.architectures.moe import granite_ffn, moe_spaces, read_by
from cobasin.architectures.parts import LAYER, NEURONS, PER_GROUP, head_bases, layers_of_kinds
from cobasin.architectures.rmsnorm_decoder import (
    ANSWERING,
    GRANITE_KEYS,
    KEY,
    OWN,
    QUERY,
    gated,
    head_width,
    queries_keys,
    rmsnorm_decoder,
    values_output,
)
from cobasin.symmetry.gauges import FreeGauge, KeyBias, SoftmaxShift
from cobasin.symmetry.groups import Rotation2
from cobasin.symmetry.spec import Space, Spec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

MIXED, DENSE = "layers.{mixed_layer}.feed_forward", "layers.{dense_layer}.feed_forward"
KEYS = (
    "num_experts_per_tok",
    "no_rope_layers",
    "use_qk_norm",
    "layer_types",
    "attention_chunk_size",
    "attn_temperature_tuning",
    "floor_scale",
    "attn_scale",
)


def somewhere_rotary(
    config: PreTrainedConfig, turned: Sequence[bool], query: str, key: str
) -> tuple[dict[str, Space], dict[str, str], tuple[FreeGauge, ...]]:
    """Spaces, templates and free biases of attention that is rotary in the layers where ``turned`` says so.

    ``query`` and ``key`` are types there. In the other layers Q-K has a whole basis, and the softmax cancels key
    biases.
    """
    biased, width = config.attention_bias, head_width(config)
    spaces = head_bases(width, PER_GROUP, width)[0] | head_bases(width, PER_GROUP)[0]
    spaces |= layers_of_kinds(turned, turned_layer=True, still_layer=False)
    turned_own, still_own = "layers.{turned_layer}.self_attn", "layers.{still_layer}.self_attn"
    templates = {
        **values_output(biased, biased),
        **queries_keys(query, key, biased, turned_own),
        **queries_keys("(kv rep qk)", "(kv qk')", biased, still_own),
    }
    return spaces, templates, (KeyBias(f"{still_own}.k_proj.bias"),) if biased else ()


def _turned(config: PreTrainedConfig) -> list[bool]:
    return [bool(turns) for turns in config.no_rope_layers[: config.num_hidden_layers]]  # it may say it of more


@declares("SmolLM3", "smollm3", *ANSWERING)
def smollm3(request: Request) -> Spec:
    """SmolLM3."""
    spaces, attention, biases = somewhere_rotary(request.config, _turned(request.config), QUERY, KEY)
    keys = ("sliding_window", "layer_types", "use_sliding_window", "no_rope_layers")
    mlp = gated(bias=request.config.mlp_bias)
    return rmsnorm_decoder(request, spaces, attention, mlp, biases=biases, keys=keys)


@declares("GraniteSWA", "granite_swa", "Model", "ForCausalLM")
@declares("GraniteMoeSWA", "granitemoe_swa", "Model", "ForCausalLM")
def granite_swa(request: Request) -> Spec:
    """Granite with windows, with experts or without: every layer has its rotary embedding, or none.

    Every head has a sink, which takes no part in what the scores of all tokens have in common.
    """
    config, mixed = request.config, request.config.model_type == "granitemoe_swa"
    turned = [theta != 0 for theta in config.layer_rope_theta[: config.num_hidden_layers]]
    spaces, attention, _ = somewhere_rotary(config, turned, QUERY, KEY)
    ffn, mlp = granite_ffn(request) if mixed else ({}, gated(bias=config.mlp_bias))
    keys = (*GRANITE_KEYS, "sliding_window", "layer_types", "layer_rope_theta")
    return rmsnorm_decoder(
        request,
        spaces | ffn,
        attention | {f"{OWN}.sinks": "(kv rep)"},
        mlp,
        biases=tuple(SoftmaxShift(name) for name, type_ in mlp.items() if type_ == "expert resid"),
        keys=(*keys, "num_experts_per_tok") if mixed else keys,
    )


@declares("Llama4", "llama4_text", "ForCausalLM")
@declares("Llama4Text", "llama4_text", "Model")
def llama4(request: Request) -> Spec:
    """Llama 4 without its tower. Scores pass a sigmoid each, so that nothing is common to all of a router's rows.

    A norm without a gain may follow the rotary embedding: no scale then.
    """
    config = request.config
    spaces, attention, biases = somewhere_rotary(config, _turned(config), interleaved.QUERY, interleaved.KEY)
    spaces |= moe_spaces(config.num_local_experts, config.intermediate_size)
    spaces["pair"] = replace(spaces["pair"], group=Rotation2(scaled=not config.use_qk_norm))
    spaces["shared"] = Space(config.intermediate_size, NEURONS, LAYER, part="ffn")
    spaces["dense"] = Space(config.intermediate_size_mlp, NEURONS, LAYER, part="ffn")
    mixed = [i in config.moe_layers for i in range(config.num_hidden_layers)]
    spaces |= layers_of_kinds(mixed, mixed_layer=True, dense_layer=False)
    reading = {f"{MIXED}.router.weight": "expert resid", f"{MIXED}.experts.gate_up_proj": "expert resid (ffn~ + ffn)"}
    mlp = reading | {f"{MIXED}.experts.down_proj": "expert ffn' resid"}
    mlp |= gated(f"{MIXED}.shared_expert", "shared") | gated(DENSE, "dense")
    spec = rmsnorm_decoder(request, spaces, attention, mlp, biases=biases, keys=KEYS)
    # experts are stored transposed, so that the stream is not the last axis of what reads it
    return read_by(spec, *reading, *(name for name in mlp if name.endswith(("gate_proj.weight", "up_proj.weight"))))
