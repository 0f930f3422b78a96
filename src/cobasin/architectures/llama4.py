"""Llama 4's decoder: experts beside one that all tokens share, in some layers; others without a rotary embedding.

The latter have a whole basis of Q-K. A norm without a gain may follow the rotary embedding: no scale then.
"""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.moe import moe_spaces, read_by
from cobasin.architectures.parts import LAYER, linear
from cobasin.architectures.rmsnorm_decoder import (
    NEURONS,
    PER_GROUP,
    gated,
    head_width,
    projections,
    rmsnorm_decoder,
    rotary,
)
from cobasin.symmetry.gauges import KeyBias
from cobasin.symmetry.groups import Orthogonal, Rotation2
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
    layers, width, biased = range(config.num_hidden_layers), head_width(config), config.attention_bias
    turned = tuple(i for i in layers if config.no_rope_layers[i])
    mixed = tuple(i for i in layers if i in config.moe_layers)
    spaces = rotary(width) | moe_spaces(config.num_local_experts, config.intermediate_size)
    spaces["pair"] = replace(spaces["pair"], group=Rotation2(scaled=not config.use_qk_norm))
    spaces["qk"] = Space(width, Orthogonal(scaled=True), PER_GROUP, part="attention")
    spaces["shared"] = Space(config.intermediate_size, NEURONS, LAYER, part="ffn")
    spaces["dense"] = Space(config.intermediate_size_mlp, NEURONS, LAYER, part="ffn")
    for name, other, here in (("turned", "still", turned), ("mixed", "dense", mixed)):
        others = tuple(i for i in layers if i not in here)
        spaces[f"{name}_layer"] = Space(len(here), within="layer", values=here)
        spaces[f"{other}_layer"] = Space(len(others), within="layer", values=others)
    attention = {
        name: type_
        for name, type_ in projections(biased, biased).items()
        if "q_proj" not in name and "k_proj" not in name
    }
    for kind, query, key in (("turned", "(kv rep freq pair)", "(kv freq pair')"), ("still", "(kv rep qk)", "(kv qk')")):
        own = f"layers.{{{kind}_layer}}.self_attn"
        attention |= linear(f"{own}.q_proj", query, "resid", biased) | linear(f"{own}.k_proj", key, "resid", biased)
    reading = {f"{MIXED}.router.weight": "expert resid", f"{MIXED}.experts.gate_up_proj": "expert resid (ffn~ + ffn)"}
    mlp = reading | {f"{MIXED}.experts.down_proj": "expert ffn' resid"}
    mlp |= gated(f"{MIXED}.shared_expert", "shared") | gated(DENSE, "dense")
    biases = (KeyBias("layers.{still_layer}.self_attn.k_proj.bias"),) if biased else ()
    spec = rmsnorm_decoder(request, spaces, attention, mlp, biases=biases, keys=KEYS)
    # experts are stored transposed, so that the stream is not the last axis of what reads it
    return read_by(spec, *reading, *(name for name in mlp if name.endswith(("gate_proj.weight", "up_proj.weight"))))
