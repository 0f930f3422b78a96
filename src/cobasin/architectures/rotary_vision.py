"""DINOv3: a pre-LayerNorm vision transformer with a rotary embedding of rows and columns.

It comes as a bare model, whose output is the stream: there the stream is fixed, and gains and layer scales stay as
they are. A half of a head's frequencies turns with the row of a patch, the other with its column; class token and
registers are not turned, as if they stood in the middle.
"""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures.parts import LAYER, attention, layer_norm, linear, neurons, sides
from cobasin.symmetry.gauges import ValueBias
from cobasin.symmetry.spec import Space, Spec

OWN, MLP = "layer.{layer}.attention", "layer.{layer}.mlp"


@declares("DINOv3ViT", "dinov3_vit", "Model")
def dinov3(request: Request) -> Spec:
    """DINOv3. Keys see the rotary embedding, so that no softmax cancels their bias."""
    config = request.config
    width, (down, right) = config.hidden_size // config.num_attention_heads, sides(config.patch_size)
    group = neurons(config.hidden_act, config.use_gated_mlp)
    value = ValueBias(f"{OWN}.v_proj.bias", f"{OWN}.o_proj.weight", f"{OWN}.o_proj.bias")
    return Spec(
        request.architecture,
        {
            "layer": Space(config.num_hidden_layers),
            "resid": Space(config.hidden_size, part="residual"),
            **attention(config.num_attention_heads, width, rotated=width),
            "ffn": Space(config.intermediate_size, group, LAYER, part="ffn"),
            "channel": Space(config.num_channels),
            "down": Space(down),
            "right": Space(right),
            "register": Space(config.num_register_tokens),
        },
        _templates(config),
        prefix="model.",  # of the layers alone, in files that have the names of Transformers 5
        biases=(value,) if config.value_bias and config.proj_bias else (),
        function_keys=("num_attention_heads", "hidden_act", "layer_norm_eps", "rope_theta", "patch_size"),
    )


def _templates(config) -> dict[str, str]:
    gate = linear(f"{MLP}.gate_proj", "ffn~", "resid", config.mlp_bias) if config.use_gated_mlp else {}
    tokens = {"cls_token": "1 1 resid", "mask_token": "1 1 resid", "register_tokens": "1 register resid"}
    return {
        **{f"embeddings.{name}": type_ for name, type_ in tokens.items()},
        **linear("embeddings.patch_embeddings", "resid", "channel down right"),
        **layer_norm("layer.{layer}.norm1"),
        **linear(f"{OWN}.q_proj", "(head pair freq)", "resid", config.query_bias),
        **linear(f"{OWN}.k_proj", "(head pair' freq)", "resid", config.key_bias),
        **linear(f"{OWN}.v_proj", "(head vo)", "resid", config.value_bias),
        **linear(f"{OWN}.o_proj", "resid", "(head vo')", config.proj_bias),
        **layer_norm("layer.{layer}.norm2"),
        **gate,
        **linear(f"{MLP}.up_proj", "ffn", "resid", config.mlp_bias),
        **linear(f"{MLP}.down_proj", "resid", "ffn'", config.mlp_bias),
        **dict.fromkeys(("layer.{layer}.layer_scale1.lambda1", "layer.{layer}.layer_scale2.lambda1"), "resid"),
        **layer_norm("norm"),
    }
