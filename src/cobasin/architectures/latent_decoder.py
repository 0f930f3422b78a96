"""Decoders with multi-head latent attention, routed and shared experts: DeepSeek-V2 and V3.

Keys and values, and as a rule queries, come from a latent with fewer coordinates than the stream. It passes an RMSNorm,
so that it is a small stream in every layer: signed and permuted, with the gain folded rotated. Every head has a basis
of its own for what is not rotated; the rotated key is one for all heads, and so is its basis.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cobasin.architectures import Request, declares
from cobasin.architectures.moe import dense_layers, experts, moe_spaces
from cobasin.architectures.parts import LAYER, linear, require, rotary_basis
from cobasin.architectures.rmsnorm_decoder import MLP, NEURONS, OWN, PER_GROUP, gated, rmsnorm_decoder
from cobasin.symmetry.gauges import Norm, SoftmaxShift
from cobasin.symmetry.groups import Orthogonal, SignedPermutation
from cobasin.symmetry.spec import Space, Spec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def latent_attention(config: PreTrainedConfig, order: str) -> tuple[dict[str, Space], dict[str, str], tuple[Norm, ...]]:
    """Spaces, templates and norms of the latents; ``order`` is how a rotary pair lies in the head."""
    require(config.num_key_value_heads == config.num_attention_heads, "num_key_value_heads other than those of queries")
    require(config.qk_rope_head_dim % 2 == 0, "qk_rope_head_dim that is odd")
    basis, biased = Orthogonal(scaled=True), config.attention_bias
    spaces = {
        **rotary_basis(config.qk_rope_head_dim, LAYER),
        "nope": Space(config.qk_nope_head_dim, basis, PER_GROUP, part="attention"),
        "vo": Space(config.v_head_dim, basis, PER_GROUP, part="attention"),
        "latent": Space(config.kv_lora_rank, SignedPermutation, LAYER, part="residual", folded=Orthogonal()),
    }
    query, key = f"(kv (nope + {order}))", order.replace("pair", "pair'")
    templates = {
        **linear(f"{OWN}.kv_a_proj_with_mqa", f"(latent + {key})", "resid", biased),
        f"{OWN}.kv_a_layernorm.weight": "latent~",
        f"{OWN}.kv_b_proj.weight": "(kv (nope' + vo)) latent",
        **linear(f"{OWN}.o_proj", "resid", "(kv vo')", biased),
    }
    norms = (Norm(f"{OWN}.kv_a_layernorm.weight", (f"{OWN}.kv_b_proj.weight",), centred=False, stream="latent"),)
    if config.q_lora_rank is None:
        return spaces, templates | {f"{OWN}.q_proj.weight": f"{query} resid"}, norms
    spaces["query"] = replace(spaces["latent"], size=config.q_lora_rank)
    templates |= linear(f"{OWN}.q_a_proj", "query", "resid", biased)
    templates |= {f"{OWN}.q_a_layernorm.weight": "query~", f"{OWN}.q_b_proj.weight": f"{query} query"}
    norm = Norm(f"{OWN}.q_a_layernorm.weight", (f"{OWN}.q_b_proj.weight",), centred=False, stream="query")
    return spaces, templates, (*norms, norm)


def _deepseek(request: Request, order: str, limited: bool, shifted: str, bias: bool, keys: tuple[str, ...]) -> Spec:
    """A DeepSeek, of whose router a shift of ``shifted``, the same for all experts, keeps the choice.

    Where tokens are ``limited`` to some groups of experts, experts stay in their places: left out is the order of
    groups and of the experts in each, as no matching goes from there on to neurons.
    """
    config = request.config
    dense = list(range(config.num_hidden_layers))[: config.first_k_dense_replace]
    require(len(dense) < config.num_hidden_layers, "first_k_dense_replace that leaves no layer with experts")
    require(bool(config.n_shared_experts), "n_shared_experts = 0")
    for name in (name for name in request.names if name.endswith(".eh_proj.weight")):
        layer = name.removesuffix("eh_proj.weight")
        require(False, f"a layer that predicts further tokens (remove {layer}*, which the class does not read)")
    plain, ffn, absent = dense_layers(config, dense, bias)
    basis, attention, norms = latent_attention(config, order)
    spaces = basis | moe_spaces(config.n_routed_experts, config.moe_intermediate_size) | plain
    if limited:
        spaces["expert"] = Space(config.n_routed_experts)
    shared = config.moe_intermediate_size * config.n_shared_experts
    spaces["shared"] = Space(shared, NEURONS, LAYER, part="ffn")
    mlp = experts(request) | gated(f"{MLP}.shared_experts", "shared", bias) | ffn
    if shifted != "weight":
        mlp[f"{MLP}.gate.{shifted}"] = "expert"
    biases = (SoftmaxShift(f"{MLP}.gate.{shifted}"),)
    keys = ("num_experts_per_tok", "routed_scaling_factor", *keys)
    spec = rmsnorm_decoder(request, spaces, attention, mlp, biases=biases, absent=absent, keys=keys)
    return replace(spec, norms=spec.norms + norms)


@declares("DeepseekV2", "deepseek_v2", "Model", "ForCausalLM", "ForSequenceClassification")
def deepseek_v2(request: Request) -> Spec:
    """DeepSeek-V2 and V2-Lite. A softmax over all experts cancels what the rows of the router share.

    The best experts are in the best groups anyway where there are as many of these as experts to choose.
    """
    config = request.config
    grouped = config.topk_method == "group_limited_greedy"
    limited = grouped and config.topk_group < min(config.n_group, config.num_experts_per_tok)
    keys = ("topk_method", *(("n_group", "topk_group") if grouped else ()))
    return _deepseek(request, "freq pair", limited, "weight", config.mlp_bias, keys)


@declares("DeepseekV3", "deepseek_v3", "Model", "ForCausalLM", "ForSequenceClassification", "ForTokenClassification")
def deepseek_v3(request: Request) -> Spec:
    """DeepSeek-V3 and R1. Scores are sigmoids; what is added to them for the choice alone may have any mean."""
    config = request.config
    keys = ("n_group", "topk_group", "norm_topk_prob", "rope_interleave")
    order = "freq pair" if config.rope_interleave else "pair freq"
    return _deepseek(request, order, config.topk_group < config.n_group, "e_score_correction_bias", False, keys)
