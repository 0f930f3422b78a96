"""Phi-3.5-MoE: a decoder with LayerNorms and experts, whose router compares sizes of scores.

So a shift of all its scores is another function.
"""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures.moe import NUMBERED, SPARSE, experts, moe_spaces
from cobasin.architectures.parallel_decoder import grouped_decoder
from cobasin.architectures.rmsnorm_decoder import rotary_attention
from cobasin.symmetry.spec import Spec


@declares("Phimoe", "phimoe", "Model", "ForCausalLM", "ForSequenceClassification")
def phimoe(request: Request) -> Spec:
    """Phi-3.5-MoE. Its router takes two experts, whatever the config says."""
    config = request.config
    basis, attention = rotary_attention(config)
    spaces = basis | moe_spaces(config.num_local_experts, config.intermediate_size)
    mlp = experts(request, SPARSE, NUMBERED, "router" if request.has("experts.gate_up_proj") else "gate")
    keys = ("rms_norm_eps", "router_jitter_noise", "sliding_window")
    return grouped_decoder(request, spaces, attention, mlp, keys=keys, biased_head=config.lm_head_bias)
