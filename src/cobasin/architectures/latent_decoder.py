"""Decoders with multi-head latent attention: DeepSeek-V2 to V3.2, GLM-4.7-Flash, GLM-5, Mistral 4, Youtu-LLM, MiniCPM3.

Keys and values, and as a rule queries, come from a latent with fewer coordinates than the stream. It passes an RMSNorm,
so that it is a small stream in every layer: signed and permuted, with the gain folded rotated. Every head has a basis
of its own for what is not rotated; the rotated key is one for all heads, and so is its basis.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from cobasin.architectures import Request, declares
from cobasin.architectures.corrected_router import CHOICE, CORRECTED, ROUTER, deepseek_decoder
from cobasin.architectures.parts import LAYER, PER_GROUP, Parts, layers_of_kinds, linear, require, rotary_basis
from cobasin.architectures.rmsnorm_decoder import OWN, gated, rmsnorm_decoder
from cobasin.symmetry.gauges import Norm
from cobasin.symmetry.groups import Diagonal, Orthogonal, Permutation, SignedPermutation
from cobasin.symmetry.spec import Space, Spec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def latent_attention(
    config: PreTrainedConfig, order: str, own: str = OWN
) -> tuple[dict[str, Space], dict[str, str], tuple[Norm, ...]]:
    """Spaces, templates and norms of the latents; ``order`` is how a rotary pair lies in the head.

    Where nothing is rotated it is ``common``: what one key has for all heads.
    """
    require(config.num_key_value_heads == config.num_attention_heads, "num_key_value_heads other than those of queries")
    basis, biased, rotated = Orthogonal(scaled=True), config.attention_bias, config.qk_rope_head_dim
    require(rotated % 2 == 0 or order == "common", "qk_rope_head_dim that is odd")
    common = {"common": Space(rotated, basis, LAYER, part="attention")}
    spaces = {
        **(common if order == "common" else rotary_basis(rotated, LAYER)),
        "nope": Space(config.qk_nope_head_dim, basis, PER_GROUP, part="attention"),
        "vo": Space(config.v_head_dim, basis, PER_GROUP, part="attention"),
        "latent": Space(config.kv_lora_rank, SignedPermutation, LAYER, part="residual", folded=Orthogonal()),
    }
    query, key = f"(kv (nope + {order}))", re.sub("pair|common", r"\g<0>'", order)
    templates = {
        **linear(f"{own}.kv_a_proj_with_mqa", f"(latent + {key})", "resid", biased),
        f"{own}.kv_a_layernorm.weight": "latent~",
        f"{own}.kv_b_proj.weight": "(kv (nope' + vo)) latent",
        **linear(f"{own}.o_proj", "resid", "(kv vo')", biased),
    }
    norms = (Norm(f"{own}.kv_a_layernorm.weight", (f"{own}.kv_b_proj.weight",), centred=False, stream="latent"),)
    if config.q_lora_rank is None:
        return spaces, templates | {f"{own}.q_proj.weight": f"{query} resid"}, norms
    spaces["query"] = replace(spaces["latent"], size=config.q_lora_rank)
    templates |= linear(f"{own}.q_a_proj", "query", "resid", biased)
    templates |= {f"{own}.q_a_layernorm.weight": "query~", f"{own}.q_b_proj.weight": f"{query} query"}
    norm = Norm(f"{own}.q_a_layernorm.weight", (f"{own}.q_b_proj.weight",), centred=False, stream="query")
    return spaces, templates, (*norms, norm)


def _order(config: PreTrainedConfig) -> str:
    return "freq pair" if getattr(config, "rope_interleave", False) else "pair freq"


@declares("DeepseekV2", "deepseek_v2", "Model", "ForCausalLM", "ForSequenceClassification")
def deepseek_v2(request: Request) -> Spec:
    """DeepSeek-V2 and V2-Lite. A softmax over all experts cancels what the rows of the router share.

    The best experts are in the best groups anyway where there are as many of these as experts to choose.
    """
    config = request.config
    grouped = config.topk_method == "group_limited_greedy"
    limited = grouped and config.topk_group < min(config.n_group, config.num_experts_per_tok)
    keys = ("topk_method", *(("n_group", "topk_group") if grouped else ()))
    basis, attention, norms = latent_attention(config, "freq pair")
    spec = deepseek_decoder(request, basis, attention, ROUTER, config.mlp_bias, keys, limited)
    return replace(spec, norms=spec.norms + norms)


@declares("DeepseekV3", "deepseek_v3", "Model", "ForCausalLM", "ForSequenceClassification", "ForTokenClassification")
@declares("Glm4MoeLite", "glm4_moe_lite", "Model", "ForCausalLM")
@declares("Mistral4", "mistral4", "Model", "ForCausalLM", "ForSequenceClassification", "ForTokenClassification")
def deepseek_v3(request: Request) -> Spec:
    """DeepSeek-V3 and R1, GLM-4.7-Flash; Mistral 4, whose queries grow with their position, by a factor.

    Scores are sigmoids, and what is added to them for the choice alone may have any mean; Mistral's are a softmax.
    """
    config = request.config
    shifted = ROUTER if config.model_type == "mistral4" else CORRECTED
    basis, attention, norms = latent_attention(config, _order(config))
    spec = deepseek_decoder(request, basis, attention, shifted, keys=(*CHOICE, "rope_interleave"))
    return replace(spec, norms=spec.norms + norms)


def indexer(config: PreTrainedConfig, order: str, last: bool = False) -> Parts:
    """Spaces and templates of what chooses the tokens to look at, in the layers that do not take the last choice over.

    The first coordinates of a head are rotated, or the ``last`` ones.

    Scores pass a ReLU each, so that a head has a scale, which its weight takes back. Its keys pass a LayerNorm, whose
    gain and offset share scales with the queries.
    """
    turned, own = config.qk_rope_head_dim, "layers.{index_layer}.self_attn.indexer"
    layers = config.num_hidden_layers
    kinds = getattr(config, "indexer_types", ["full"] * layers)[:layers]  # it may say it of more
    spaces = {
        "index_head": Space(config.index_n_heads, Permutation(scaled=True), LAYER, part="heads"),
        "index_pair": Space(2),
        "index_freq": Space(turned // 2, Diagonal(scaled=True), LAYER, part="attention"),
        "index": Space(config.index_head_dim - turned, Permutation(scaled=True), LAYER, part="attention"),
        **layers_of_kinds(kinds, index_layer="full"),
    }
    pairs = order.replace("pair", "index_pair").replace("freq", "index_freq{0}")
    head = f"(index{{0}} + {pairs})" if last else f"({pairs} + index{{0}})"
    query, kept, key = (head.format(charge) for charge in ("", "~", "'"))
    return spaces, {
        f"{own}.wq_b.weight": f"(index_head {query}) query",
        f"{own}.wk.weight": f"{kept} resid",
        f"{own}.k_norm.weight": key,
        f"{own}.k_norm.bias": key,
        f"{own}.weights_proj.weight": "index_head' resid",
    }


@declares("DeepseekV32", "deepseek_v32", "Model", "ForCausalLM")
@declares("GlmMoeDsa", "glm_moe_dsa", "Model", "ForCausalLM")
def deepseek_v32(request: Request) -> Spec:
    """DeepSeek-V3.2 and GLM-5: every token looks at those that an indexer chooses, which reads the latent of queries.

    The indexer of the former turns halves, all else neighbours.
    """
    config = request.config
    more, chosen = indexer(config, "pair freq" if config.model_type == "deepseek_v32" else "freq pair")
    basis, attention, (latent, query) = latent_attention(config, "freq pair")
    spec = deepseek_decoder(request, basis | more, attention | chosen, keys=(*CHOICE, "index_topk"))
    read = tuple(name for name, type_ in (attention | chosen).items() if type_.endswith(" query"))
    return replace(spec, norms=(*spec.norms, latent, replace(query, readers=read)))


@declares("Youtu", "youtu", "Model", "ForCausalLM")
def youtu(request: Request) -> Spec:
    """Youtu-LLM: a plain FFN in all layers."""
    basis, attention, norms = latent_attention(request.config, _order(request.config))
    spec = rmsnorm_decoder(request, basis, attention, gated(), keys=("rope_interleave",))
    return replace(spec, norms=spec.norms + norms)


@declares("MiniCPM3", "minicpm3", "Model", "ForCausalLM", "ForSequenceClassification")
def minicpm3(request: Request) -> Spec:
    """MiniCPM3. Its factors are the same for all coordinates, so every rotation passes them."""
    config = request.config
    basis, attention, norms = latent_attention(config, _order(config))
    factors = ("scale_emb", "scale_depth", "dim_model_base")
    spec = rmsnorm_decoder(request, basis, attention, gated(bias=config.mlp_bias), keys=factors)
    return replace(spec, norms=spec.norms + norms)
