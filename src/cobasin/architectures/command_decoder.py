"""Cohere's decoders, Command and Aya: attention and a gated FFN in parallel, behind a LayerNorm without an offset.

The FFN may be of experts, and the norm an RMSNorm then.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from cobasin.architectures import Request, declares
from cobasin.architectures import interleaved_decoder as interleaved
from cobasin.architectures.layernorm_decoder import Templates
from cobasin.architectures.moe import dense_layers, experts, moe_spaces
from cobasin.architectures.no_rope_decoder import somewhere_rotary
from cobasin.architectures.parallel_decoder import grouped_decoder
from cobasin.architectures.parts import LAYER, NEURONS, PER_GROUP, head_bases, require
from cobasin.architectures.rmsnorm_decoder import MLP, OWN, PRE_NORMS, gated, head_width, projections, rmsnorm_decoder
from cobasin.symmetry.gauges import FreeGauge, SoftmaxShift
from cobasin.symmetry.groups import Diagonal
from cobasin.symmetry.spec import Space, Spec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


WINDOWS = ("sliding_window", "layer_types")
ROUTED = (
    "num_experts_per_tok",
    "expert_selection_fn",
    "norm_topk_prob",
    "shared_expert_combination_strategy",
    "prefix_dense_sliding_window_pattern",
)


def _command(
    request: Request,
    spaces: dict[str, Space],
    attention: Templates,
    biases: tuple[FreeGauge, ...] = (),
    keys: tuple[str, ...] = (),
    mlp: Templates | None = None,
) -> Spec:
    keys, mlp = ("layer_norm_eps", "logit_scale", *keys), gated() if mlp is None else mlp
    return grouped_decoder(request, spaces, attention, mlp, biases, keys, parallel=True, offsets=False)


@declares("Cohere", "cohere", "Model", "ForCausalLM")
def cohere(request: Request) -> Spec:
    """Command R and R+, Aya: with a LayerNorm over queries and keys, whose gains every head has for itself, or none.

    Then gains of queries and keys share scales. Left out: quarter turns of a rotary pair, and the mean over a head,
    which the norm ignores.
    """
    config, width = request.config, head_width(request.config)
    spaces, query, key = head_bases(width, PER_GROUP, width, "freq pair")
    gains: Templates = {}
    if config.use_qk_norm:
        scales = Diagonal(signed=True, scaled=True)
        spaces |= {"pair": Space(2), "freq": Space(width // 2, scales, PER_GROUP, part="attention")}
        gains = {f"{OWN}.q_norm.weight": "(kv rep) (freq pair)", f"{OWN}.k_norm.weight": "kv (freq' pair)"}
        query = key = "(freq~ pair)"
    biased = config.attention_bias
    attention = projections(biased, biased, f"(kv {key})", f"(kv rep {query})")
    return _command(request, spaces, attention | gains)


@declares("Cohere2", "cohere2", "Model", "ForCausalLM")
def cohere2(request: Request) -> Spec:
    """Command R7B and A: a rotary embedding in the layers whose window slides."""
    return _command(request, *_sliding(request.config), keys=WINDOWS)


def _sliding(
    config: PreTrainedConfig, also: Collection[int] = ()
) -> tuple[dict[str, Space], Templates, tuple[FreeGauge, ...]]:
    """Spaces, templates and free biases of attention that is rotary where a window slides, and in layers ``also``."""
    turned = [kind == "sliding_attention" or i in also for i, kind in enumerate(config.layer_types)]
    return somewhere_rotary(config, turned, interleaved.QUERY, interleaved.KEY)


@declares("Cohere2Moe", "cohere2_moe", "Model", "ForCausalLM")
def cohere2_moe(request: Request) -> Spec:
    """Command with experts behind its first layers: of LayerNorms, or of RMSNorms."""
    config, keys = request.config, (*WINDOWS, *ROUTED)
    dense = [i for i, kind in enumerate(config.mlp_layer_types) if kind == "dense"]
    require(len(dense) < config.num_hidden_layers, "mlp_layer_types that leaves no layer with experts")
    own, plain, absent = dense_layers(config, dense, width=config.prefix_dense_intermediate_size)
    mlp = experts(request) | plain
    spaces, attention, biases = _sliding(config, dense if config.prefix_dense_sliding_window_pattern == 1 else ())
    if config.num_shared_experts:
        own["shared"] = Space(config.num_shared_experts * config.intermediate_size, NEURONS, LAYER, part="ffn")
        mlp |= gated(f"{MLP}.shared_experts", "shared")
    if config.expert_selection_fn == "softmax":
        biases += (SoftmaxShift(f"{MLP}.gate.weight"),)
    spaces |= moe_spaces(config.num_experts, config.intermediate_size) | own
    if config.rms_norm_eps is None:
        spec = _command(request, spaces, attention, biases, (*keys, "rms_norm_eps"), mlp)
        return replace(spec, absent=absent)
    keys, before = (*keys, "logit_scale"), PRE_NORMS[:1]
    return rmsnorm_decoder(request, spaces, attention | mlp, {}, before, biases=biases, absent=absent, keys=keys)
