"""Kimi Linear: delta nets each of whose channels forgets at a pace of its own, latent attention, DeepSeek's experts.

The pace of a channel of the keys, and the gate on a channel of the values, come through a few coordinates between two
linear layers, which any map may act on. Attention has no rotary embedding, and one key in common for all heads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cobasin.architectures import Request, declares
from cobasin.architectures.apart_delta import KEY, VALUE, convolved, delta_spaces, gated_output
from cobasin.architectures.corrected_router import CHOICE, deepseek_decoder
from cobasin.architectures.latent_decoder import latent_attention
from cobasin.architectures.moe import NUMBERED
from cobasin.architectures.parts import LAYER, layers_of_kinds, linear, require
from cobasin.symmetry.gauges import KeyBias, Norm
from cobasin.symmetry.groups import Orthogonal
from cobasin.symmetry.spec import Space, Spec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

FULL, DELTA = "layers.{full_layer}.self_attn", "layers.{delta_layer}.self_attn"


def _delta_net(config: PreTrainedConfig) -> tuple[dict[str, Space], dict[str, str], Norm]:
    """Spaces, templates and the norm of Kimi's delta nets."""
    width = config.linear_head_dim
    spaces = delta_spaces(config.linear_num_heads, width, width, config.linear_conv_kernel_dim)
    between = Space(width, Orthogonal(scaled=True), LAYER, part="attention")
    output, norm = gated_output(DELTA)
    templates = {
        f"{DELTA}.A_log": "1 1 delta_head 1",
        f"{DELTA}.dt_bias": f"({KEY})",
        **linear(f"{DELTA}.f_a_proj", "pace", "resid", bias=False),
        **linear(f"{DELTA}.f_b_proj", f"({KEY})", "pace'", bias=False),
        **linear(f"{DELTA}.b_proj", "delta_head", "resid", bias=False),
        **linear(f"{DELTA}.g_a_proj", "gate", "resid", bias=False),
        **linear(f"{DELTA}.g_b_proj", f"({VALUE}~)", "gate'", bias=False),
        **convolved(DELTA),
        **output,
    }
    return spaces | {"pace": between, "gate": between}, templates, norm


@declares("KimiLinear", "kimi_linear", "Model", "ForCausalLM")
def kimi_linear(request: Request) -> Spec:
    """Kimi Linear. Transformers writes all FFNs under the name that those with experts have on the hub."""
    config = request.config
    require(not config.tie_word_embeddings, "tie_word_embeddings = true")  # Transformers leaves it untied
    nets, delta, values = _delta_net(config)
    bases, attention, latents = latent_attention(config, "common", FULL)
    kinds = layers_of_kinds(config.layer_types, full_layer="full_attention", delta_layer="linear_attention")
    biases = (KeyBias(f"{FULL}.kv_a_proj_with_mqa.bias", block=1),) if config.attention_bias else ()
    spec = deepseek_decoder(
        request,
        bases | nets | kinds,
        attention | delta,
        keys=(*CHOICE, "layer_types"),
        biases=biases,
        counts=("num_local_experts", "n_shared_experts"),
        names=NUMBERED,
    )
    return replace(
        spec,
        norms=(*spec.norms, *latents, values),
        aliases={f"layers.{i}.block_sparse_moe.": f"layers.{i}.mlp." for i in range(config.num_hidden_layers)},
    )
