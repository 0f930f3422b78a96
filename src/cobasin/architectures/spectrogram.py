"""The Audio Spectrogram Transformer: a ViT whose picture is a spectrogram, cut into patches that overlap."""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures.parts import labels, layer_norm, linear
from cobasin.architectures.vision import FUNCTION_KEYS, VIT, pre_norm
from cobasin.symmetry.groups import Permutation
from cobasin.symmetry.spec import Space, Spec

STRIDES = ("frequency_stride", "time_stride")


@declares("AST", "audio-spectrogram-transformer", "Model", "ForAudioClassification")
def spectrogram(request: Request) -> Spec:
    """AST. The head has a norm of its own: the gain of the last norm of the stack sits between two norms.

    So the stream can only be permuted, and its norms keep their gains.
    """
    config, bare = request.config, request.head == "Model"
    counts = zip((config.num_mel_bins, config.max_length), STRIDES, strict=True)
    rows, columns = ((size - config.patch_size) // getattr(config, stride) + 1 for size, stride in counts)
    return pre_norm(
        request.architecture,
        config,
        VIT,
        {
            "resid": Space(config.hidden_size, None if bare else Permutation(), part="residual"),
            "patch": Space(config.patch_size),
            "pos": Space(rows * columns + 2),
            "label": labels(config),
        },
        {
            "embeddings.cls_token": "1 1 resid",
            "embeddings.distillation_token": "1 1 resid",
            "embeddings.position_embeddings": "1 pos resid",
            **linear("embeddings.patch_embeddings.projection", "resid", "1 patch patch"),
        },
        "layernorm",
        {} if bare else layer_norm("classifier.layernorm") | linear("classifier.dense", "label", "resid"),
        biased=(config.qkv_bias,) * 3,
        width=getattr(config, "head_dim", None),
        prefix="audio_spectrogram_transformer.",
        function_keys=(*FUNCTION_KEYS, "patch_size", *STRIDES, "num_mel_bins", "max_length"),
    )
