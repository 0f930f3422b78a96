"""A declaration of one's own, for an architecture that cobasin does not know: StarCoder2.

    cobasin inspect MODEL --spec declare_starcoder2.py            its spaces and groups
    cobasin inspect MODEL --spec declare_starcoder2.py --check    is the declaration right?
    cobasin match A B --out C --spec declare_starcoder2.py

StarCoder2 is a pre-LayerNorm decoder: grouped queries under a half-split rotary embedding, a GELU, biases on all.
"""

from cobasin.architectures import Request, declares
from cobasin.architectures.parts import LAYER, layer_norm, linear, neurons
from cobasin.symmetry.gauges import Norm, ValueBias
from cobasin.symmetry.groups import Orthogonal, Permutation, Rotation2
from cobasin.symmetry.spec import Space, Spec

ATTENTION, MLP = "layers.{layer}.self_attn", "layers.{layer}.mlp"
BEFORE_ATTENTION, BEFORE_MLP = "layers.{layer}.input_layernorm", "layers.{layer}.post_attention_layernorm"
GROUP = ("layer", "kv")  # of queries with one key and one value


@declares("Starcoder2", "starcoder2", "ForCausalLM")
def starcoder2(request: Request) -> Spec:
    """StarCoder2: the order of heads and neurons, all bases that the rotary embedding leaves free, the stream."""
    config = request.config
    heads, groups, biased = config.num_attention_heads, config.num_key_value_heads, config.use_bias
    width = config.hidden_size // heads
    return Spec(
        request.architecture,
        spaces={
            "layer": Space(config.num_hidden_layers),
            "vocab": Space(config.vocab_size),
            "resid": Space(config.hidden_size, Permutation(), part="residual", folded=Orthogonal(fix_ones=True)),
            "kv": Space(groups, Permutation(), LAYER, part="heads"),
            "rep": Space(heads // groups, Permutation(), GROUP, part="heads"),
            "pair": Space(2, Rotation2(scaled=True), (*GROUP, "freq"), part="attention"),
            "freq": Space(width // 2),
            "vo": Space(width, Orthogonal(scaled=True), GROUP, part="attention"),
            "ffn": Space(config.intermediate_size, neurons(config.hidden_act), LAYER, part="ffn"),
        },
        templates={
            "embed_tokens.weight": "vocab resid",
            **layer_norm(BEFORE_ATTENTION),
            **linear(f"{ATTENTION}.q_proj", "(kv rep pair freq)", "resid", biased),
            **linear(f"{ATTENTION}.k_proj", "(kv pair' freq)", "resid", biased),
            **linear(f"{ATTENTION}.v_proj", "(kv vo)", "resid", biased),
            **linear(f"{ATTENTION}.o_proj", "resid", "(kv rep vo')", biased),
            **layer_norm(BEFORE_MLP),
            **linear(f"{MLP}.c_fc", "ffn", "resid", biased),
            **linear(f"{MLP}.c_proj", "resid", "ffn'", biased),
            **layer_norm("norm"),
            "lm_head.weight": "vocab resid",
        },
        prefix="model.",
        tied={"lm_head.weight": "embed_tokens.weight"} if config.tie_word_embeddings else {},
        norms=(
            Norm(
                f"{BEFORE_ATTENTION}.weight",
                tuple(f"{ATTENTION}.{name}_proj.weight" for name in "qkv"),
                f"{BEFORE_ATTENTION}.bias",
            ),
            Norm(f"{BEFORE_MLP}.weight", (f"{MLP}.c_fc.weight",), f"{BEFORE_MLP}.bias"),
            Norm("norm.weight", ("lm_head.weight",), "norm.bias"),
        ),
        biases=(ValueBias(f"{ATTENTION}.v_proj.bias", f"{ATTENTION}.o_proj.weight", f"{ATTENTION}.o_proj.bias"),)
        if biased
        else (),
        function_keys=(
            "num_attention_heads",
            "num_key_value_heads",
            "hidden_act",
            "norm_epsilon",
            "rope_parameters",
            "sliding_window",
            "tie_word_embeddings",
            # rotary scalings of these types read the length the model was made for
            *(
                ("max_position_embeddings",)
                if (config.rope_parameters or {}).get("rope_type") in ("dynamic", "longrope", "yarn")
                else ()
            ),
        ),
    )
