"""Mistral Large 4: latent attention, an indexer in front of it, DeepSeek's experts, Pixtral's tower.

Queries come from the stream itself, and grow with the logarithm of their position: every head has a factor of its own,
and so has every head of the indexer. Some layers have no rotary embedding; its angles elsewhere are learned. Queries of
the indexer come through a LayerNorm of what the norm before attention puts out, so that the gain of that one, and the
mean of what it puts out, count: the stream has an order only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cobasin.architectures import Request, declares
from cobasin.architectures.corrected_router import plain_layers
from cobasin.architectures.joining import relabelled
from cobasin.architectures.moe import moe_spaces
from cobasin.architectures.parts import LAYER, NEURONS, PER_GROUP, Parts, layers_of_kinds, linear, require, rotary_basis
from cobasin.architectures.rmsnorm_decoder import branch_norm, gated, rmsnorm_decoder
from cobasin.architectures.vision_language import decoder, pixtral_tower, with_pixtral
from cobasin.symmetry.gauges import Norm, SoftmaxShift
from cobasin.symmetry.groups import Diagonal, Orthogonal, Permutation, SignedPermutation
from cobasin.symmetry.spec import Space, Spec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

OWN = "layers.{layer}.attention"
MIXED, DENSE = "layers.{mixed_layer}", "layers.{dense_layer}.feed_forward"
INDEXING, SHARING = "layers.{index_layer}", "layers.{share_layer}"
GROWTH = Diagonal(scaled=True)  # of queries, which the factor that they grow by takes back
KEYS = (
    "num_experts_per_tok",
    "routed_scaling_factor",
    "n_group",
    "topk_group",
    "index_topk",
    "no_rope_layers",
    "indexer_types",
)
# what the parts of a whole are called in its files, which are those of Mistral
FILED = {
    "language_model.": "",
    "vision_tower.": "vision_encoder.",
    "embed_tokens": "tok_embeddings",
    "lm_head": "output",
    "rotary_emb.": "lerope.",
    "q_proj": "wq",
    "k_proj": "wk",
    "v_proj": "wv",
    "o_proj": "wo",
    "gate_proj": "w1",
    "down_proj": "w2",
    "up_proj": "w3",
    "multi_modal_projector.norm": "pre_mm_projector_norm",
    "multi_modal_projector.linear_1": "vision_language_adapter.w_in",
    "multi_modal_projector.linear_2": "vision_language_adapter.w_out",
    "multi_modal_projector.": "",
}


def _grown(block: str, head: str, growth: str) -> dict[str, str]:
    """Templates of the factor of every head: its slope, and what it is at the first position."""
    return dict.fromkeys((f"{block}.ssmax_scaling.s", f"{block}.ssmax_scaling.b"), f"({head} {growth}')")


def _attention(config: PreTrainedConfig, turned: Sequence[bool]) -> Parts:
    """Spaces and templates of the attention; ``turned`` says which layers have a rotary embedding."""
    basis, biased, rotated = Orthogonal(scaled=True), config.attention_bias, config.qk_rope_head_dim
    require(config.num_key_value_heads == config.num_attention_heads, "num_key_value_heads other than those of queries")
    require(config.kv_source_layers == [*range(config.num_hidden_layers)], "kv_source_layers that share")
    require(rotated % 2 == 0, "qk_rope_head_dim that is odd")
    spaces = {
        **rotary_basis(rotated, LAYER),
        **layers_of_kinds(turned, turned_layer=True, still_layer=False),
        "growth": Space(1, GROWTH, PER_GROUP, part="attention"),
        "nope": Space(config.qk_nope_head_dim, basis, PER_GROUP, part="attention"),
        "qk": Space(config.qk_nope_head_dim + rotated, basis, PER_GROUP, part="attention"),
        "vo": Space(config.v_head_dim, basis, PER_GROUP, part="attention"),
        "latent": Space(config.kv_lora_rank, SignedPermutation, LAYER, part="residual", folded=Orthogonal()),
    }
    templates = {
        "rotary_emb.alpha": "freq",
        **_grown(OWN, "kv", "growth"),
        f"{OWN}.kv_a_norm.weight": "latent~",
        **linear(f"{OWN}.o_proj", "resid", "(kv vo')", biased),
    }
    for kind, own, query, key in (
        ("turned", "nope", "(nope + freq pair)", "(latent + freq pair')"),
        ("still", "qk", "qk", "latent"),
    ):
        layer = f"layers.{{{kind}_layer}}.attention"
        templates |= {
            f"{layer}.wq.weight": f"(kv growth {query}) resid",
            **linear(f"{layer}.wkv_a_with_mqa", key, "resid", biased),
            f"{layer}.wkv_b.weight": f"(kv ({own}' + vo)) latent",
        }
    return spaces, templates


def _indexer(config: PreTrainedConfig, turned: Sequence[bool]) -> Parts:
    """Spaces and templates of what chooses the tokens to look at, as in DeepSeek-V3.2.

    In layers without a rotary embedding none of its heads' coordinates is rotated.
    """
    width, rotated = config.index_head_dim, config.qk_rope_head_dim
    scaled, own = Permutation(scaled=True), f"{INDEXING}.attention.indexer"
    full = [kind == "full" for kind in config.indexer_types[: config.num_hidden_layers]]
    kinds = [full_ and ("turned" if turns else "still") for full_, turns in zip(full, turned, strict=True)]
    spaces = {
        **layers_of_kinds(full, index_layer=True, share_layer=False),
        **layers_of_kinds(kinds, index_turned_layer="turned", index_still_layer="still"),
        "index_head": Space(config.index_n_heads, scaled, LAYER, part="heads"),
        "index_growth": Space(1, GROWTH, (*LAYER, "index_head"), part="attention"),
        "index_pair": Space(2),
        "index_freq": Space(rotated // 2, Diagonal(scaled=True), LAYER, part="attention"),
        "index": Space(width - rotated, scaled, LAYER, part="attention"),
        "index_all": Space(width, scaled, LAYER, part="attention"),
    }
    templates = {
        f"{own}.q_input_norm.weight": "resid",
        f"{own}.q_input_norm.bias": "resid",
        **_grown(own, "index_head~", "index_growth"),
        f"{own}.weights_proj.weight": "index_head' resid",
    }
    for kind, head in (("turned", "(index_freq{0} index_pair + index{0})"), ("still", "index_all{0}")):
        layer = f"layers.{{index_{kind}_layer}}.attention.indexer"
        templates |= {
            f"{layer}.wq_b.weight": f"(index_head index_growth {head.format('')}) resid",
            f"{layer}.wk.weight": f"{head.format('~')} resid",
            **dict.fromkeys((f"{layer}.k_norm.weight", f"{layer}.k_norm.bias"), head.format("'")),
        }
    return spaces, templates


def _ffn(config: PreTrainedConfig) -> Parts:
    """Spaces and templates of FFN or router, first, experts, and those that all tokens share."""
    routed, shared, width = config.n_routed_experts, config.n_shared_experts, config.moe_intermediate_size
    require(bool(shared), "n_shared_experts = 0")
    plain = plain_layers(config)
    spaces = {
        **layers_of_kinds([i in plain for i in range(config.num_hidden_layers)], mixed_layer=False, dense_layer=True),
        **moe_spaces(routed, width),
        "shared": Space(shared * width, NEURONS, LAYER, part="ffn"),
        "dense": Space(config.intermediate_size, NEURONS, LAYER, part="ffn"),
    }
    if config.topk_group < config.n_group:
        spaces["expert"] = Space(routed)  # as in DeepSeek's
    expert = f"{MIXED}.experts.{{expert}}"
    return spaces, {
        f"{MIXED}.gate.weight": "expert resid",
        f"{expert}.w1.weight": "expert ffn~ resid",
        f"{expert}.w3.weight": "expert ffn resid",
        f"{expert}.w2.weight": "expert resid ffn'",
        **gated(f"{MIXED}.shared_experts", "shared"),
        **gated(DENSE, "dense"),
    }


def _norms(attention: Mapping[str, str], indexer: Mapping[str, str], ffn: Mapping[str, str]) -> tuple[Norm, ...]:
    """The norms in front of the branches; of those before attention none that another norm reads."""
    query = f"{INDEXING}.attention.indexer.q_input_norm"
    chosen = tuple(name for name in indexer if name.endswith(".wq_b.weight"))
    return (
        branch_norm(f"{SHARING}.attention_norm.weight", attention),
        Norm(f"{query}.weight", chosen, f"{query}.bias", keeps_mean=True),
        branch_norm("layers.{layer}.ffn_norm.weight", ffn),
    )


@declares("MistralLarge4Text", "mistral_large4_text", "Model")
def mistral_large4_text(request: Request) -> Spec:
    """Mistral Large 4 without its tower. Transformers has no class of it with a head."""
    config = request.config
    turned = [bool(turns) for turns in config.no_rope_layers[: config.num_hidden_layers]]
    (basis, attention), (more, indexer), (neurons, ffn) = (
        _attention(config, turned),
        _indexer(config, turned),
        _ffn(config),
    )
    gains = (
        f"{part}.weight"
        for part in (f"{INDEXING}.attention_norm", f"{SHARING}.attention_norm", "layers.{layer}.ffn_norm")
    )
    bare = request.head == "Model"
    spec = rmsnorm_decoder(
        request,
        {
            **basis,
            **more,
            **neurons,
            "resid": Space(config.hidden_size, None if bare else Permutation(), part="residual"),
        },
        attention | indexer,
        dict.fromkeys(gains, "resid~") | ffn,
        pre_norms=(),
        biases=(SoftmaxShift(f"{MIXED}.gate.weight"),),
        keys=KEYS,
    )
    latent = Norm(
        f"{OWN}.kv_a_norm.weight",
        tuple(name for name in attention if name.endswith(".wkv_b.weight")),
        centred=False,
        stream="latent",
    )
    own = () if bare else _norms(attention, indexer, ffn)
    return replace(spec, prefix="", norms=(*spec.norms, *own, latent), further=(r"mtp_dspark\..*",))


@declares("MistralLarge4", "mistral_large4", "ForConditionalGeneration")
def mistral_large4(request: Request) -> Spec:
    """Mistral Large 4, whose tower and projector are those of Mistral Small 3.1; rows of its tower lie in pairs."""
    tower = pixtral_tower(request, "freq pair")
    spec = with_pixtral(request, decoder(request, mistral_large4_text), tower)
    parts = re.compile("|".join(map(re.escape, FILED)))
    spec = relabelled(spec, name=lambda name: parts.sub(lambda part: FILED[part[0]], name))
    keys = (*spec.function_keys, "text_config.final_logit_softcapping")
    return replace(spec, prefix="", aliases={}, further=(r"mtp_dspark\..*",), function_keys=keys)
