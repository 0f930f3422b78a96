"""A declaration of one's own, for an architecture that cobasin does not know: HyperCLOVA X.

    cobasin inspect MODEL --spec declare_hyperclovax.py            its spaces and groups
    cobasin inspect MODEL --spec declare_hyperclovax.py --check    is the declaration right?
    cobasin match A B --out C --spec declare_hyperclovax.py

HyperCLOVA X is a decoder with RMSNorms: grouped queries under a half-split rotary embedding, a SwiGLU, and factors that
are the same for all coordinates. Norms behind its branches, where it has them, keep their gains in the stream.
"""

from cobasin.architectures import Request, declares
from cobasin.architectures.parts import LAYER, NEURONS, linear, rope_keys
from cobasin.symmetry.gauges import Norm, ValueBias
from cobasin.symmetry.groups import Orthogonal, Permutation, Rotation2, SignedPermutation
from cobasin.symmetry.spec import Space, Spec

ATTENTION, MLP = "layers.{layer}.self_attn", "layers.{layer}.mlp"
BEFORE_ATTENTION, BEFORE_MLP = "layers.{layer}.input_layernorm", "layers.{layer}.post_attention_layernorm"
BEHIND = ("layers.{layer}.post_norm1", "layers.{layer}.post_norm2")
GROUP = ("layer", "kv")  # of queries with one key and one value


@declares("HyperCLOVAX", "hyperclovax", "ForCausalLM")
def hyperclovax(request: Request) -> Spec:
    """HyperCLOVA X: the order of heads and neurons, all bases that the rotary embedding leaves free, the stream."""
    config = request.config
    heads, groups, biased = config.num_attention_heads, config.num_key_value_heads, config.attention_bias
    behind = BEHIND if config.use_post_norm else ()
    return Spec(
        request.architecture,
        spaces={
            "layer": Space(config.num_hidden_layers),
            "vocab": Space(config.vocab_size),
            "resid": Space(
                config.hidden_size, SignedPermutation, part="residual", folded=None if behind else Orthogonal()
            ),
            "kv": Space(groups, Permutation(), LAYER, part="heads"),
            "rep": Space(heads // groups, Permutation(), GROUP, part="heads"),
            "pair": Space(2, Rotation2(scaled=True), (*GROUP, "freq"), part="attention"),
            "freq": Space(config.head_dim // 2),
            "vo": Space(config.head_dim, Orthogonal(scaled=True), GROUP, part="attention"),
            "ffn": Space(config.intermediate_size, NEURONS, LAYER, part="ffn"),
        },
        templates={
            "embed_tokens.weight": "vocab resid",
            **linear(f"{ATTENTION}.q_proj", "(kv rep pair freq)", "resid", biased),
            **linear(f"{ATTENTION}.k_proj", "(kv pair' freq)", "resid", biased),
            **linear(f"{ATTENTION}.v_proj", "(kv vo)", "resid", biased),
            **linear(f"{ATTENTION}.o_proj", "resid", "(kv rep vo')", biased),
            **linear(f"{MLP}.gate_proj", "ffn~", "resid", config.mlp_bias),
            **linear(f"{MLP}.up_proj", "ffn", "resid", config.mlp_bias),
            **linear(f"{MLP}.down_proj", "resid", "ffn'", config.mlp_bias),
            **{f"{norm}.weight": "resid~" for norm in (BEFORE_ATTENTION, BEFORE_MLP, *behind, "norm")},
            "lm_head.weight": "vocab resid",
        },
        prefix="model.",
        tied={"lm_head.weight": "embed_tokens.weight"} if config.tie_word_embeddings else {},
        norms=()
        if behind
        else (
            Norm(
                f"{BEFORE_ATTENTION}.weight", tuple(f"{ATTENTION}.{name}_proj.weight" for name in "qkv"), centred=False
            ),
            Norm(f"{BEFORE_MLP}.weight", tuple(f"{MLP}.{name}_proj.weight" for name in ("gate", "up")), centred=False),
            Norm("norm.weight", ("lm_head.weight",), centred=False),
        ),
        biases=(ValueBias(f"{ATTENTION}.v_proj.bias", f"{ATTENTION}.o_proj.weight", f"{ATTENTION}.o_proj.bias"),)
        if biased
        else (),
        function_keys=(
            "num_attention_heads",
            "num_key_value_heads",
            "hidden_act",
            "rms_norm_eps",
            "embedding_multiplier",
            "attention_multiplier",
            "residual_multiplier",
            "logits_scaling",
            "tie_word_embeddings",
            *rope_keys(config),
        ),
    )
