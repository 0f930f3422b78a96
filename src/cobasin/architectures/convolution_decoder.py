"""Decoders in most of whose layers a short convolution stands in place of attention: LFM2, with experts, too.

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
from cobasin.architectures.qk_norm_decoder import normed_basis, normed_projections
from cobasin.architectures.rmsnorm_decoder import OWN, head_width, rmsnorm_decoder
from cobasin.symmetry.gauges import FreeGauge, SoftmaxShift
from cobasin.symmetry.spec import Space, Spec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

CONV = "layers.{conv_layer}.conv"
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


def _decoder(
    request: Request,
    ffn: dict[str, Space],
    mlp: dict[str, str],
    biases: tuple[FreeGauge, ...] = (),
    absent: tuple[str, ...] = (),
    keys: tuple[str, ...] = (),
) -> Spec:
    """An LFM2 with these spaces and templates of its FFNs."""
    config = request.config
    require(config.layer_types is not None, "layer_types = null")
    spaces, mixers = convolution(config.hidden_size, config.conv_L_cache, config.conv_bias)
    spaces |= normed_basis(head_width(config), shared=True) | ffn
    spaces |= layers_of_kinds([kind == "conv" for kind in config.layer_types], conv_layer=True, attention_layer=False)
    for name, type_ in normed_projections(False, shared=True).items():
        part = name.removeprefix(f"{OWN}.").removesuffix(".weight")
        mixers[f"layers.{{attention_layer}}.self_attn.{NAMES.get(part, part)}.weight"] = type_
    keys, norms = ("norm_eps", *keys), ("operator_norm", "ffn_norm")
    spec = rmsnorm_decoder(
        request, spaces, mixers, mlp, norms, biases=biases, absent=absent, keys=keys, last="embedding_norm"
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
    return _decoder(request, {"ffn": Space(_neurons(request.config), NEURONS, LAYER, part="ffn")}, _gated("ffn"))


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
    return _decoder(request, spaces, mlp | _gated("dense"), biases, absent, keys)
