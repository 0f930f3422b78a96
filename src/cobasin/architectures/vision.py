"""Pre-LayerNorm vision transformers: ViT."""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures.parts import LAYER, attention, labels, layer_norm, linear, neurons
from cobasin.symmetry.gauges import KeyBias, Norm, ValueBias
from cobasin.symmetry.groups import Orthogonal, Permutation
from cobasin.symmetry.spec import Space, Spec


@declares("ViT", "vit", "Model", "ForImageClassification")
def vit(request: Request) -> Spec:
    """ViT. A bare model shows the stream behind its last norm as output: there it is fixed."""
    config = request.config
    bare = request.head == "Model"
    layer, own = "encoder.layer.{layer}", "encoder.layer.{layer}.attention.attention"
    (height, width), (down, right) = (
        size if isinstance(size, (list, tuple)) else (size, size) for size in (config.image_size, config.patch_size)
    )
    projections = [f"{own}.query", f"{own}.key", f"{own}.value"]
    biased = config.qkv_bias
    spaces = attention(config.num_attention_heads, config.hidden_size // config.num_attention_heads) | {
        "layer": Space(config.num_hidden_layers),
        "resid": Space(
            config.hidden_size,
            None if bare else Permutation(),
            part="residual",
            folded=None if bare else Orthogonal(fix_ones=True),
        ),
        "ffn": Space(config.intermediate_size, neurons(config.hidden_act), LAYER, part="ffn"),
        "channel": Space(config.num_channels),
        "patch": Space(config.patch_size),
        "pos": Space((height // down) * (width // right) + 1),
        "pool": Space(config.pooler_output_size),
        "label": labels(config),
    }
    if not bare:
        head = linear("classifier", "label", "resid")
    else:
        head = linear("pooler.dense", "pool", "resid") if request.has("pooler.dense.weight") else {}
    output = f"{layer}.attention.output.dense"
    return Spec(
        request.architecture,
        spaces,
        {
            "embeddings.cls_token": "1 1 resid",
            "embeddings.position_embeddings": "1 pos resid",
            "embeddings.patch_embeddings.projection.weight": "resid channel patch patch",
            "embeddings.patch_embeddings.projection.bias": "resid",
            **layer_norm(f"{layer}.layernorm_before"),
            **linear(projections[0], "(head qk)", "resid", biased),
            **linear(projections[1], "(head qk')", "resid", biased),
            **linear(projections[2], "(head vo)", "resid", biased),
            **linear(output, "resid", "(head vo')"),
            **layer_norm(f"{layer}.layernorm_after"),
            **linear(f"{layer}.intermediate.dense", "ffn", "resid"),
            **linear(f"{layer}.output.dense", "resid", "ffn'"),
            **layer_norm("layernorm"),
            **head,
        },
        prefix="vit.",
        norms=()
        if bare
        else (
            Norm(
                f"{layer}.layernorm_before.weight",
                tuple(f"{name}.weight" for name in projections),
                f"{layer}.layernorm_before.bias",
            ),
            Norm(
                f"{layer}.layernorm_after.weight",
                (f"{layer}.intermediate.dense.weight",),
                f"{layer}.layernorm_after.bias",
            ),
            Norm("layernorm.weight", ("classifier.weight",), "layernorm.bias"),
        ),
        biases=(
            KeyBias(f"{own}.key.bias"),
            ValueBias(f"{own}.value.bias", f"{output}.weight", f"{output}.bias"),
        )
        if biased
        else (),
        function_keys=(
            "num_attention_heads",
            "hidden_act",
            "layer_norm_eps",
            "image_size",
            "patch_size",
            "pooler_act",
        ),
    )
