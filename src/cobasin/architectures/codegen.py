"""CodeGen: GPT-J whose queries, values and keys are fused in four blocks, each with a quarter of the heads."""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures.layernorm_decoder import layer_norm_decoder, layers_of
from cobasin.architectures.parts import LAYER, groups, head_bases, linear, neurons, output_head
from cobasin.symmetry.spec import Space, Spec

BLOCKS = 4


@declares("CodeGen", "codegen", "Model", "ForCausalLM")
def codegen(request: Request) -> Spec:
    """CodeGen. A block is a group of heads; that heads of several blocks could change places is left out."""
    config = request.config
    over = ("layer", "kv", "rep")
    bases, query, key = head_bases(config.n_embd // config.n_head, over, config.rotary_dim, "freq pair")
    own, mlp = "h.{layer}.attn", "h.{layer}.mlp"
    head, ties = output_head(request, "wte.weight", biased=True)
    return layer_norm_decoder(
        request,
        (head, ties),
        bases
        | groups(config.n_head, BLOCKS)
        | {"ffn": Space(config.n_inner or 4 * config.n_embd, neurons(config.activation_function), LAYER, part="ffn")},
        {
            "wte.weight": "vocab resid",
            f"{own}.qkv_proj.weight": f"(kv (rep {query} + rep vo + rep {key})) resid",
            f"{own}.out_proj.weight": "resid (kv rep vo')",
            **linear(f"{mlp}.fc_in", "ffn", "resid"),
            **linear(f"{mlp}.fc_out", "resid", "ffn'"),
        },
        {"h.{layer}.ln_1": (f"{own}.qkv_proj", f"{mlp}.fc_in"), "ln_f": layers_of(head)},
        (),
        ("n_head", "rotary_dim", "activation_function", "layer_norm_epsilon"),
        "transformer.",
    )
