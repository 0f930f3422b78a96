"""LayoutLMv3: a RoBERTa that reads a page, its words with their places and its picture in patches.

The tables of places are put side by side to be added to the stream: each writes a piece of it, those of both corners
the same two. So channels keep to their piece, and the two pieces of a table change their order together.
"""

from __future__ import annotations

import re
from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.encoder import bert_spec, token_head
from cobasin.architectures.joining import without_keys
from cobasin.architectures.parts import layer_norm, linear, require, sides
from cobasin.symmetry.gauges import SoftmaxShift
from cobasin.symmetry.groups import Permutation
from cobasin.symmetry.spec import Space, Spec

OF_BERT = ("is_decoder", "position_embedding_type")  # config keys that it does not read
STREAM = "(x + y + x + y + high + wide)"
TABLES = {"x": "x", "y": "y", "h": "high", "w": "wide"}
HEADS = ("Model", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
BIASES = {"rel_pos_bias": "bucket", "rel_pos_x_bias": "far", "rel_pos_y_bias": "far"}


def _head(request: Request) -> dict[str, str]:
    few = request.head == "ForTokenClassification" and (request.config.num_labels or 0) < 10
    if few or request.head == "Model":
        return token_head(request)
    name = "qa_outputs" if request.head == "ForQuestionAnswering" else "classifier"
    return linear(f"{name}.dense", "pool", "resid") | linear(f"{name}.out_proj", "label", "pool")


def _picture(config) -> tuple[dict[str, Space], dict[str, str]]:
    """Spaces and tensors of the patches, and of the norm behind words and patches."""
    if not config.visual_embed:
        return {}, {}
    down, right = sides(config.patch_size)
    rows, columns = (side // step for side, step in zip(sides(config.input_size), (down, right), strict=True))
    spaces = {"patch": rows * columns + 1, "channel": config.num_channels, "down": down, "right": right}
    return {name: Space(size) for name, size in spaces.items()}, {
        **linear("patch_embed.proj", "resid", "channel down right"),
        "cls_token": "1 1 resid",
        "pos_embed": "1 patch resid",
        **layer_norm("norm"),
        **layer_norm("LayerNorm"),
    }


@declares("LayoutLMv3", "layoutlmv3", *HEADS)
def layoutlmv3(request: Request) -> Spec:
    """LayoutLMv3. Position biases of the first layer serve all layers, and tie the order of their heads."""
    config = request.config
    require(config.text_embed, "text_embed = false")
    near, spatial = config.has_relative_attention_bias, config.has_spatial_attention_bias
    require(near or not spatial, "has_relative_attention_bias = false with has_spatial_attention_bias")
    spec = without_keys(bert_spec(request, _head(request), {}, "layoutlmv3."), *OF_BERT)
    places, picture = _picture(config)
    tables = {f"embeddings.{side}_position_embeddings.weight": f"place {space}" for side, space in TABLES.items()}
    kinds = [kind for kind, there in (("bucket", near), ("far", spatial)) if there]
    biases = {f"encoder.{name}.weight": f"head {kind}" for name, kind in BIASES.items() if kind in kinds}
    order = spec.spaces["resid"].group
    corner, extent = config.coordinate_size, config.shape_size
    pieces = {"x": corner, "y": corner, "high": extent, "wide": extent}
    templates = {**spec.templates, **tables, **picture, **biases}
    return replace(
        spec,
        spaces={name: space for name, space in spec.spaces.items() if name != "resid"}
        | places
        | {name: Space(size, order, part="residual") for name, size in pieces.items()}
        | {
            "head": Space(config.num_attention_heads, Permutation(), () if near else ("layer",), part="heads"),
            "place": Space(config.max_2d_position_embeddings),
            "bucket": Space(config.rel_pos_bins),
            "far": Space(config.rel_2d_pos_bins),
        },
        templates={name: re.sub(r"\bresid\b", STREAM, type_) for name, type_ in templates.items()},
        biases=(*spec.biases, *(SoftmaxShift(name, type_.split()[1], "attention") for name, type_ in biases.items())),
        function_keys=(
            *(*spec.function_keys, "pad_token_id"),  # positions are counted from it
            *(("max_rel_pos",) if near else ()),
            *(("max_rel_2d_pos",) if spatial else ()),
        ),
    )
