"""GPT-NeoX-Japanese: one branch after the other, and of all linear layers one with a bias, in the last layer."""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures.layernorm_decoder import layer_norm_decoder, megatron_layer
from cobasin.architectures.parts import (
    LAYER,
    PER_HEAD,
    head_bases,
    layers_of_kinds,
    neurons,
    output_head,
    require,
    rope_keys,
    rotated_size,
)
from cobasin.symmetry.groups import Permutation
from cobasin.symmetry.spec import Space, Spec

OWN, MLP = "layers.{layer}.attention", "layers.{layer}.mlp"


@declares("GPTNeoXJapanese", "gpt_neox_japanese", "Model", "ForCausalLM")
def gpt_neox_japanese(request: Request) -> Spec:
    """GPT-NeoX-Japanese."""
    config = request.config
    width, layers = config.hidden_size // config.num_attention_heads, config.num_hidden_layers
    # only the rotary embedding reads head_dim
    require(getattr(config, "head_dim", None) in (None, width), "head_dim other than the size of a head")
    bases, query, key = head_bases(width, PER_HEAD, rotated_size(config, width))
    layer, _ = megatron_layer(OWN, MLP, "head", query, key, biased=False, mlp_biased=False)
    return layer_norm_decoder(
        request,
        output_head(request, "embed_in.weight", "embed_out"),
        {
            **bases,
            **layers_of_kinds(range(layers), last_layer=layers - 1),
            "head": Space(config.num_attention_heads, Permutation(), LAYER, part="heads"),
            "ffn": Space(
                int(config.hidden_size * config.intermediate_multiple_size),
                neurons(config.hidden_act),
                LAYER,
                part="ffn",
            ),
        },
        {"embed_in.weight": "vocab resid", **layer, "layers.{last_layer}.attention.dense_bias": "resid"},
        {
            "layers.{layer}.input_layernorm": (f"{OWN}.query_key_value",),
            "layers.{layer}.post_attention_layernorm": (f"{MLP}.dense_h_to_4h",),
        },
        (),
        ("num_attention_heads", "hidden_act", "layer_norm_eps", *rope_keys(config)),
        "gpt_neox_japanese.",
        "final_layer_norm",
    )
