"""Mixtures of experts whose router has a correction, which counts for the choice of experts alone.

DeepSeek's, GLM-4.5, Solar Open, dots.llm1, K-EXAONE, ERNIE 4.5, MiniMax-M2, HunYuan 3, Trinity. The correction moves
with the order of experts, and any number may be added to all of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from cobasin.architectures import Request, declares
from cobasin.architectures.interleaved_decoder import KEY, QUERY
from cobasin.architectures.moe import NUMBERED, PROJECTIONS, SPARSE, dense_layers, experts, moe_spaces
from cobasin.architectures.parts import LAYER, NEURONS, PER_GROUP, Parts, output_head, require
from cobasin.architectures.qk_norm_decoder import (
    normed,
    normed_basis,
    normed_projections,
    somewhere_turned,
    turned_where_it_slides,
)
from cobasin.architectures.rmsnorm_decoder import (
    MLP,
    OWN,
    gated,
    head_width,
    partly_rotated,
    projections,
    rmsnorm_decoder,
    rotary,
    turned_attention,
)
from cobasin.symmetry.gauges import FreeGauge, SoftmaxShift
from cobasin.symmetry.spec import Space, Spec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

CORRECTION = "e_score_correction_bias"
ROUTER, CORRECTED = "gate.weight", f"gate.{CORRECTION}"  # of a router, what all experts may share
CHOICE = ("n_group", "topk_group", "norm_topk_prob")


def mixture(
    request: Request,
    dense: list[int],
    count: int,
    shared: int,
    bias: bool = False,
    router: str = "gate",
    beside: str = "shared_experts",
    names: tuple[str, str, str] = PROJECTIONS,
) -> tuple[dict[str, Space], dict[str, str], tuple[str, ...]]:
    """Spaces, templates and what is absent of ``count`` experts beside those, ``shared`` in number, of all tokens.

    The layers ``dense`` have a plain FFN; ``bias`` is that of the plain and the shared one, whose name is ``beside``.
    ``names`` are those of the matrices of an expert.
    """
    config = request.config
    plain, ffn, absent = dense_layers(config, dense, bias)
    spaces, mlp = (
        moe_spaces(count, config.moe_intermediate_size) | plain,
        experts(request, names=names, router=router) | ffn,
    )
    if shared:
        spaces["shared"] = Space(shared * config.moe_intermediate_size, NEURONS, LAYER, part="ffn")
        mlp |= gated(f"{MLP}.{beside}", "shared", bias)
    return spaces, mlp, absent


def plain_layers(config: PreTrainedConfig) -> list[int]:
    """The layers without experts, which a config says one by one, or how many of them come first, or has none."""
    layers = list(range(config.num_hidden_layers))
    key = next((key for key in ("mlp_layer_types", "first_k_dense_replace") if hasattr(config, key)), "")
    said = getattr(config, key, 0)
    plain = [i for i in layers if said[i : i + 1] != ["sparse"]] if isinstance(said, list) else layers[:said]
    require(len(plain) < len(layers), f"{key} that leaves no layer with experts")
    return plain


def deepseek_decoder(
    request: Request,
    spaces: Mapping[str, Space],
    attention: Mapping[str, str],
    shifted: str = CORRECTED,
    bias: bool = False,
    keys: tuple[str, ...] = CHOICE,
    limited: bool | None = None,
    biases: tuple[FreeGauge, ...] = (),
    counts: tuple[str, str] = ("n_routed_experts", "n_shared_experts"),
    names: tuple[str, str, str] = PROJECTIONS,
) -> Spec:
    """A decoder with DeepSeek's experts, besides the ``spaces``, templates and ``biases`` of its ``attention``.

    A shift of ``shifted``, the same for all experts, keeps the choice of its router. Where tokens are ``limited`` to
    some groups of experts, experts stay in their places: left out is the order of groups and of the experts in each, as
    no matching goes from there on to neurons. ``counts`` are the config keys of how many experts there are to choose
    from, and of how many all tokens share, ``names`` the matrices of an expert.
    """
    config = request.config
    dense = plain_layers(config)
    routed, shared = (getattr(config, count) for count in counts)
    require(bool(shared), f"{counts[1]} = 0")
    own, mlp, absent = mixture(request, dense, routed, shared, bias, names=names)
    if config.topk_group < config.n_group if limited is None else limited:
        own["expert"] = Space(routed)
    mlp.setdefault(f"{MLP}.{shifted}", "expert")
    biases += (SoftmaxShift(f"{MLP}.{shifted}"),)
    keys = ("num_experts_per_tok", "routed_scaling_factor", *keys)
    spec = rmsnorm_decoder(request, {**spaces, **own}, attention, mlp, biases=biases, absent=absent, keys=keys)
    further = sorted(set(re.findall(r"\blayers\.(\d+)\.eh_proj\.weight", " ".join(request.names))))
    return replace(spec, further=(r"mtp\..*", *(rf"layers\.{number}\..*" for number in further)))


def _normed(config: PreTrainedConfig, shared: bool, bias: bool = False) -> Parts:
    """Spaces and templates of attention with norms on queries and keys, of whose heads a part is rotated."""
    width, rotated = head_width(config), partly_rotated(config)
    attention = normed_projections(bias, shared, out_bias=False, partly=rotated < width)
    return normed_basis(width, shared, rotated), attention


@declares("Glm4Moe", "glm4_moe", "Model", "ForCausalLM")
def glm4_moe(request: Request) -> Spec:
    """GLM-4.5 and 4.6 and, without norms on queries and keys, 4.5-Air.

    The output projection has no bias, so the value bias is no gauge.
    """
    config = request.config
    biased = config.attention_bias
    if getattr(config, "use_qk_norm", False):  # with pictures never
        return deepseek_decoder(request, *_normed(config, True, biased))
    spaces, attention, biases = turned_attention(head_width(config), partly_rotated(config), biased)
    return deepseek_decoder(request, spaces, attention, biases=biases)


@declares("SolarOpen", "solar_open", "Model", "ForCausalLM")
def solar_open(request: Request) -> Spec:
    """Solar Open: experts in all layers, the attention of Llama. Without an output bias the value bias is no gauge."""
    config = request.config
    return deepseek_decoder(request, rotary(head_width(config)), projections(config.attention_bias))


@declares("Dots1", "dots1", "Model", "ForCausalLM")
def dots1(request: Request) -> Spec:
    """dots.llm1: the attention of Qwen3."""
    return deepseek_decoder(request, *normed(request.config), keys=(*CHOICE, "sliding_window", "layer_types"))


@declares("ExaoneMoe", "exaone_moe", "Model", "ForCausalLM")
def exaone_moe(request: Request) -> Spec:
    """K-EXAONE: the attention of EXAONE 4, behind norms in front of the branches."""
    keys = (*CHOICE, "sliding_window", "layer_types")
    correction = CORRECTION if request.has(f"mlp.{CORRECTION}") else CORRECTED
    counts = ("num_experts", "num_shared_experts")
    return deepseek_decoder(request, *turned_where_it_slides(request.config), correction, keys=keys, counts=counts)


@declares("Ernie4_5_Moe", "ernie4_5_moe", "Model", "ForCausalLM")
def ernie4_5_moe(request: Request) -> Spec:
    """ERNIE 4.5 with experts: a softmax over all, which cancels what the rows of the router share."""
    config, layers = request.config, range(request.config.num_hidden_layers)
    biased, first, last = bool(config.use_bias), config.moe_layer_start_index, config.moe_layer_end_index
    dense = [i for i in layers if (i + 1) % config.moe_layer_interval or not first <= i <= last]
    require(len(dense) < len(layers), "moe_layer_start_index that leaves no layer with experts")
    own, mlp, absent = mixture(request, dense, config.moe_num_experts, config.moe_num_shared_experts, biased)
    within = "gate.moe_statics" if request.has(f"gate.moe_statics.{CORRECTION}") else "moe_statics"
    correction = f"{MLP}.{within}.{CORRECTION}"
    mlp[correction] = "1 expert"
    spec = rmsnorm_decoder(
        request,
        rotary(head_width(config)) | own,
        projections(biased, biased, KEY, QUERY),
        mlp,
        biases=(SoftmaxShift(f"{MLP}.gate.weight"), SoftmaxShift(correction)),
        absent=absent,
        keys=("moe_k", "moe_norm_min"),
        own_head=output_head(request, "embed_tokens.weight", biased=biased),
    )
    return replace(spec, further=(r"mtp_.*",))


@declares("MiniMaxM2", "minimax_m2", "Model", "ForCausalLM")
def minimax_m2(request: Request) -> Spec:
    """MiniMax-M2: norms over all queries and all keys of a layer, with a gain for every coordinate of every head."""
    config = request.config
    basis, attention = _normed(config, shared=False)
    spaces = basis | moe_spaces(config.num_local_experts, config.intermediate_size)
    block = MLP if request.has("experts.gate_up_proj") else SPARSE
    mlp = experts(request, block, NUMBERED) | {f"{block}.{CORRECTION}": "expert"}
    biases = (SoftmaxShift(f"{block}.{CORRECTION}"),)
    return rmsnorm_decoder(request, spaces, attention, mlp, biases=biases, keys=("num_experts_per_tok",))


@declares("HYV3", "hy_v3", "Model", "ForCausalLM")
def hy_v3(request: Request) -> Spec:
    """HunYuan 3: the attention of Qwen3. Files on the hub name router, correction and shared experts otherwise."""
    config = request.config
    dense, shared = plain_layers(config), config.num_shared_experts
    require(bool(shared), "num_shared_experts = 0")
    names = ("gate", "shared_experts") if request.has("experts.gate_up_proj") else ("router.gate", "shared_mlp")
    own, mlp, absent = mixture(request, dense, config.num_experts, shared, config.mlp_bias, *names)
    basis, attention = normed(config)
    correction = f"{MLP}.{CORRECTION if request.has(CORRECTION) else 'expert_bias'}"
    mlp[correction] = "expert"
    spec = rmsnorm_decoder(
        request,
        basis | own,
        attention,
        mlp,
        biases=(SoftmaxShift(correction),),
        absent=absent,
        keys=("num_experts_per_tok", "router_scaling_factor"),
    )
    return replace(spec, further=(rf"layers\.{config.num_hidden_layers}\..*",))


@declares("Afmoe", "afmoe", "Model", "ForCausalLM")
def afmoe(request: Request) -> Spec:
    """Trinity: norms around the branches; layers with a rotary embedding have a window, the others none.

    A gate scales every coordinate of what a head puts out, so that values have signed orders with scales.
    """
    config, layers = request.config, range(request.config.num_hidden_layers)
    turned = [kind == "sliding_attention" for kind in config.layer_types]
    basis, attention = somewhere_turned(config, turned, config.attention_bias)
    basis["vo"] = Space(head_width(config), NEURONS, PER_GROUP, part="attention")
    attention[f"{OWN}.gate_proj.weight"] = "(kv rep vo~) resid"
    dense = list(layers)[: config.num_dense_layers]
    require(len(dense) < len(layers), "num_dense_layers that leaves no layer with experts")
    own, mlp, absent = mixture(request, dense, config.num_experts, config.num_shared_experts, router="router.gate")
    correction = f"{MLP}.expert_bias"
    mlp[correction] = "expert"
    return rmsnorm_decoder(
        request,
        basis | own,
        attention,
        mlp,
        pre_norms=("input_layernorm", "pre_mlp_layernorm"),
        post_norms=("post_attention_layernorm", "post_mlp_layernorm"),
        biases=(SoftmaxShift(correction),),
        absent=absent,
        keys=("num_experts_per_tok", "route_scale", "mup_enabled", "sliding_window", "layer_types"),
    )
