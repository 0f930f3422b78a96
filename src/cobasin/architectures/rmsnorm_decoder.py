"""Decoders with RMSNorm, RoPE, grouped queries, a gated FFN: Llama, Mistral, Qwen2, Phi-3, Gemma 1 and 2, Granite ...

Queries of a KV group share its key, so a group has one rotation per frequency for all its heads. The gate passes
an activation: only (up, down) may change sign and scale. A norm ignores the size of what it reads only up to its
epsilon, so that no scale follows from it. The sign of a single post-norm gain could go into the rows it meets; it is
left alone, as a merge of gains of both signs would average to zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cobasin.architectures import Request, declares
from cobasin.architectures.parts import (
    LAYER,
    NEURONS,
    PADDING_READ,
    PER_GROUP,
    Parts,
    base_prefix,
    decoder_stream,
    groups,
    head_bases,
    labels,
    linear,
    output_head,
    require,
    rope_keys,
    rotary_basis,
    rotated_size,
    tie_keys,
)
from cobasin.symmetry.gauges import FreeGauge, KeyBias, Norm, ValueBias
from cobasin.symmetry.groups import Orthogonal, SignedPermutation
from cobasin.symmetry.spec import Space, Spec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

HEADS = ("Model", "ForCausalLM", "ForSequenceClassification", "ForTokenClassification")
ANSWERING = (*HEADS, "ForQuestionAnswering")
OWN, MLP = "layers.{layer}.self_attn", "layers.{layer}.mlp"
QUERY, KEY = "(kv rep pair freq)", "(kv pair' freq)"
VALUE_BIAS = ValueBias(f"{OWN}.v_proj.bias", f"{OWN}.o_proj.weight", f"{OWN}.o_proj.bias")
GRANITE_KEYS = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
GEMMA_KEYS = (
    "query_pre_attn_scalar",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "sliding_window",
    "layer_types",
)
PRE_NORMS = ("input_layernorm", "post_attention_layernorm")
POST_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")


def head_width(config: PreTrainedConfig) -> int:
    """The size of a head."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def rotary(rotated: int) -> dict[str, Space]:
    """`rotary_basis` of every KV group."""
    return rotary_basis(rotated, PER_GROUP)


def partly_rotated(config: PreTrainedConfig) -> int:
    """How many coordinates of a head are rotated, in whole pairs: the first ones."""
    rotated = rotated_size(config, head_width(config))
    require(rotated > 0, "rope_parameters that rotate nothing")
    return rotated + rotated % 2


def projections(
    bias: bool = False, out_bias: bool = False, key: str = KEY, query: str = QUERY, own: str = OWN
) -> dict[str, str]:
    """Queries, keys, values and output of attention."""
    return queries_keys(query, key, bias, own) | values_output(bias, out_bias, own)


def queries_keys(query: str, key: str, bias: bool = False, own: str = OWN) -> dict[str, str]:
    """Queries and keys of attention."""
    return linear(f"{own}.q_proj", query, "resid", bias) | linear(f"{own}.k_proj", key, "resid", bias)


def values_output(bias: bool = False, out_bias: bool = False, own: str = OWN) -> dict[str, str]:
    """Values and output of attention."""
    values = linear(f"{own}.v_proj", "(kv vo)", "resid", bias)
    return values | linear(f"{own}.o_proj", "resid", "(kv rep vo')", out_bias)


def rotary_attention(config: PreTrainedConfig) -> Parts:
    """Spaces and templates of attention that rotates all of a head, with biases everywhere or nowhere."""
    return rotary(head_width(config)), projections(config.attention_bias, config.attention_bias)


def turned_attention(
    width: int, turned: int, bias: bool = False, out_bias: bool = False, order: str = "pair freq", own: str = OWN
) -> tuple[dict[str, Space], dict[str, str], tuple[FreeGauge, ...]]:
    """Spaces, templates and free key biases of attention that rotates the first ``turned`` coordinates of its heads."""
    spaces, query, key = head_bases(width, PER_GROUP, turned, order)
    biases = (KeyBias(f"{own}.k_proj.bias", block=1 if turned else 0),) if bias and turned < width else ()
    return spaces, projections(bias, out_bias, f"(kv {key})", f"(kv rep {query})", own), biases


