"""Llama 4's decoder: experts beside one that all tokens share, in some layers; others without a rotary embedding.

The latter have a whole basis of Q-K. A norm without a gain may follow the rotary embedding: no scale then.
"""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.moe import moe_spaces, read_by
from cobasin.architectures.nope_decoder import partly_turned
from cobasin.architectures.parts import LAYER, layers_of_kinds
from cobasin.architectures.rmsnorm_decoder import NEURONS, gated, rmsnorm_decoder
from cobasin.symmetry.groups import Rotation2
from cobasin.symmetry.spec import Space, Spec

MIXED, DENSE = "layers.{mixed_layer}.feed_forward", "layers.{dense_layer}.feed_forward"
KEYS = (
    "num_experts_per_tok",
    "no_rope_layers",
    "use_qk_norm",
    "layer_types",
    "attention_chunk_size",
    "attn_temperature_tuning",
    "floor_scale",
    "attn_scale",
)


@declares("Llama4", "llama4_text", "ForCausalLM")
@declares("Llama4Text", "llama4_text", "Model")
def llama4(request: Request) -> Spec:
    """Llama 4 without its tower. Scores pass a sigmoid each, so that nothing is common to all of a router's rows."""
    config = request.config
    spaces, attention, biases = partly_turned(config, config.no_rope_layers, "freq pair")
    spaces["pair"] = replace(spaces["pair"], group=Rotation2(scaled=not config.use_qk_norm))
    spaces |= moe_spaces(config.num_local_experts, config.intermediate_size)
    spaces["shared"] = Space(config.intermediate_size, NEURONS, LAYER, part="ffn")
    spaces["dense"] = Space(config.intermediate_size_mlp, NEURONS, LAYER, part="ffn")
    mixed = [i in config.moe_layers for i in range(config.num_hidden_layers)]
    spaces |= layers_of_kinds(mixed, mixed_layer=True, dense_layer=False)
    reading = {f"{MIXED}.router.weight": "expert resid", f"{MIXED}.experts.gate_up_proj": "expert resid (ffn~ + ffn)"}
    mlp = reading | {f"{MIXED}.experts.down_proj": "expert ffn' resid"}
    mlp |= gated(f"{MIXED}.shared_expert", "shared") | gated(DENSE, "dense")
    spec = rmsnorm_decoder(request, spaces, attention, mlp, biases=biases, keys=KEYS)
    # experts are stored transposed, so that the stream is not the last axis of what reads it
    return read_by(spec, *reading, *(name for name in mlp if name.endswith(("gate_proj.weight", "up_proj.weight"))))
