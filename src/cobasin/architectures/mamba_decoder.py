"""Decoders of which every layer has one branch, behind its norm: Mamba; Nemotron-H, with attention, FFNs and experts.

Nothing turns queries and keys, so that every KV group has whole bases. Experts may read and write a latent with fewer
coordinates than the stream: any invertible map may act on either of the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cobasin.architectures import Request, declares
from cobasin.architectures.corrected_router import CHOICE
from cobasin.architectures.parts import (
    LAYER,
    Parts,
    decoder_stream,
    groups,
    layers_of_kinds,
    linear,
    neurons,
    output_head,
    require,
    tie_keys,
)
from cobasin.architectures.rmsnorm_decoder import branch_norm, turned_attention
from cobasin.architectures.selective_state import SelectiveState
from cobasin.architectures.state_space import StateSpace
from cobasin.architectures.ungated_decoder import plain_ffn
from cobasin.symmetry.gauges import Norm, SoftmaxShift
from cobasin.symmetry.groups import Orthogonal, Permutation, SignedPermutation
from cobasin.symmetry.spec import Space, Spec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

BASIS = Orthogonal(scaled=True)
MAMBA_KEYS = ("hidden_act", "rescale_prenorm_residual")
GATE, EXPERTS, SHARED = (f"layers.{{moe_layer}}.mixer.{name}" for name in ("gate", "experts", "shared_experts"))
CORRECTION = f"{GATE}.e_score_correction_bias"
ROUTING = ("num_experts_per_tok", "routed_scaling_factor", *CHOICE)


def one_branch(
    request: Request,
    spaces: Mapping[str, Space],
    branches: Mapping[str, str],
    keys: tuple[str, ...],
    inner: tuple[Norm, ...] = (),
    **more: Any,
) -> Spec:
    """The type of a decoder with these ``branches``, one in a layer, and norms in them; ``more`` is of the spec."""
    config = request.config
    head, ties = output_head(request, "embeddings.weight")
    gain = "layers.{layer}.norm.weight"
    norms = (branch_norm(gain, branches), *((branch_norm("norm_f.weight", head),) if head else ()))
    return Spec(
        request.architecture,
        {
            "layer": Space(config.num_hidden_layers),
            "resid": decoder_stream(config.hidden_size, request.head, SignedPermutation, Orthogonal()),
            "vocab": Space(config.vocab_size),
            **spaces,
        },
        {"embeddings.weight": "vocab resid", **branches, gain: "resid~", "norm_f.weight": "resid~", **head},
        prefix="backbone.",
        tied=ties,
        norms=(*(norms if head else ()), *inner),
        function_keys=("layer_norm_epsilon", *tie_keys(ties), *keys),
        **more,
    )


def mixer(config: PreTrainedConfig, layer: str, heads: int, width: int, states: int) -> StateSpace:
    """The mixers in the layers ``layer``, of sizes that the two families name apart."""
    return StateSpace(
        f"layers.{{{layer}}}.mixer",
        heads,
        config.n_groups,
        width,
        states,
        config.conv_kernel,
        conv_bias=config.use_conv_bias,
        bias=config.use_bias,
        out_bias=config.use_bias,
    )


@declares("Mamba2", "mamba2", "Model", "ForCausalLM")
def mamba2(request: Request) -> Spec:
    """Mamba-2, Codestral Mamba."""
    config = request.config
    own = mixer(config, "layer", config.num_heads, config.head_dim, config.state_size)
    keys = (*MAMBA_KEYS, "n_groups", "state_size", "time_step_limit")
    return one_branch(request, own.spaces, own.templates, keys, own.norms)


def selective(request: Request, normed: bool, *keys: str) -> Spec:
    """The type of a decoder with mixers of Mamba-1."""
    config = request.config
    own = SelectiveState(
        "layers.{layer}.mixer",
        config.intermediate_size,
        config.state_size,
        int(config.time_step_rank),
        config.conv_kernel,
        conv_bias=config.use_conv_bias,
        bias=config.use_bias,
        normed=normed,
    )
    return one_branch(request, own.spaces, own.templates, (*MAMBA_KEYS, *keys))


@declares("Mamba", "mamba", "Model", "ForCausalLM")
def mamba1(request: Request) -> Spec:
    """Mamba."""
    return selective(request, normed=False)


@declares("FalconMamba", "falcon_mamba", "Model", "ForCausalLM")
def falcon_mamba(request: Request) -> Spec:
    """Falcon Mamba: with norms, without gains, in its mixers."""
    return selective(request, True, "mixer_rms_eps")


def experts(request: Request, group: Permutation) -> Parts:
    """Spaces and templates of experts without gates, whose neurons have ``group``, and one that all tokens share."""
    config = request.config
    over, limited = ("layer", "expert"), config.topk_group < config.n_group
    spaces = {
        # as of DeepSeek's
        "expert": Space(config.n_routed_experts, None if limited else Permutation(), LAYER, part="experts"),
        "expert_ffn": Space(config.moe_intermediate_size, group, over, part="ffn"),
        "shared_ffn": Space(config.moe_shared_expert_intermediate_size, group, LAYER, part="ffn"),
    }
    read, written = "resid", "resid"
    templates = {f"{GATE}.weight": "expert resid", CORRECTION: "expert"}
    if latent := config.moe_latent_size:
        read, written = "read'", "written"
        spaces |= {name: Space(latent, BASIS, LAYER, part="experts") for name in ("read", "written")}
        templates |= linear("layers.{moe_layer}.mixer.fc1_latent_proj", "read", "resid", config.mlp_bias)
        templates |= linear("layers.{moe_layer}.mixer.fc2_latent_proj", "resid", "written'", config.mlp_bias)
    up, down = (f"{EXPERTS}.{{expert}}.{name}.weight" for name in ("up_proj", "down_proj"))
    if request.has("experts.up_proj"):
        up, down = f"{EXPERTS}.up_proj", f"{EXPERTS}.down_proj"
    templates |= {up: f"expert expert_ffn {read}", down: f"expert {written} expert_ffn'"}
    return spaces, templates | plain_ffn(SHARED, "shared_ffn", config.mlp_bias)


@declares("NemotronH", "nemotron_h", "Model", "ForCausalLM")
def nemotron_h(request: Request) -> Spec:
    """Nemotron-H, Nemotron Nano 2 and 3: mixers, attention, FFNs and experts, the latter with sigmoids for scores."""
    config, kinds = request.config, request.config.layers_block_type
    require(not config.tie_word_embeddings, "tie_word_embeddings = true")
    inner = mixer(config, "mamba_layer", config.mamba_num_heads, config.mamba_head_dim, config.ssm_state_size)
    bases, attention, _ = turned_attention(config.head_dim, 0, own="layers.{attention_layer}.mixer")
    group = neurons(config.mlp_hidden_act)
    own, mixture = experts(request, group) if "moe" in kinds else ({}, {})
    ffn = Space(config.intermediate_size, group, LAYER, part="ffn")
    keys = ("n_groups", "ssm_state_size", "mamba_hidden_act", "mlp_hidden_act", "time_step_min", "layers_block_type")
    keys += ("num_attention_heads", "num_key_value_heads", "is_causal")
    return one_branch(
        request,
        inner.spaces
        | bases
        | groups(config.num_attention_heads, config.num_key_value_heads)
        | {"ffn": ffn}
        | own
        | layers_of_kinds(
            kinds, mamba_layer="linear_attention", attention_layer="full_attention", mlp_layer="mlp", moe_layer="moe"
        ),
        inner.templates | attention | plain_ffn("layers.{mlp_layer}.mixer", "ffn", config.mlp_bias) | mixture,
        keys + (ROUTING if mixture else ()),
        inner.norms,
        aliases={"model.": ""},
        biases=(SoftmaxShift(CORRECTION),) if mixture else (),
        further=(r"mtp\..*",),
    )
