"""Phi-3.5-MoE: a decoder with LayerNorms and experts, whose router compares sizes of scores.

So a shift of all its scores is another function.
"""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures.moe import NUMBERED, SPARSE, experts, moe_spaces
from cobasin.architectures.parallel_decoder import grouped_decoder
from cobasin.architectures.parts import PER_GROUP, groups, head_bases, rope_keys
from cobasin.architectures.rmsnorm_decoder import head_width, projections
from cobasin.symmetry.spec import Spec


@declares("Phimoe", "phimoe", "Model", "ForCausalLM", "ForSequenceClassification")
def phimoe(request: Request) -> Spec:
    """Phi-3.5-MoE. Its router takes two experts, whatever the config says."""
    config = request.config
    biased, width = config.attention_bias, head_width(config)
    bases, _, _ = head_bases(width, PER_GROUP, width)
    spaces = bases | groups(config.num_attention_heads, config.num_key_value_heads)
    spaces |= moe_spaces(config.num_local_experts, config.intermediate_size)
    router = "router" if request.has("experts.gate_up_proj") else "gate"
    attention, mlp = projections(biased, biased), experts(request, SPARSE, NUMBERED, router)
    keys = ("num_attention_heads", "num_key_value_heads", "hidden_act", "rms_norm_eps", "router_jitter_noise")
    keys += ("sliding_window", *rope_keys(config))
    return grouped_decoder(request, spaces, attention, mlp, (), keys, biased_head=config.lm_head_bias)
