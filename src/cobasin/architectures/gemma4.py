"""Gemma 4's decoder: attention of two kinds, layers that read the keys of an earlier one, inputs for every layer.

Norms stand before and behind the branches, on queries and keys with gains, on values without one. In layers of full
attention heads have another width, most of whose coordinates no rotary embedding turns, and the keys, before their
norm, may be the values. What the last layers share with the one whose keys and values they read has one element.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cobasin.architectures import Request, declares
from cobasin.architectures.joining import without_keys
from cobasin.architectures.moe import moe_spaces
from cobasin.architectures.parts import LAYER, NEURONS, Parts, layers_of_kinds, linear
from cobasin.architectures.qk_norm_decoder import rotary_halves
from cobasin.architectures.rmsnorm_decoder import POST_NORMS, gated, rmsnorm_decoder
from cobasin.symmetry.gauges import LayerScale, Norm, SoftmaxShift
from cobasin.symmetry.groups import Orthogonal, Permutation, SignedPermutation
from cobasin.symmetry.spec import Space, Spec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

PER_LAYER = ("head_dim", "num_key_value_heads")
PRE_NORMS = ("input_layernorm", "pre_feedforward_layernorm")
ROUTER, EXPERTS = "layers.{layer}.router", "layers.{layer}.experts"
EXPERT_NORMS = (
    Norm(f"{ROUTER}.scale", (f"{ROUTER}.proj.weight",), centred=False),
    Norm("layers.{layer}.pre_feedforward_layernorm_2.weight", (f"{EXPERTS}.gate_up_proj",), centred=False),
)
EXPERT_SCALE = LayerScale(f"{ROUTER}.per_expert_scale", (f"{EXPERTS}.down_proj",), "expert")


def _kinds(config: PreTrainedConfig) -> dict[str, tuple[int, ...]]:
    """The layers of every kind of attention, those that share keys and values apart."""
    found: dict[str, tuple[int, ...]] = {}
    modes = getattr(config, "kv_sharing_modes", [None] * config.num_hidden_layers)
    for i, (attention, mode) in enumerate(zip(config.layer_types, modes, strict=True)):
        shares = mode is not None and "reuse" in modes  # Transformers 5.24 has layers store what no other reads
        kind = f"{'shared_' if shares else ''}{attention.removesuffix('_attention')}"
        found[kind] = (*found.get(kind, ()), i)
    return found


def attention_kinds(config: PreTrainedConfig) -> list[Parts]:
    """Spaces and templates of the attention of every kind of layers."""
    return [_attention(config, kind, layers) for kind, layers in _kinds(config).items()]


def reused(config: PreTrainedConfig) -> tuple[str, ...]:
    """Names that layers lack which read the keys and values of another one."""
    layers = "|".join(str(i) for i, mode in enumerate(config.kv_sharing_modes) if mode == "reuse")
    return (rf"layers\.({layers})\.self_attn\.(k_proj|v_proj|k_norm)\..*",) if layers else ()


def _attention(config: PreTrainedConfig, kind: str, layers: tuple[int, ...]) -> Parts:
    """Spaces and templates of the layers of a kind."""
    one, rope = config.per_layer_config[layers[0]], config.rope_parameters[config.layer_types[layers[0]]]
    width, heads, biased = one.head_dim, one.num_key_value_heads, config.attention_bias
    over = () if kind.startswith("shared_") else LAYER
    kv, rep, vo, own = f"{kind}_kv", f"{kind}_rep", f"{kind}_vo", f"layers.{{{kind}_layer}}.self_attn"
    bases, basis, gains, inverse = rotary_halves(kind, width, rope, over, kv)
    spaces = bases | {
        f"{kind}_layer": Space(len(layers), within="layer", values=layers),
        kv: Space(heads, Permutation(), over, part="heads"),
        rep: Space(config.num_attention_heads // heads, Permutation(), ("layer", kv), part="heads"),
    }
    values = basis
    templates = linear(f"{own}.q_proj", f"({kv} {rep} {basis})", "resid", biased)
    templates |= linear(f"{own}.k_proj", f"({kv} {basis})", "resid", biased)
    if not (getattr(config, "attention_k_eq_v", False) and kind.endswith("full")):
        values = vo
        spaces[vo] = Space(width, Orthogonal(), (*over, kv), part="attention")
        templates |= linear(f"{own}.v_proj", f"({kv} {vo})", "resid", biased)
    return spaces, templates | linear(f"{own}.o_proj", "resid", f"({kv} {rep} {values})", biased) | {
        f"{own}.q_norm.weight": gains,
        f"{own}.k_norm.weight": inverse,
    }


def _ffn(config: PreTrainedConfig) -> Parts:
    """The FFN, which may be of twice the width in layers that read the keys of another one."""
    wide = [config.use_double_wide_mlp and mode == "reuse" for mode in config.kv_sharing_modes]
    if not any(wide):
        return {}, gated()
    spaces = layers_of_kinds(wide, narrow_layer=False, wide_layer=True)
    spaces["wide_ffn"] = Space(2 * config.intermediate_size, NEURONS, LAYER, part="ffn")
    return spaces, gated("layers.{narrow_layer}.mlp") | gated("layers.{wide_layer}.mlp", "wide_ffn")


def layer_inputs(config: PreTrainedConfig) -> Parts:
    """Inputs for every layer, from a table and from the stream. Their norm's gain gives all layers one order."""
    if not config.hidden_size_per_layer_input:
        return {}, {}
    spaces = {
        "depth": Space(config.num_hidden_layers),
        "input_vocab": Space(config.vocab_size_per_layer_input),
        "input": Space(config.hidden_size_per_layer_input, SignedPermutation, part="ffn"),
    }
    return spaces, {
        "embed_tokens_per_layer.weight": "input_vocab (depth input)",
        "per_layer_model_projection.weight": "(depth input) resid",
        "per_layer_projection_norm.weight": "input~",
        "layers.{layer}.per_layer_input_gate.weight": "input~ resid",
        "layers.{layer}.per_layer_projection.weight": "resid input",
        "layers.{layer}.post_per_layer_input_norm.weight": "resid~",
    }


