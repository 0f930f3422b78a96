"""Delta nets whose queries, keys and values are tensors apart: OLMo Hybrid; what Kimi Linear shares with it.

As in `gated_delta`: behind projection and convolution, which have signs and scales between them, is a SiLU. Queries and
keys of a head have one order and, as they are tensors apart, signs and scales each. All heads share the gain on values.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cobasin.architectures import Request, declares
from cobasin.architectures.parts import LAYER, NEURONS, PER_GROUP, layers_of_kinds, linear, require
from cobasin.architectures.qk_norm_decoder import normed_basis
from cobasin.architectures.rmsnorm_decoder import branch_norm, gated, head_width, projections, rmsnorm_decoder
from cobasin.symmetry.gauges import FreeGauge, Norm, ValueBias
from cobasin.symmetry.groups import Diagonal, Permutation, SignedPermutation
from cobasin.symmetry.spec import Space, Spec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

FULL, DELTA = "layers.{full_layer}.self_attn", "layers.{delta_layer}.linear_attn"
KEY, VALUE = "delta_head key", "delta_head value"


def delta_spaces(heads: int, key: int, value: int, taps: int) -> dict[str, Space]:
    """Spaces of delta nets; ``key`` and ``value`` are the sizes of a head, ``taps`` that of the convolution."""
    scales, over = Diagonal(signed=True, scaled=True), (*LAYER, "delta_head")
    own = Space(1, scales, (*over, "key"), part="attention")
    return {
        "delta_head": Space(heads, Permutation(), LAYER, part="heads"),
        # an order of what has signs and scales of its own is found as that of heads is
        "key": Space(key, Permutation(), over, part="heads"),
        "query_scale": own,
        "key_scale": own,
        # the gain is one for all heads: their channels have orders of their own once what reads it has taken it over
        "value": Space(value, scales, over, part="attention", folded=NEURONS),
        "value_gain": Space(value),
        "tap": Space(taps),
    }


def convolved(own: str) -> dict[str, str]:
    """Templates of the projections and convolutions of queries, keys and values."""
    found: dict[str, str] = {}
    for name, channels in {"q": f"{KEY} query_scale", "k": f"{KEY} key_scale", "v": VALUE}.items():
        found[f"{own}.{name}_proj.weight"] = f"({channels}) resid"
        found[f"{own}.{name}_conv1d.weight"] = f"({channels}') 1 tap"
    return found


def gated_output(own: str) -> tuple[dict[str, str], Norm]:
    """Templates of the norm on values and of the output projection; the norm."""
    gain, output = f"{own}.o_norm.weight", f"{own}.o_proj.weight"
    norm = Norm(gain, (output,), centred=False, stream="value")
    return {gain: "value_gain", output: f"resid ({VALUE}~)"}, norm


def _delta_net(config: PreTrainedConfig) -> tuple[dict[str, Space], dict[str, str], Norm]:
    """Spaces, templates and the norm of OLMo's delta nets."""
    heads, width = config.linear_num_key_heads, config.linear_key_head_dim
    require(config.linear_num_value_heads == heads, "linear_num_value_heads other than linear_num_key_heads")
    output, norm = gated_output(DELTA)
    templates = {
        **{f"{DELTA}.{number}": "delta_head" for number in ("A_log", "dt_bias")},
        **linear(f"{DELTA}.a_proj", "delta_head", "resid", bias=False),
        **linear(f"{DELTA}.b_proj", "delta_head", "resid", bias=False),
        **convolved(DELTA),
        f"{DELTA}.g_proj.weight": f"({VALUE}~) resid",
        **output,
    }
    return delta_spaces(heads, width, config.linear_value_head_dim, config.linear_conv_kernel_dim), templates, norm


def _attention(config: PreTrainedConfig) -> tuple[dict[str, Space], dict[str, str], tuple[FreeGauge, ...]]:
    """Spaces, templates and free biases of attention with norms over all queries and all keys.

    Without a rotary embedding the coordinates of a group have an order.
    """
    width, biased = head_width(config), config.attention_bias
    spaces, basis, gain, divided = normed_basis(width, shared=False), "pair freq", "pair gain", "pair gain'"
    if (config.rope_parameters or {}).get("rope_theta") is None:
        spaces = {"nope": Space(width, SignedPermutation, PER_GROUP, part="attention")}
        basis, gain, divided = "nope", "nope~", "nope~"
    templates = projections(biased, biased, key=f"(kv {basis})", query=f"(kv rep {basis})", own=FULL)
    templates |= {f"{FULL}.q_norm.weight": f"(kv rep {gain})", f"{FULL}.k_norm.weight": f"(kv {divided})"}
    moved = (ValueBias(f"{FULL}.v_proj.bias", f"{FULL}.o_proj.weight", f"{FULL}.o_proj.bias"),) if biased else ()
    return spaces, templates, moved


def _layers(config: PreTrainedConfig) -> dict[str, Space]:
    return layers_of_kinds(config.layer_types, full_layer="full_attention", delta_layer="linear_attention")


@declares("OlmoHybrid", "olmo_hybrid", "Model", "ForCausalLM")
def olmo_hybrid(request: Request) -> Spec:
    """OLMo Hybrid: norms in front of delta nets and their FFNs, and behind attention and its FFNs.

    Files name the norms of some layers otherwise than Transformers does.
    """
    config = request.config
    (nets, delta, values), (bases, attention, biases) = _delta_net(config), _attention(config)
    rows = config.linear_num_key_heads * config.linear_key_head_dim
    stored = request.shape("linear_attn.q_conv1d.weight") or (rows,)
    require(stored[0] == rows, f"a q_conv1d of {stored[0]} rows for {rows} queries, as Transformers cuts convolutions,")
    mlp = {kind: gated(f"layers.{{{kind}_layer}}.mlp") for kind in ("delta", "full")}
    first, second, third = "input_layernorm", "post_attention_layernorm", "post_feedforward_layernorm"
    spec = rmsnorm_decoder(
        request,
        bases | nets | _layers(config),
        attention | delta,
        mlp["delta"] | mlp["full"],
        pre_norms=(),
        post_norms=(second,),
        biases=biases,
        keys=("linear_allow_neg_eigval", "layer_types"),
    )
    before = [f"layers.{{delta_layer}}.{name}.weight" for name in (first, second)]
    behind = [f"layers.{{full_layer}}.{name}.weight" for name in (second, third)]
    templates = {name: type_ for name, type_ in spec.templates.items() if second not in name}
    folded = zip(before, (delta, mlp["delta"]), strict=True)
    norms = tuple(branch_norm(gain, branch) for gain, branch in folded) if request.head != "Model" else ()
    names = {"attention_layer_norm": first, "feedforward_layer_norm": second}
    layers = range(config.num_hidden_layers)
    return replace(
        spec,
        templates=templates | dict.fromkeys([*before, *behind], "resid~"),
        norms=(*spec.norms, *norms, values),
        aliases={f"layers.{i}.{old}.": f"layers.{i}.{new}." for i in layers for old, new in names.items()},
        further=(r"mtp\..*",),
    )
