"""Vision transformers that see clips: VideoMAE and ViViT, whose patches span a few frames each, and TimeSformer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cobasin.architectures import Request, declares
from cobasin.architectures.encoder_decoder import heads
from cobasin.architectures.joining import joined, relabelled
from cobasin.architectures.masked_autoencoder import of_decoder
from cobasin.architectures.parts import LAYER, Parts, labels, layer_norm, linear, require, sides
from cobasin.architectures.vision import (
    FUNCTION_KEYS,
    PICTURE_KEYS,
    VIT,
    Names,
    free_stream,
    grid,
    norm_before,
    pictures,
    pre_norm,
    require_squares,
    vision_transformer,
)
from cobasin.symmetry.gauges import FreeGauge, KeyBias, ValueBias
from cobasin.symmetry.groups import Orthogonal
from cobasin.symmetry.spec import Space, Spec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

QKV = "attention.attention.qkv"
SIZES = ("image_size", "num_frames", "tubelet_size")
FUSED = VIT._replace(query=QKV, key=QKV, value=QKV)
TEMPORAL = "encoder.layer.{layer}.temporal"
DECODER = VIT._replace(layer="decoder.decoder_layers.{layer}")


def _stack(request: Request, config: PreTrainedConfig, names: Names, tensors: dict[str, str], **options) -> Spec:
    """Pre-norm layers, whose stream no group moves: sines that no file holds are added to it."""
    spaces = {"resid": Space(config.hidden_size, part="residual"), **pictures(config, 0), "label": labels(config)}
    spaces |= {"time": Space(config.tubelet_size)}
    biased = (config.qv_bias, False, config.qv_bias)
    spec = pre_norm(request.architecture, config, names, spaces, {}, "", tensors, biased=biased, **options)
    return relabelled(spec, name=lambda name: name.replace("query.bias", "q_bias").replace("value.bias", "v_bias"))


@declares("VideoMAE", "videomae", "Model", "ForVideoClassification", "ForPreTraining")
def videomae(request: Request) -> Spec:
    """VideoMAE: ViT over clips, with a norm behind the last layer or behind the mean; a decoder as ViT-MAE has."""
    config = request.config
    shown = (config.num_frames // max(config.tubelet_size, 1), *grid(config))
    require(min(shown) > 0, "num_frames or image_size of less than a patch")
    tensors = linear("embeddings.patch_embeddings.projection", "resid", "channel time down right")
    if not config.use_mean_pooling:
        tensors |= layer_norm("layernorm")
    if request.head == "ForVideoClassification":
        tensors |= layer_norm("fc_norm") if config.use_mean_pooling else {}
        tensors |= linear("classifier", "label", "resid")
    # num_frames and image_size make the sines
    keys = (*FUNCTION_KEYS, *PICTURE_KEYS, "num_frames", "tubelet_size", "use_mean_pooling")
    # of pre-training: it reads the encoder's output, which a bare model shows
    further = (r"decoder\..*", r"encoder_to_decoder\..*", "mask_token") if request.head == "Model" else ()
    spec = _stack(request, config, VIT, tensors, prefix="videomae.", buffers=further, function_keys=keys)
    if request.head != "ForPreTraining":
        return spec
    require(isinstance(config.patch_size, int), "patch_size of height and width beside a decoder")
    tensors = {"mask_token": "1 1 resid", **layer_norm("decoder.norm")}
    tensors |= linear("decoder.head", "(time down right channel)", "resid")
    between = {"encoder_to_decoder.weight": "decoder_resid resid"}
    both = joined(spec, _stack(request, of_decoder(config), DECODER, tensors), between, "decoder_")
    return replace(both, function_keys=(*keys, "decoder_num_attention_heads"))


def _over_time(config: PreTrainedConfig) -> tuple[*Parts, tuple[FreeGauge, ...]]:
    """Spaces, templates and free biases of attention of a patch to itself in all frames, behind a norm of its own.

    Two linear layers are behind it, one upon the other: any rotation will do between them.
    """
    own, count = f"{TEMPORAL}_attention", config.num_attention_heads
    fused, output, last = f"{own}.attention.qkv", f"{own}.output.dense", f"{TEMPORAL}_dense"
    spaces = heads("time_", count, config.hidden_size // count, "layer")
    spaces["between"] = Space(config.hidden_size, Orthogonal(), LAYER, part="attention")
    rows = "(time_head time_qk + time_head time_qk' + time_head time_vo)"
    templates = {
        **linear(fused, rows, "resid", config.qkv_bias),
        **linear(output, "between", "(time_head time_vo')"),
        **linear(last, "resid", "between'"),
        **layer_norm(f"{TEMPORAL}_layernorm"),
    }
    if not config.qkv_bias:
        return spaces, templates, (ValueBias(f"{output}.bias", f"{last}.weight", f"{last}.bias"),)
    # what would move on from there through a second layer is left out
    values = ValueBias(f"{fused}.bias", f"{output}.weight", f"{output}.bias", 2)
    return spaces, templates, (KeyBias(f"{fused}.bias", 1), values)


@declares("Timesformer", "timesformer", "Model", "ForVideoClassification")
def timesformer(request: Request) -> Spec:
    """TimeSformer: ViT over frames, which attends over time in layers of their own, in the same ones, or not at all."""
    config, bare = request.config, request.head == "Model"
    require_squares(config)
    spaces, templates, biases = _over_time(config) if config.attention_type == "divided_space_time" else ({}, {}, ())
    tokens = {"cls_token": "1 1 resid"}
    if config.attention_type != "space_only":
        tokens["time_embeddings"] = "1 frame resid"
    folding = (norm_before([f"{TEMPORAL}_attention.attention.qkv.weight"], f"{TEMPORAL}_layernorm"),)
    spec = vision_transformer(
        request,
        FUSED,
        tokens,
        {} if bare else linear("classifier", "label", "resid"),
        spaces | {"frame": Space(config.num_frames)},
        biased=(config.qkv_bias,) * 3,
        biases=biases,
        norms=folding if templates and not bare else (),
        function_keys=(*FUNCTION_KEYS, *PICTURE_KEYS),
    )
    return replace(spec, templates={**spec.templates, **templates})


@declares("Vivit", "vivit", "Model", "ForVideoClassification")
def vivit(request: Request) -> Spec:
    """ViViT: ViT over clips, all of whose patches see each other."""
    config, bare = request.config, request.head == "Model"
    time, down, right = config.tubelet_size
    height, width = sides(config.image_size)
    patches = (config.num_frames // time) * (height // down) * (width // right)
    pooled = bare and request.has("pooler.dense.weight")
    spaces = {
        "channel": Space(config.num_channels),
        "time": Space(time),
        "down": Space(down),
        "right": Space(right),
        "pos": Space(patches + 1),
        "resid": Space(config.hidden_size, part="residual") if bare else free_stream(config.hidden_size),
        "pool": Space(config.pooler_output_size),
        "label": labels(config),
    }
    embeddings = {
        "embeddings.cls_token": "1 1 resid",
        "embeddings.position_embeddings": "1 pos resid",
        **linear("embeddings.patch_embeddings.projection", "resid", "channel time down right"),
        **(linear("pooler.dense", "pool", "resid") if pooled else {}),
    }
    return pre_norm(
        request.architecture,
        config,
        VIT,
        spaces,
        embeddings,
        "layernorm",
        {} if bare else linear("classifier", "label", "resid"),
        biased=(config.qkv_bias,) * 3,
        prefix="vivit.",
        function_keys=(*FUNCTION_KEYS, *SIZES, *(("pooler_act",) if pooled else ())),
    )