def _experts(config: PreTrainedConfig) -> Parts:
    """Experts beside the FFN, which read the stream through norms of their own."""
    spaces = moe_spaces(config.num_experts, config.moe_intermediate_size)
    norms = ("pre_feedforward_layernorm_2", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2")
    return {"expert": spaces["expert"], "expert_ffn": spaces["ffn"]}, {
        f"{ROUTER}.proj.weight": "expert resid",
        f"{ROUTER}.scale": "resid~",
        f"{ROUTER}.per_expert_scale": "expert",
        f"{EXPERTS}.gate_up_proj": "expert (expert_ffn~ + expert_ffn) resid",
        f"{EXPERTS}.down_proj": "expert resid expert_ffn'",
        **{f"layers.{{layer}}.{norm}.weight": "resid~" for norm in norms},
    }


@declares("Gemma4", "gemma4_text", "ForCausalLM", per_layer=PER_LAYER)
@declares("Gemma4Text", "gemma4_text", "Model", per_layer=PER_LAYER)
@declares("Gemma4Unified", "gemma4_unified_text", "ForCausalLM", per_layer=PER_LAYER)
@declares("Gemma4UnifiedText", "gemma4_unified_text", "Model", per_layer=PER_LAYER)
def gemma4(request: Request) -> Spec:
    """Gemma 4 and Gemma 4 Unified without their towers; the latter has neither inputs for layers nor experts."""
    config = request.config
    unified = config.model_type == "gemma4_unified_text"
    mixed, bare = not unified and config.enable_moe_block, request.head == "Model"
    kinds, absent = attention_kinds(config), reused(config)
    attention = {name: type_ for _, templates in kinds for name, type_ in templates.items()}
    ffn, mlp = _ffn(config)
    others = [({}, {"layers.{layer}.layer_scalar": "1"})]
    others += [] if unified else [layer_inputs(config)]
    others += [_experts(config)] if mixed else []
    keys = ("layer_types", "sliding_window", "final_logit_softcapping", "use_bidirectional_attention")
    keys += ("num_kv_shared_layers", *(("top_k_experts",) if mixed else ()))
    first = replace(request, config=config.per_layer_config[0])  # of one width of head
    spec = rmsnorm_decoder(first, ffn, attention, mlp, PRE_NORMS, POST_NORMS, absent=absent, keys=keys)
    spec = without_keys(spec, *PER_LAYER)
    spaces = {name: space for name, space in spec.spaces.items() if name not in ("kv", "rep", "vo")}
    return replace(
        spec,
        spaces={**spaces, **{name: space for more, _ in (*kinds, *others) for name, space in more.items()}},
        templates={**spec.templates, **{name: type_ for _, templates in others for name, type_ in templates.items()}},
        norms=(*spec.norms, *(EXPERT_NORMS if mixed and not bare else ())),
        scales=(EXPERT_SCALE,) if mixed and not bare else (),
        biases=(SoftmaxShift(f"{ROUTER}.proj.weight"),) if mixed else (),
        buffers=spec.buffers if unified else (*spec.buffers, *absent),  # files of Google have them all the same
    )
