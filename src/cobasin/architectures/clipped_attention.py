"""DBRX: LayerNorms without offsets, experts, and attention that clips what it reads, all coordinates alike."""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures.layernorm_decoder import layer_norm_decoder
from cobasin.architectures.moe import moe_spaces
from cobasin.architectures.parts import PER_GROUP, groups, linear, output_head, require, rope_keys
from cobasin.symmetry.gauges import SoftmaxShift
from cobasin.symmetry.groups import Diagonal, SignedPermutation
from cobasin.symmetry.spec import Space, Spec

BLOCK = "blocks.{layer}"
OWN, MLP = f"{BLOCK}.norm_attn_norm.attn", f"{BLOCK}.ffn.experts.mlp"
KEYS = ("ffn_act_fn", "moe_top_k", "moe_normalize_expert_weights")


@declares("Dbrx", "dbrx", "Model", "ForCausalLM")
def dbrx(request: Request) -> Spec:
    """DBRX. Each of the three tensors of its experts has all of a layer.

    Clipped, a rotary pair keeps its sign, and values their order and signs.
    """
    config, ffn = request.config, request.config.ffn_config
    require(config.attn_config.clip_qkv is not None, "attn_config.clip_qkv of null, with which Transformers fails,")
    width = config.hidden_size // config.num_attention_heads
    router = f"{BLOCK}.ffn.router.layer"
    return layer_norm_decoder(
        request,
        output_head(request, "wte.weight"),
        {
            **groups(config.num_attention_heads, config.attn_config.kv_n_heads),
            "pair": Space(2),
            "freq": Space(width // 2, Diagonal(signed=True), PER_GROUP, part="attention"),
            "vo": Space(width, SignedPermutation, PER_GROUP, part="attention"),
            **moe_spaces(ffn.moe_num_experts, ffn.ffn_hidden_size),
        },
        {
            "wte.weight": "vocab resid",
            **linear(f"{OWN}.Wqkv", "(kv rep pair freq + kv pair freq + kv vo)", "resid", bias=False),
            **linear(f"{OWN}.out_proj", "resid", "(kv rep vo)", bias=False),
            **linear(router, "expert", "resid", bias=False),
            f"{MLP}.w1": "(expert ffn~) resid",
            f"{MLP}.v1": "(expert ffn) resid",
            f"{MLP}.w2": "(expert ffn') resid",
        },
        {
            f"{BLOCK}.norm_attn_norm.norm_1": (f"{OWN}.Wqkv",),
            f"{BLOCK}.norm_attn_norm.norm_2": (router, f"{MLP}.w1", f"{MLP}.v1"),
        },
        (SoftmaxShift(f"{router}.weight"),),
        (
            "n_heads",
            *("attn_config.kv_n_heads", "attn_config.clip_qkv"),
            *(f"ffn_config.{key}" for key in KEYS),
            *rope_keys(config),
        ),
        "transformer.",
        "norm_f",
        offsets=False,
    )
