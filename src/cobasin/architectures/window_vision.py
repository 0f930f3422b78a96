"""Swin 1 and 2: attention within windows, in stages whose streams are twice as wide as those before.

Four patches become one between stages. In Swin the norm of that is over the four at once, and windows are padded behind
the norms, so that none of these can move into what reads it; in Swin 2 norms are behind the branches.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from cobasin.architectures import Request, declares
from cobasin.architectures.joining import relabelled
from cobasin.architectures.parts import LAYER, Parts, labels, layer_norm, linear, require
from cobasin.architectures.vision import VIT, pictures, pre_norm
from cobasin.symmetry.gauges import SoftmaxShift
from cobasin.symmetry.groups import Orthogonal, Permutation
from cobasin.symmetry.spec import Space, Spec

OWN = "attention.self"
BLOCK = VIT._replace(query=f"{OWN}.query", key=f"{OWN}.key", value=f"{OWN}.value")
TABLE, NETWORK = f"{OWN}.relative_position_bias_table", f"{OWN}.continuous_position_bias_mlp"


def _offsets(request: Request, cosines: bool) -> Parts:
    """What tells a head how far patches lie apart: a table, or a network, and how much cosines count."""
    if not cosines:
        return {"offset": Space((2 * request.config.window_size - 1) ** 2)}, {TABLE: "offset head"}
    spaces = {"cell": Space(512, Permutation(scaled=True), LAYER, part="ffn"), "side": Space(2)}
    network = linear(f"{NETWORK}.0", "cell", "side") | {f"{NETWORK}.2.weight": "head cell'"}
    return spaces, network | {f"{OWN}.logit_scale": "head 1 1"}


def _stage(request: Request, index: int, cosines: bool) -> Spec:
    """One stage, its spaces named after it."""
    config, biased, (spaces, tensors) = request.config, request.config.qkv_bias, _offsets(request, cosines)
    width, layer = config.embed_dim * 2**index, f"encoder.layers.{index}.blocks.{{layer}}"
    spec = pre_norm(
        request.architecture,
        SimpleNamespace(
            hidden_size=width,
            num_attention_heads=config.num_heads[index],
            num_hidden_layers=config.depths[index],
            intermediate_size=int(config.mlp_ratio * width),
            hidden_act=config.hidden_act,
        ),
        BLOCK._replace(layer=layer),
        {"resid": Space(width, Permutation(), part="residual"), **spaces},
        {f"{layer}.{name}": type_ for name, type_ in tensors.items()},
        final="",
        head={},
        biased=(biased, biased and not cosines, biased),
        biases=() if cosines else (SoftmaxShift(f"{layer}.{TABLE}", "offset", "attention"),),
    )
    if cosines:
        spec = replace(spec, spaces={**spec.spaces, "qk": replace(spec.spaces["qk"], group=Orthogonal())})
    return relabelled(spec, space=lambda name: f"stage{index}_{name}")


@declares("Swin", "swin", "ForImageClassification")
@declares("Swinv2", "swinv2", "ForImageClassification")
def swin(request: Request) -> Spec:
    """Swin, and Swin 2, of whose queries and keys cosines are read. The stream of every stage is a space of its own.

    Donut's, which is a part of another model, has no norm in the end.
    """
    config, last = request.config, len(request.config.depths) - 1
    cosines, donut = config.model_type == "swinv2", config.model_type == "donut-swin"
    # Transformers gives it a row too many, and does not run it
    require(not (donut and config.use_absolute_embeddings), "encoder.use_absolute_embeddings")
    stages = [_stage(request, i, cosines) for i in range(last + 1)]
    templates = linear("embeddings.patch_embeddings.projection", "stage0_resid", "channel down right")
    templates |= layer_norm("embeddings.norm", "stage0_resid")
    if config.use_absolute_embeddings:
        templates["embeddings.position_embeddings"] = "1 pos stage0_resid"
    for i, stage in enumerate(stages):
        templates |= stage.templates
        if i < last:
            name, four, one = f"encoder.layers.{i}.downsample", f"(quarter stage{i}_resid)", f"stage{i + 1}_resid"
            templates |= linear(f"{name}.reduction", one, four, bias=False)
            templates |= layer_norm(f"{name}.norm", one if cosines else four)
    templates |= {} if donut else layer_norm("layernorm", f"stage{last}_resid")
    templates |= linear("classifier", "label", f"stage{last}_resid")
    spaces = {name: space for stage in stages for name, space in stage.spaces.items()}
    return Spec(
        request.architecture,
        {**pictures(config, 0), "quarter": Space(4), "label": labels(config), **spaces},
        templates,
        prefix=f"{config.model_type}.",
        biases=tuple(bias for stage in stages for bias in stage.biases),
        buffers=(r".*\.relative_(position_index|coords_table)",),
        function_keys=(
            *("num_heads", "hidden_act", "layer_norm_eps", "patch_size", "window_size"),
            *(("pretrained_window_sizes", "image_size") if cosines else ()),  # no window is larger than its stage
        ),
    )
