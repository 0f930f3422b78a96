"""Decoders: GPT-2 (pre-LayerNorm, learned positions) and Llama (RMSNorm, RoPE, GQA, SwiGLU)."""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures.parts import LAYER, attention, conv1d, labels, layer_norm, linear, neurons, require
from cobasin.symmetry.gauges import KeyBias, Norm, ValueBias
from cobasin.symmetry.groups import Orthogonal, Permutation, Rotation2, SignedPermutation
from cobasin.symmetry.spec import Space, Spec

PADDING_READ = {"ForSequenceClassification": ("pad_token_id",)}  # the last token before the padding is classified


def _output(request: Request, embedding: str) -> tuple[dict[str, str], dict[str, str]]:
    """The head's tensors and ties."""
    tied = request.config.tie_word_embeddings
    return {
        "Model": ({}, {}),
        "LMHeadModel": ({"lm_head.weight": "vocab resid"}, {"lm_head.weight": embedding} if tied else {}),
        "ForCausalLM": ({"lm_head.weight": "vocab resid"}, {"lm_head.weight": embedding} if tied else {}),
        "ForSequenceClassification": ({"score.weight": "label resid"}, {}),
        "ForTokenClassification": (
            linear("classifier" if request.config.model_type == "gpt2" else "score", "label", "resid"),
            {},
        ),
    }[request.head]


def _stream(size: int, head: str, generic: Permutation, folded: Orthogonal) -> Space:
    """The residual stream; fixed in a bare model, whose output it is."""
    if head == "Model":
        return Space(size, part="residual")
    return Space(size, generic, part="residual", folded=folded)


