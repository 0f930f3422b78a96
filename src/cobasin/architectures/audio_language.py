"""Decoders that hear sounds beside text: Voxtral and Qwen2-Audio through Whisper's encoder, Qwen3-ASR by its own."""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Declaration, Request, declares
from cobasin.architectures.encoder_decoder import block, free_biases, stack, whisper_encoder
from cobasin.architectures.joining import joined
from cobasin.architectures.parts import Parts, layer_norm, linear, neurons, require, tie_keys
from cobasin.architectures.qk_norm_decoder import qwen3
from cobasin.architectures.rmsnorm_decoder import llama, qwen2
from cobasin.architectures.vision_language import PROJECTOR, TEXT_ALIASES, decoder_of
from cobasin.symmetry.groups import Permutation
from cobasin.symmetry.spec import Space, Spec

EAR = "audio_tower."


def encoder(request: Request, own: Parts, stream: Space, *keys: str) -> Spec:
    """An encoder of a sound, whose parts are ``own`` besides the spaces of its layers; ``keys`` are further ones."""
    config = request.config.audio_config
    heads, named = config.encoder_attention_heads, "encoder_attention_heads"
    sizes = (config.encoder_layers, heads, config.d_model // heads, config.encoder_ffn_dim)
    spaces, templates = own
    return Spec(
        request.architecture,
        stack("", *sizes, neurons(config.activation_function)) | spaces | {"encoder": stream},
        templates,
        biases=free_biases(templates),
        function_keys=(config.attribute_map.get(named, named), "activation_function", *keys),
    )


def _whole(
    request: Request,
    decoders: dict[str, Declaration],
    ear: Spec,
    projector: dict[str, str],
    spaces: dict[str, Space],
    keys: tuple[str, ...] = (),
) -> Spec:
    """Decoder, encoder and ``projector``."""
    decoder, kind = decoder_of(request, decoders), request.config.audio_config.model_type
    require(kind == f"{request.config.model_type}_encoder", f"audio_config.model_type {kind!r}")
    require(isinstance(request.config.audio_token_id, int), "audio_token_id other than a number")
    spec = joined(decoder, ear, projector, "audio_", ("text_config", "audio_config"))
    return replace(
        spec,
        spaces={**spec.spaces, **spaces},
        prefix="model.",
        aliases=TEXT_ALIASES,
        function_keys=(*spec.function_keys, *tie_keys(spec.tied), "audio_token_id", *keys),
    )


def _whisper(request: Request) -> Spec:
    """Whisper's encoder. A GELU writes to its stream: that can only be permuted."""
    config = request.config.audio_config
    require(not getattr(request.config, "tie_word_embeddings", False), "tie_word_embeddings = true")
    return encoder(request, whisper_encoder(config, EAR), Space(config.d_model, Permutation(), part="residual"))


@declares("Voxtral", "voxtral", "ForConditionalGeneration")
def voxtral(request: Request) -> Spec:
    """Voxtral: several frames become one token."""
    config, size = request.config, request.config.text_config.hidden_size
    ear = config.audio_config
    projector = linear(f"{PROJECTOR}linear_1", "projector", "(frame audio_encoder)", bias=False)
    projector |= linear(f"{PROJECTOR}linear_2", "resid", "projector'", bias=False)
    spaces = {
        "frame": Space(ear.intermediate_size // ear.hidden_size),
        "projector": Space(size, neurons(config.projector_hidden_act), part="ffn"),
    }
    return _whole(request, {"llama": llama}, _whisper(request), projector, spaces, ("projector_hidden_act",))


@declares("Qwen2Audio", "qwen2_audio", "ForConditionalGeneration")
def qwen2_audio(request: Request) -> Spec:
    """Qwen2-Audio."""
    projector = linear(f"{PROJECTOR}linear", "resid", "audio_encoder")
    return _whole(request, {"qwen2": qwen2}, _whisper(request), projector, {})


@declares("Qwen3ASR", "qwen3_asr", "ForConditionalGeneration")
def qwen3_asr(request: Request) -> Spec:
    """Qwen3-ASR: convolutions over frequency and time read pieces of a spectrogram.

    Sines that no file holds are added to the encoder's stream: it stays.
    """
    config = request.config.audio_config
    bins, channels = config.num_mel_bins, Space(config.downsample_hidden_size, neurons("gelu"), part="ffn")
    parts = block(f"{EAR}layers.{{layer}}", "", "encoder") | layer_norm(f"{EAR}ln_post", "encoder")
    for number, read in enumerate(("1", "conv1", "conv2"), 1):
        out, name = f"conv{number}", f"{EAR}conv2d{number}"
        parts |= {f"{name}.weight": f"{out} {read} side side", f"{name}.bias": out}
        bins = (bins + 1) // 2  # a stride of two
    parts |= linear(f"{EAR}conv_out", "encoder", "(conv3 bin)", bias=False)
    spaces = dict.fromkeys(("conv1", "conv2", "conv3"), channels) | {"bin": Space(bins), "side": Space(3)}
    ear = encoder(request, (spaces, parts), Space(config.d_model), "n_window", "n_window_infer")
    projector = linear(f"{PROJECTOR}linear_1", "projector", "audio_encoder")
    projector |= linear(f"{PROJECTOR}linear_2", "resid", "projector'")
    between = {"projector": Space(config.d_model, neurons(config.activation_function), part="ffn")}
    return _whole(request, {"qwen3": qwen3}, ear, projector, between)
