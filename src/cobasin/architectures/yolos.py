"""YOLOS: a vision transformer with tokens for what it finds in a picture."""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.parts import labels, linear, neurons
from cobasin.architectures.vision import FUNCTION_KEYS, PICTURE_KEYS, VIT, grid, vision_transformer
from cobasin.symmetry.spec import Space, Spec

CLASSES, BOXES = "class_labels_classifier", "bbox_predictor"


def _network(name: str, out: str) -> dict[str, str]:
    """What follows the first layer of a head of three."""
    return linear(f"{name}.layers.1", f"{out}_second", f"{out}_first'") | linear(
        f"{name}.layers.2", out, f"{out}_second'"
    )


@declares("Yolos", "yolos", "ForObjectDetection")
def yolos(request: Request) -> Spec:
    """YOLOS: a class and a box of every token; positions are added to the stream in front of every layer, too."""
    config, (rows, columns) = request.config, grid(request.config)
    hidden = Space(config.hidden_size, neurons("relu"), part="ffn")
    spec = vision_transformer(
        request,
        VIT,
        {"cls_token": "1 1 resid", "detection_tokens": "1 detection resid"},
        linear(f"{CLASSES}.layers.0", "class_first", "resid") | linear(f"{BOXES}.layers.0", "box_first", "resid"),
        spaces={
            "detection": Space(config.num_detection_tokens),
            "pos": Space(rows * columns + 1 + config.num_detection_tokens),
            "between": Space(config.num_hidden_layers - 1),
            "class": Space(labels(config).size + 1),  # or nothing
            "box": Space(4),
            **{f"{out}_{layer}": hidden for out in ("class", "box") for layer in ("first", "second")},
        },
        prefix="vit.",
        biased=(config.qkv_bias,) * 3,
        function_keys=(*FUNCTION_KEYS, *PICTURE_KEYS),
    )
    between = {"encoder.mid_position_embeddings": "between 1 pos resid"} if config.use_mid_position_embeddings else {}
    further = _network(CLASSES, "class") | _network(BOXES, "box")
    return replace(spec, templates={**between, **spec.templates, **further})