@declares("GPT2", "gpt2", "Model", "LMHeadModel", "ForSequenceClassification", "ForTokenClassification")
def gpt2(request: Request) -> Spec:
    """GPT-2: fused and transposed projections. Folding the final gain unties the head from the embedding."""
    config = request.config
    require(not config.add_cross_attention, "add_cross_attention")
    head, ties = _output(request, "wte.weight")
    fused, output = "h.{layer}.attn.c_attn", "h.{layer}.attn.c_proj"
    norms = (
        Norm("h.{layer}.ln_1.weight", (f"{fused}.weight",), "h.{layer}.ln_1.bias"),
        Norm("h.{layer}.ln_2.weight", ("h.{layer}.mlp.c_fc.weight",), "h.{layer}.ln_2.bias"),
        Norm("ln_f.weight", tuple(name for name in head if name.endswith("weight")), "ln_f.bias"),
    )
    return Spec(
        request.architecture,
        attention(config.n_head, config.n_embd // config.n_head)
        | {
            "layer": Space(config.n_layer),
            "resid": _stream(config.n_embd, request.head, Permutation(), Orthogonal(fix_ones=True)),
            "ffn": Space(config.n_inner or 4 * config.n_embd, neurons(config.activation_function), LAYER, part="ffn"),
            "vocab": Space(config.vocab_size),
            "pos": Space(config.n_positions),
            "label": labels(config),
        },
        {
            "wte.weight": "vocab resid",
            "wpe.weight": "pos resid",
            **layer_norm("h.{layer}.ln_1"),
            **conv1d(fused, "(head qk + head qk' + head vo)", "resid"),
            **conv1d(output, "resid", "(head vo')"),
            **layer_norm("h.{layer}.ln_2"),
            **conv1d("h.{layer}.mlp.c_fc", "ffn", "resid"),
            **conv1d("h.{layer}.mlp.c_proj", "resid", "ffn'"),
            **layer_norm("ln_f"),
            **head,
        },
        prefix="transformer.",
        tied=ties,
        norms=() if request.head == "Model" else norms,
        biases=(
            KeyBias(f"{fused}.bias", block=1),
            ValueBias(f"{fused}.bias", f"{output}.weight", f"{output}.bias", block=2),
        ),
        buffers=(r"h\.\d+\.attn\.(bias|masked_bias)",),
        function_keys=(
            "n_head",
            "activation_function",
            "layer_norm_epsilon",
            "scale_attn_weights",
            "scale_attn_by_inverse_layer_idx",
            "reorder_and_upcast_attn",
            "tie_word_embeddings",
            *PADDING_READ.get(request.head, ()),
        ),
    )


@declares("Llama", "llama", "Model", "ForCausalLM", "ForSequenceClassification", "ForTokenClassification")
def llama(request: Request) -> Spec:
    """Llama, with multi-head, grouped-query and multi-query attention.

    Queries of a KV group share its key, so a group has one rotation per frequency for all its heads. The gate
    of SwiGLU passes an activation: only (up, down) may change sign and scale.
    """
    config = request.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    head, ties = _output(request, "embed_tokens.weight")
    own, mlp = "layers.{layer}.self_attn", "layers.{layer}.mlp"
    biased, mlp_biased = config.attention_bias, config.mlp_bias
    rope = config.rope_parameters or {}
    per_group = ("layer", "kv")
    norms = (
        Norm(
            "layers.{layer}.input_layernorm.weight",
            tuple(f"{own}.{name}_proj.weight" for name in "qkv"),
            centred=False,
        ),
        Norm(
            "layers.{layer}.post_attention_layernorm.weight",
            (f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight"),
            centred=False,
        ),
        Norm("norm.weight", tuple(name for name in head if name.endswith("weight")), centred=False),
    )
    return Spec(
        request.architecture,
        {
            "layer": Space(config.num_hidden_layers),
            "resid": _stream(config.hidden_size, request.head, SignedPermutation, Orthogonal()),
            "kv": Space(config.num_key_value_heads, Permutation(), LAYER, part="heads"),
            "rep": Space(
                config.num_attention_heads // config.num_key_value_heads,
                Permutation(),
                per_group,
                part="heads",
            ),
            "pair": Space(2, Rotation2(scaled=True), (*per_group, "freq"), part="attention"),
            "freq": Space(width // 2),
            "vo": Space(width, Orthogonal(scaled=True), per_group, part="attention"),
            "ffn": Space(config.intermediate_size, Permutation(signed=True, scaled=True), LAYER, part="ffn"),
            "vocab": Space(config.vocab_size),
            "label": labels(config),
        },
        {
            "embed_tokens.weight": "vocab resid",
            "layers.{layer}.input_layernorm.weight": "resid~",
            **linear(f"{own}.q_proj", "(kv rep pair freq)", "resid", biased),
            **linear(f"{own}.k_proj", "(kv pair' freq)", "resid", biased),
            **linear(f"{own}.v_proj", "(kv vo)", "resid", biased),
            **linear(f"{own}.o_proj", "resid", "(kv rep vo')", biased),
            "layers.{layer}.post_attention_layernorm.weight": "resid~",
            **linear(f"{mlp}.gate_proj", "ffn~", "resid", mlp_biased),
            **linear(f"{mlp}.up_proj", "ffn", "resid", mlp_biased),
            **linear(f"{mlp}.down_proj", "resid", "ffn'", mlp_biased),
            "norm.weight": "resid~",
            **head,
        },
        prefix="model.",
        tied=ties,
        norms=() if request.head == "Model" else norms,
        biases=(ValueBias(f"{own}.v_proj.bias", f"{own}.o_proj.weight", f"{own}.o_proj.bias"),) if biased else (),
        buffers=(r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",),
        function_keys=(
            "num_attention_heads",
            "num_key_value_heads",
            "hidden_act",
            "rms_norm_eps",
            "rope_parameters",
            "tie_word_embeddings",
            *PADDING_READ.get(request.head, ()),
            # rotary scalings of these types read the length the model was made for
            *(("max_position_embeddings",) if rope.get("rope_type") in ("dynamic", "longrope", "yarn") else ()),
        ),
    )
