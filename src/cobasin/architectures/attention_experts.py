"""JetMoe: a mixture of experts in the FFN, and one in attention, whose experts share keys and values."""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.joining import without_keys
from cobasin.architectures.moe import moe_spaces
from cobasin.architectures.parts import LAYER
from cobasin.architectures.rmsnorm_decoder import MLP, head_width, rmsnorm_decoder, rotary
from cobasin.symmetry.gauges import SoftmaxShift
from cobasin.symmetry.groups import Permutation
from cobasin.symmetry.spec import Space, Spec

OWN = "layers.{layer}.self_attention"


@declares("JetMoe", "jetmoe", "Model", "ForCausalLM", "ForSequenceClassification")
def jetmoe(request: Request) -> Spec:
    """JetMoe: every token chooses some experts for its queries, which read one set of heads of keys and values."""
    config = request.config
    spaces = rotary(head_width(config)) | moe_spaces(config.num_local_experts, config.intermediate_size)
    spaces["query_expert"] = Space(config.num_local_experts, Permutation(), LAYER, part="experts")
    attention = {
        f"{OWN}.experts.router.layer.weight": "query_expert resid",
        f"{OWN}.experts.input_linear.weight": "query_expert (kv pair freq) resid",
        f"{OWN}.kv_proj.weight": "(kv pair' freq + kv vo) resid",
        f"{OWN}.experts.output_linear.weight": "query_expert resid (kv vo')",
        f"{OWN}.experts.bias": "resid",
    }
    mlp = {
        f"{MLP}.router.layer.weight": "expert resid",
        f"{MLP}.input_linear.weight": "expert (ffn~ + ffn) resid",
        f"{MLP}.output_linear.weight": "expert resid ffn'",
        f"{MLP}.bias": "resid",
    }
    routers = ((f"{OWN}.experts", "query_expert"), (MLP, "expert"))
    biases = tuple(SoftmaxShift(f"{block}.router.layer.weight", space) for block, space in routers)
    keys = ("kv_channels", "activation_function", "num_experts_per_tok")
    spec = rmsnorm_decoder(request, spaces, attention, mlp, biases=biases, keys=keys)
    # queries have no heads but the keys', in every expert
    spec = replace(spec, spaces={name: space for name, space in spec.spaces.items() if name != "rep"})
    return without_keys(spec, "num_attention_heads", "hidden_act")
