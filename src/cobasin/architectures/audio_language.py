"""Decoders that hear sounds beside text through Whisper's encoder: Voxtral, Qwen2-Audio."""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Declaration, Request, declares
from cobasin.architectures.encoder_decoder import free_biases, stack, whisper_encoder
from cobasin.architectures.joining import joined
from cobasin.architectures.parts import linear, neurons, require
from cobasin.architectures.rmsnorm_decoder import llama, qwen2
from cobasin.architectures.vision_language import PROJECTOR, TEXT_ALIASES, decoder_of
from cobasin.symmetry.groups import Permutation
from cobasin.symmetry.spec import Space, Spec

EAR = "audio_tower."


def _whole(
    request: Request,
    decoders: dict[str, Declaration],
    projector: dict[str, str],
    spaces: dict[str, Space],
    keys: tuple[str, ...] = (),
) -> Spec:
    """Decoder, encoder and ``projector``. A GELU writes to the encoder's stream: it can only be permuted."""
    config, decoder = request.config.audio_config, decoder_of(request, decoders)
    kind = config.model_type
    require(kind == f"{request.config.model_type}_encoder", f"audio_config.model_type {kind!r}")
    require(isinstance(request.config.audio_token_id, int), "audio_token_id other than a number")
    require(not getattr(request.config, "tie_word_embeddings", False), "tie_word_embeddings = true")
    own, templates = whisper_encoder(config, EAR)
    heads, named = config.encoder_attention_heads, "encoder_attention_heads"
    sizes = (config.encoder_layers, heads, config.d_model // heads, config.encoder_ffn_dim)
    stream = {"encoder": Space(config.d_model, Permutation(), part="residual")}
    ear = Spec(
        request.architecture,
        stack("", *sizes, neurons(config.activation_function)) | own | stream,
        templates,
        biases=free_biases(templates),
        function_keys=(config.attribute_map.get(named, named), "activation_function"),
    )
    spec = joined(decoder, ear, projector, "audio_", ("text_config", "audio_config"))
    return replace(
        spec,
        spaces={**spec.spaces, **spaces},
        prefix="model.",
        aliases=TEXT_ALIASES,
        function_keys=(*spec.function_keys, "audio_token_id", *keys),
    )


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
    return _whole(request, {"llama": llama}, projector, spaces, ("projector_hidden_act",))


@declares("Qwen2Audio", "qwen2_audio", "ForConditionalGeneration")
def qwen2_audio(request: Request) -> Spec:
    """Qwen2-Audio."""
    return _whole(request, {"qwen2": qwen2}, linear(f"{PROJECTOR}linear", "resid", "audio_encoder"), {})
