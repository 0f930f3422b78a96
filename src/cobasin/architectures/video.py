"""VideoMAE: vision transformers that see clips, cut into patches over a few frames each."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cobasin.architectures import Request, declares
from cobasin.architectures.joining import joined, relabelled
from cobasin.architectures.masked_autoencoder import of_decoder
from cobasin.architectures.parts import labels, layer_norm, linear, require
from cobasin.architectures.vision import FUNCTION_KEYS, PICTURE_KEYS, VIT, Names, pictures, pre_norm
from cobasin.symmetry.spec import Space, Spec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

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
