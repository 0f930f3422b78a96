"""Decoders in most of whose layers a short convolution stands in place of attention: LFM2, with experts, too; LFM3.

Of three projections of the stream, one multiplies what the convolution reads, one what it puts out, channel by channel.
So channels have an order, and what is multiplied a sign and a scale, which the output projection takes back. Left out:
those of the two factors and of the kernel, as a channel has one sign and one scale here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cobasin.architectures import Request, declares
from cobasin.architectures.joining import without_keys
from cobasin.architectures.moe import NUMBERED, experts, moe_spaces
from cobasin.architectures.parts import LAYER, NEURONS, Parts, layers_of_kinds, linear, require
from cobasin.architectures.qk_norm_decoder import normed_basis, normed_projections, rotary_halves
from cobasin.architectures.rmsnorm_decoder import OWN, head_width, queries_keys, rmsnorm_decoder, values_output
from cobasin.symmetry.gauges import FreeGauge, SoftmaxShift
from cobasin.symmetry.spec import Space, Spec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

CONV, ATTENTION = "layers.{conv_layer}.conv", "layers.{attention_layer}.self_attn"
MLP = "layers.{layer}.feed_forward"
NAMES = {"o_proj": "out_proj", "q_norm": "q_layernorm", "k_norm": "k_layernorm"}


def convolution(channels: int, taps: int, bias: bool) -> Parts:
    """Spaces and templates of the short convolutions."""
    spaces = {"channel": Space(channels, NEURONS, LAYER, part="ffn"), "tap": Space(taps)}
    templates = {
        **linear(f"{CONV}.in_proj", "(channel~ + channel~ + channel)", "resid", bias),
        f"{CONV}.conv.weight": "channel~ 1 tap",
        **linear(f"{CONV}.out_proj", "resid", "channel'", bias),
    }
    if bias:
        templates[f"{CONV}.conv.bias"] = "channel"
    return spaces, templates


def _neurons(config: PreTrainedConfig) -> int:
    """How many neurons an FFN has."""
    size = config.intermediate_size
    if not config.block_auto_adjust_ff_dim:
        return size
    size = int(2 * size / 3)
    if config.block_ffn_dim_multiplier is None:
        return size
    return -int(config.block_ffn_dim_multiplier * size) // config.block_multiple_of * -config.block_multiple_of


def _normed(config: PreTrainedConfig) -> Parts:
    """Spaces and templates of LFM2's attention, whose norms and output have names of their own."""
    templates = {}
    for name, type_ in normed_projections(False, shared=True).items():
        part = name.removeprefix(f"{OWN}.").removesuffix(".weight")
        templates[f"{ATTENTION}.{NAMES.get(part, part)}.weight"] = type_
    return normed_basis(head_width(config), shared=True), templates


def _two_kinds(request: Request) -> Parts:
    """The same of LFM3, whose two kinds of attention have a rotary embedding each, and a gate a head, if any."""
    config = request.config
    templates = values_output(own=ATTENTION)
    spaces = layers_of_kinds(config.layer_types, full_layer="full_attention", sliding_layer="sliding_attention")
    for kind in ("full", "sliding"):
        if spaces[f"{kind}_layer"].size:
            rope, own = config.rope_parameters[f"{kind}_attention"], f"layers.{{{kind}_layer}}.self_attn"
            bases, basis, gain, divided = rotary_halves(kind, head_width(config), rope, LAYER)
            spaces |= bases
            templates |= queries_keys(f"(kv rep {basis})", f"(kv {basis})", own=own)
            templates |= {f"{own}.q_norm.weight": gain, f"{own}.k_norm.weight": divided}
    if config.use_attention_gate:
        gate = "g_proj" if request.has("self_attn.g_proj.weight") else "gate_proj"  # as in memory, or on the hub
        templates[f"{ATTENTION}.{gate}.weight"] = "(kv rep) resid"
    return spaces, templates


def _decoder(
    request: Request,
    attention: Parts,
    ffn: dict[str, Space],
    mlp: dict[str, str],
    biases: tuple[FreeGauge, ...] = (),
    absent: tuple[str, ...] = (),
    keys: tuple[str, ...] = (),
    post_norms: tuple[str, ...] = (),
) -> Spec:
    """An LFM2 with these spaces and templates of its attention and FFNs."""
    config = request.config
    require(config.layer_types is not None, "layer_types = null")
    spaces, mixers = convolution(config.hidden_size, config.conv_L_cache, config.conv_bias)
    spaces |= attention[0] | ffn
    spaces |= layers_of_kinds([kind == "conv" for kind in config.layer_types], conv_layer=True, attention_layer=False)
    mixers |= attention[1]
    keys, norms = ("norm_eps", *keys), ("operator_norm", "ffn_norm")
    spec = rmsnorm_decoder(
        request, spaces, mixers, mlp, norms, post_norms, biases=biases, absent=absent, keys=keys, last="embedding_norm"
    )
    return without_keys(spec, "hidden_act", "rms_norm_eps")  # which the config does not have


def _gated(neurons: str) -> dict[str, str]:
    """A gated FFN, whose up-projection is the third matrix."""
    return {
        f"{MLP}.w1.weight": f"{neurons}~ resid",
        f"{MLP}.w3.weight": f"{neurons} resid",
        f"{MLP}.w2.weight": f"resid {neurons}'",
    }


@declares("Lfm2", "lfm2", "Model", "ForCausalLM")
def lfm2(request: Request) -> Spec:
    """LFM2."""
    ffn = {"ffn": Space(_neurons(request.config), NEURONS, LAYER, part="ffn")}
    return _decoder(request, _normed(request.config), ffn, _gated("ffn"))


@declares("Lfm3", "lfm3", "Model", "ForCausalLM")
def lfm3(request: Request) -> Spec:
    """LFM3: with norms behind the branches, too, or without."""
    config = request.config
    require(not config.attention_bias, "attention_bias")
    norms = ("post_operator_norm", "post_ffn_norm") if config.use_sandwich_norm else ()
    keys = ("sliding_window", "layer_types")
    return _decoder(request, _two_kinds(request), {}, _gated("ffn"), keys=keys, post_norms=norms)


@declares("Lfm2Moe", "lfm2_moe", "Model", "ForCausalLM")
def lfm2_moe(request: Request) -> Spec:
    """LFM2 with experts behind its first layers: sigmoids, and any number may be added to their correction."""
    config, first = request.config, request.config.num_dense_layers
    require(first < config.num_hidden_layers, "num_dense_layers that leaves no layer with experts")
    spaces = moe_spaces(config.num_experts, config.moe_intermediate_size)
    mlp, biases = experts(request, MLP, NUMBERED, fused=MLP), ()
    if config.use_expert_bias:
        mlp[f"{MLP}.expert_bias"] = "expert"
        biases = (SoftmaxShift(f"{MLP}.expert_bias"),)
    keys = ("num_experts_per_tok", "norm_topk_prob", "routed_scaling_factor")
    dense = "|".join(map(str, range(first))) or "none"
    absent = (
        rf"layers\.({dense})\.feed_forward\.(gate|expert).*",
        rf"layers\.(?!({dense})\.)\d+\.feed_forward\.w\d\.weight",
    )
    spaces["dense"] = Space(config.intermediate_size, NEURONS, LAYER, part="ffn")
    return _decoder(request, _normed(config), spaces, mlp | _gated("dense"), biases, absent, keys)