def gated(name: str = MLP, neurons: str = "ffn", bias: bool = False) -> dict[str, str]:
    """A gated FFN."""
    return (
        linear(f"{name}.gate_proj", f"{neurons}~", "resid", bias)
        | linear(f"{name}.up_proj", neurons, "resid", bias)
        | linear(f"{name}.down_proj", "resid", f"{neurons}'", bias)
    )


def fused_gated() -> dict[str, str]:
    """A gated FFN whose gate and up-projection are one tensor."""
    return {f"{MLP}.gate_up_proj.weight": "(ffn~ + ffn) resid", f"{MLP}.down_proj.weight": "resid ffn'"}


def rmsnorm_decoder(
    request: Request,
    spaces: Mapping[str, Space],
    attention: Mapping[str, str],
    mlp: Mapping[str, str],
    pre_norms: tuple[str, ...] = PRE_NORMS,
    post_norms: tuple[str, ...] = (),
    plus_one: bool = False,
    biases: tuple[FreeGauge, ...] = (),
    absent: tuple[str, ...] = (),
    keys: tuple[str, ...] = (),
    own_head: tuple[dict[str, str], dict[str, str]] | None = None,
    last: str = "norm",
) -> Spec:
    """The type of a decoder with RMSNorm and grouped queries.

    Args:
        request: the model.
        spaces: those of the Q-K basis, and what is not as in Llama.
        attention, mlp: templates of a layer's two branches.
        pre_norms: the norms that the two branches read, whose gains fold into them.
        post_norms: the norms behind the branches; their gains sit in the stream, which is then signed and permuted.
        plus_one: gains are stored minus one.
        biases, absent: besides what Llama has.
        keys: config keys that change the function, besides those that Llama has.
        own_head: tensors and ties of a head that is not as Llama's.
        last: the norm behind all layers.
    """
    config = request.config
    head, ties = own_head or output_head(request, "embed_tokens.weight")
    gains = [f"layers.{{layer}}.{norm}.weight" for norm in (*pre_norms, *post_norms)] + [f"{last}.weight"]
    norms = [branch_norm(gain, branch) for gain, branch in zip(gains, (attention, mlp)[: len(pre_norms)], strict=False)]
    if head and not (post_norms and ties):  # folded, it unties the head, which pays where the stream can then turn
        norms.append(branch_norm(f"{last}.weight", head))
    # a sink takes a share of the softmax that differs from token to token, a gate scales what comes of it: what all
    # values have in common stays
    differs = attention.keys() & {f"{OWN}.sinks", f"{OWN}.gate_proj.weight"}
    if {f"{OWN}.v_proj.bias", f"{OWN}.o_proj.bias"} <= attention.keys() and not differs:
        biases += (VALUE_BIAS,)
    templates = {"embed_tokens.weight": "vocab resid", **attention, **mlp, **dict.fromkeys(gains, "resid~"), **head}
    turned = None if post_norms else Orthogonal()
    return Spec(
        request.architecture,
        {
            "layer": Space(config.num_hidden_layers),
            "resid": decoder_stream(config.hidden_size, request.head, SignedPermutation, turned),
            **groups(config.num_attention_heads, config.num_key_value_heads),
            "vo": Space(head_width(config), Orthogonal(scaled=True), PER_GROUP, part="attention"),
            # mixtures say theirs otherwise
            "ffn": Space(getattr(config, "intermediate_size", 0), NEURONS, LAYER, part="ffn"),
            "vocab": Space(config.vocab_size),
            "label": labels(config),
            "span": Space(2),
            **spaces,
        },
        templates,
        prefix=base_prefix(request),
        absent=absent,
        tied=ties,
        norms=() if request.head == "Model" else tuple(norms),  # the last gain is in the output
        biases=biases,
        plus_one=tuple(name for name in templates if name.endswith("norm.weight")) if plus_one else (),
        buffers=(r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",),
        function_keys=(
            "num_attention_heads",
            "num_key_value_heads",
            # Gemma 2 and 3 run this one, whatever a file says of the other
            "hidden_activation" if hasattr(type(config), "hidden_activation") else "hidden_act",
            "rms_norm_eps",
            "is_causal",
            *tie_keys(ties),
            *rope_keys(config),
            *(() if own_head else PADDING_READ.get(request.head, ())),
            *keys,
        ),
    )


def branch_norm(gain: str, branch: Mapping[str, str]) -> Norm:
    """The norm in front of a branch, read by what has the stream as its last axis."""
    return Norm(gain, tuple(name for name, type_ in branch.items() if type_.endswith(" resid")), centred=False)


@declares("Llama", "llama", *ANSWERING)
def llama(request: Request) -> Spec:
    """Llama, with multi-head, grouped-query and multi-query attention."""
    return rmsnorm_decoder(request, *rotary_attention(request.config), gated(bias=request.config.mlp_bias))


@declares("SeedOss", "seed_oss", *ANSWERING)
def seed_oss(request: Request) -> Spec:
    """Seed-OSS. Without an output bias the value bias is no gauge."""
    config = request.config
    attention = projections(config.attention_bias, config.attention_out_bias)
    return rmsnorm_decoder(request, rotary(head_width(config)), attention, gated(bias=config.mlp_bias))


@declares("Granite", "granite", "Model", "ForCausalLM")
def granite(request: Request) -> Spec:
    """Granite 3. Its factors are the same for all coordinates, so every rotation passes them."""
    parts = *rotary_attention(request.config), gated(bias=request.config.mlp_bias)
    return rmsnorm_decoder(request, *parts, keys=GRANITE_KEYS)


@declares("Mistral", "mistral", *ANSWERING)
@declares("Ministral3", "ministral3", *ANSWERING)
def mistral(request: Request) -> Spec:
    """Mistral; Ministral 3 without its vision tower: queries grow with their position, by a factor."""
    basis = rotary(head_width(request.config))
    return rmsnorm_decoder(request, basis, projections(), gated(), keys=("sliding_window",))


@declares("Ministral", "ministral", *ANSWERING)
@declares("Cwm", "cwm", "Model", "ForCausalLM")
def ministral(request: Request) -> Spec:
    """Ministral of 2024, CWM: a window slides in some layers."""
    basis, mlp = rotary(head_width(request.config)), gated(bias=getattr(request.config, "mlp_bias", False))
    return rmsnorm_decoder(request, basis, projections(), mlp, keys=("sliding_window", "layer_types"))


@declares("Qwen2", "qwen2", *ANSWERING)
def qwen2(request: Request) -> Spec:
    """Qwen2 and 2.5. Without an output bias the value bias is no gauge."""
    basis = rotary(head_width(request.config))
    return rmsnorm_decoder(request, basis, projections(bias=True), gated(), keys=("sliding_window", "layer_types"))


@declares("Phi3", "phi3", *HEADS)
def phi3(request: Request) -> Spec:
    """Phi-3 and Phi-4: fused projections; of a head, only the first coordinates may be rotated."""
    config = request.config
    spaces, query, key = head_bases(head_width(config), PER_GROUP, partly_rotated(config))
    attention = {
        f"{OWN}.qkv_proj.weight": f"(kv rep {query} + kv {key} + kv vo) resid",
        f"{OWN}.o_proj.weight": "resid (kv rep vo')",
    }
    return rmsnorm_decoder(request, spaces, attention, fused_gated(), keys=("sliding_window",))


@declares("Gemma", "gemma", *HEADS)
def gemma(request: Request) -> Spec:
    """Gemma 1. The factor on its embeddings is the same for all coordinates, so every rotation passes it."""
    keys = ("use_bidirectional_attention",)
    return rmsnorm_decoder(request, *rotary_attention(request.config), gated(), plus_one=True, keys=keys)


@declares("Gemma2", "gemma2", *HEADS)
def gemma2(request: Request) -> Spec:
    """Gemma 2: post-norms besides the pre-norms."""
    return gemma_sandwich(request, *rotary_attention(request.config))


@declares("VaultGemma", "vaultgemma", "Model", "ForCausalLM")
def vaultgemma(request: Request) -> Spec:
    """VaultGemma: Gemma 2 without the post-norms, so that its stream can turn."""
    return gemma_sandwich(request, *rotary_attention(request.config), post_norms=())


def gemma_sandwich(
    request: Request, basis: dict[str, Space], attention: dict[str, str], post_norms: tuple[str, ...] = POST_NORMS
) -> Spec:
    """A Gemma with a norm before and, as a rule, behind each branch."""
    pre_norms = ("input_layernorm", "pre_feedforward_layernorm")
    both_ways = ("use_bidirectional_attention",) if hasattr(request.config, "use_bidirectional_attention") else ()
    keys = (*GEMMA_KEYS, *both_ways)
    return rmsnorm_decoder(request, basis, attention, gated(), pre_norms, post_norms, plus_one=True, keys=keys)
