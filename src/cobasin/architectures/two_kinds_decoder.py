"""Mixtures of experts whose layers with a window have heads of their own beside those without: MiMo-V2-Flash, Laguna.

They differ in how many heads there are, in how many coordinates pass a rotary embedding, and in sinks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from cobasin.architectures import Request, declares
from cobasin.architectures.corrected_router import CHOICE, CORRECTED, CORRECTION, mixture, plain_layers
from cobasin.architectures.parts import (
    NEURONS,
    PER_GROUP,
    Parts,
    groups,
    head_bases,
    layers_of_kinds,
    linear,
    require,
)
from cobasin.architectures.qk_norm_decoder import normed_basis, normed_projections
from cobasin.architectures.rmsnorm_decoder import MLP, OWN, head_width, projections, rmsnorm_decoder
from cobasin.symmetry.gauges import KeyBias, SoftmaxShift
from cobasin.symmetry.groups import Orthogonal
from cobasin.symmetry.spec import Space, Spec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

KINDS = {"full": "full_attention", "sliding": "sliding_attention"}
KEYS = ("sliding_window", "layer_types", "num_experts_per_tok")


def _rotated(config: PreTrainedConfig, kind: str, default: float = 1.0) -> int:
    """How many coordinates of a head are rotated in layers of a kind, in whole pairs: the first ones."""
    rope = config.rope_parameters[KINDS[kind]]
    require(rope["rope_type"] != "proportional", "rope_parameters of type proportional")
    rotated = int(head_width(config) * rope.get("partial_rotary_factor", default))
    require(rotated > 0, "rope_parameters that rotate nothing")
    return rotated + rotated % 2


def _named(kind: str, part: Parts) -> Parts:
    """A part under the names of its kind: of its spaces, and of the layers that have its tensors."""
    kept = ("layer", "resid")

    def named(text: str) -> str:
        return re.sub(r"[A-Za-z_]\w*", lambda found: found[0] if found[0] in kept else f"{kind}_{found[0]}", text)

    spaces = {named(name): replace(space, over=tuple(map(named, space.over))) for name, space in part[0].items()}
    return spaces, {name.replace("{layer}", f"{{{kind}_layer}}"): named(type_) for name, type_ in part[1].items()}


def _decoder(
    request: Request, attention: Callable[[str], Parts], ffn: Parts, absent: tuple[str, ...], correction: str, **options
) -> Spec:
    """A decoder with this ``attention`` in the layers of a kind; ``correction`` is that of the choice of experts."""
    config, templates = request.config, dict[str, str]()
    spaces = layers_of_kinds(config.layer_types, **{f"{kind}_layer": layers for kind, layers in KINDS.items()})
    spaces = {name: space for name, space in spaces.items() if space.size} | ffn[0]
    for kind in KINDS:
        if f"{kind}_layer" in spaces:
            own, projected = _named(kind, attention(kind))
            spaces |= own
            templates |= projected
    options["biases"] = (SoftmaxShift(correction), *options.get("biases", ()))
    spec = rmsnorm_decoder(request, spaces, templates, ffn[1] | {correction: "expert"}, absent=absent, **options)
    unused = ("kv", "rep", "vo")  # every kind has its own
    return replace(spec, spaces={name: space for name, space in spec.spaces.items() if name not in unused})


@declares("MiMoV2Flash", "mimo_v2_flash", "Model", "ForCausalLM")
def mimo_v2_flash(request: Request) -> Spec:
    """MiMo-V2-Flash: where a window slides twice as many KV groups, and a sink for every head.

    Elsewhere the softmax cancels key biases of what is not rotated.
    """
    config, biased, width = request.config, request.config.attention_bias, head_width(request.config)
    sinks = "sinks" if request.has("self_attn.sinks") else "attention_sink_bias"
    kinds: dict[str, int] = {}
    for kind, name in KINDS.items():
        rope = config.rope_parameters[name]
        kinds[kind] = _rotated(config, kind, 0.334 if rope["rope_type"] == "default" else 1.0)

    def attention(kind: str) -> Parts:
        slides = kind == "sliding"
        spaces, query, key = head_bases(width, PER_GROUP, kinds[kind])
        spaces |= groups(config.num_attention_heads, config.num_key_value_heads * (1 + slides))
        spaces["vo"] = Space(config.v_head_dim, Orthogonal(scaled=True), PER_GROUP, part="attention")
        templates = projections(biased, key=f"(kv {key})", query=f"(kv rep {query})")
        return spaces, templates | ({f"{OWN}.{sinks}": "(kv rep)"} if slides else {})

    own, mlp, absent = mixture(request, plain_layers(config), config.n_routed_experts, 0)
    if config.topk_group < config.n_group:
        own["expert"] = Space(config.n_routed_experts)
    free = biased and kinds["full"] < width and KINDS["full"] in config.layer_types
    biases = (KeyBias("layers.{full_layer}.self_attn.k_proj.bias", block=1),) if free else ()
    keys = (*KEYS, *CHOICE, "routed_scaling_factor", "attention_value_scale")
    spec = _decoder(request, attention, (own, mlp), absent, f"{MLP}.{CORRECTED}", biases=biases, keys=keys)
    return replace(spec, further=(r"mtp\..*",))


@declares("Laguna", "laguna", "Model", "ForCausalLM")
def laguna(request: Request) -> Spec:
    """Laguna: the norms on queries and keys of Qwen3, and a gate for every head, or for every coordinate of it.

    The latter leaves values signed orders with scales.
    """
    config, biased, width = request.config, request.config.attention_bias, head_width(request.config)
    whole = config.gating in (True, "per-head")
    layers = list(zip(config.layer_types, config.num_attention_heads_per_layer, strict=True))
    heads = dict(layers)
    require(all(heads[kind] == n for kind, n in layers), "num_attention_heads_per_layer that differs in a kind")

    def attention(kind: str) -> Parts:
        rotated, group = _rotated(config, kind), Orthogonal(scaled=True) if whole else NEURONS
        spaces = normed_basis(width, True, rotated) | groups(heads[KINDS[kind]], config.num_key_value_heads)
        spaces["vo"] = Space(width, group, PER_GROUP, part="attention")
        gate = linear(f"{OWN}.g_proj", "(kv rep)" if whole else "(kv rep vo~)", "resid", bias=False)
        return spaces, normed_projections(biased, True, partly=rotated < width) | gate

    fused = request.has("experts.gate_up_proj")
    beside, place = ("shared_experts", "gate") if fused else ("shared_expert", "experts")
    own, mlp, absent = mixture(request, plain_layers(config), config.num_experts, 1, beside=beside)
    own["shared"] = replace(own["shared"], size=config.shared_expert_intermediate_size)
    keys = (*KEYS, "moe_routed_scaling_factor", "moe_router_logit_softcapping")
    return _decoder(request, attention, (own, mlp), absent, f"{MLP}.{place}.{CORRECTION}", keys=keys)
