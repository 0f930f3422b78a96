"""Qwen2.5-Omni's thinker: Qwen2.5-VL that also hears, through Whisper's encoder with sines that no file holds."""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.audio_language import EAR, encoder
from cobasin.architectures.encoder_decoder import whisper_encoder
from cobasin.architectures.joining import relabelled
from cobasin.architectures.parts import linear
from cobasin.architectures.vision_language_qwen import windowed_tower, with_qwen2
from cobasin.symmetry.spec import Space, Spec

ENDS = f"{EAR}audio_bos_eos_token.weight"
# where in a text a picture or a sound is, by what stands in front of it, and how far apart frames of a video are
PLACES = ("vision_start_token_id", "audio_start_token_id", "position_id_per_seconds", "seconds_per_chunk")


def _ear(request: Request) -> Spec:
    """The encoder, whose stream stays: sines are added to it."""
    config = request.config.audio_config
    spaces, templates = whisper_encoder(config, EAR)
    del templates[f"{EAR}embed_positions.weight"]
    named = {name.replace(f"{EAR}layer_norm", f"{EAR}ln_post"): type_ for name, type_ in templates.items()}
    ear = encoder(request, (spaces, named), Space(config.d_model), "n_window")
    return relabelled(ear, space=lambda name: f"audio_{name}")


@declares("Qwen2_5OmniThinker", "qwen2_5_omni_thinker", "ForConditionalGeneration")
def qwen2_5_omni(request: Request) -> Spec:
    """Qwen2.5-Omni's thinker. Two vectors for the ends of a sound are in the file and not read."""
    spec, ear = with_qwen2(request, windowed_tower(request, apart=True), centred=False), _ear(request)
    keys = tuple(f"audio_config.{key}" for key in ear.function_keys)
    keys += tuple(key for key in PLACES if hasattr(request.config, key))
    projector = linear(f"{EAR}proj", "resid", "audio_encoder") | {ENDS: "end resid"}
    return replace(
        spec,
        spaces={**spec.spaces, **ear.spaces, "end": Space(2)},
        templates={**spec.templates, **ear.templates, **projector},
        biases=(*spec.biases, *ear.biases),
        unread=(*spec.unread, ENDS),
        function_keys=(*spec.function_keys, *keys),
    )
