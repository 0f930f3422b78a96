"""Phi-3.5-MoE: a decoder with LayerNorms and experts, whose router compares sizes of scores.

So a shift of all its scores is another function.
"""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures.layernorm_decoder import layer_norm_decoder, layers_of
from cobasin.architectures.moe import NUMBERED, SPARSE, experts, moe_spaces
from cobasin.architectures.parallel_decoder import PROJECTIONS
from cobasin.architectures.parts import PER_GROUP, groups, head_bases, output_head, rope_keys
from cobasin.architectures.rmsnorm_decoder import VALUE_BIAS, head_width, projections
from cobasin.symmetry.spec import Spec


@declares("Phimoe", "phimoe", "Model", "ForCausalLM", "ForSequenceClassification")
def phimoe(request: Request) -> Spec:
    """Phi-3.5-MoE. Its router takes two experts, whatever the config says."""
    config = request.config
    biased, width = config.attention_bias, head_width(config)
    bases, _, _ = head_bases(width, PER_GROUP, width)
    head, ties = output_head(request, "embed_tokens.weight", biased=config.lm_head_bias)
    router = "router" if request.has("experts.gate_up_proj") else "gate"
    mlp = experts(request, SPARSE, NUMBERED, router)
    reads = tuple(name.removesuffix(".weight") for name, type_ in mlp.items() if type_.endswith(" resid"))
    return layer_norm_decoder(
        request,
        (head, ties),
        {
            **bases,
            **groups(config.num_attention_heads, config.num_key_value_heads),
            **moe_spaces(config.num_local_experts, config.intermediate_size),
        },
        {"embed_tokens.weight": "vocab resid", **projections(biased, biased), **mlp},
        {
            "layers.{layer}.input_layernorm": PROJECTIONS,
            "layers.{layer}.post_attention_layernorm": reads,
            "norm": layers_of(head),
        },
        (VALUE_BIAS,) if biased else (),
        (
            *("num_attention_heads", "num_key_value_heads", "hidden_act", "rms_norm_eps", "router_jitter_noise"),
            *("sliding_window", *rope_keys(config)),
        ),
        "model.",
    )
