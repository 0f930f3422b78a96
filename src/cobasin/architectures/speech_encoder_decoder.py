"""Encoder-decoders that write what they hear: Speech2Text, from mel features."""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures.encoder_decoder import DECODER, ENCODER, FUNCTION_KEYS, block, both_stacks, free_biases
from cobasin.architectures.parts import NEURONS, Parts, layer_norm, tie_keys
from cobasin.symmetry.spec import Space, Spec

EMBEDDING = "decoder.embed_tokens.weight"


def _gated_convolutions(config) -> Parts:
    """Spaces and templates of convolutions over time, whose second half of channels gates the first."""
    spaces, templates = {"mel": Space(config.input_feat_per_channel * config.input_channels)}, dict[str, str]()
    read, last = "mel", config.num_conv_layers - 1
    for i, kernel in enumerate(config.conv_kernel_sizes):
        name, written, gate = f"encoder.conv.conv_layers.{i}", "resid", "resid"
        if i < last:
            written, gate = f"conv{i}", f"conv{i}~"
            spaces[written] = Space(config.conv_channels // 2, NEURONS, part="ffn")
        spaces[f"kernel{i}"] = Space(kernel)
        templates[f"{name}.weight"] = f"({written} + {gate}) {read} kernel{i}"
        templates[f"{name}.bias"] = f"({written} + {gate})"
        read = f"{written}'"
    return spaces, templates


@declares("Speech2Text", "speech_to_text", "ForConditionalGeneration", "Model")
def speech_to_text(request: Request) -> Spec:
    """Speech2Text. Sines and cosines that no file holds are added to both streams, which are fixed."""
    config, head = request.config, ("lm_head.weight",) if request.head == "ForConditionalGeneration" else ()
    ties = dict.fromkeys(head, EMBEDDING) if config.tie_word_embeddings else {}
    spaces, templates = _gated_convolutions(config)
    templates |= dict.fromkeys((EMBEDDING, *head), "vocab resid")
    templates |= block(ENCODER, "", "resid") | layer_norm("encoder.layer_norm")
    templates |= block(DECODER, "decoder_", "resid", "resid") | layer_norm("decoder.layer_norm")
    return Spec(
        request.architecture,
        both_stacks(config) | spaces | {"resid": Space(config.d_model, part="residual")},
        templates,
        prefix="model.",
        tied=ties,
        biases=free_biases(templates),
        buffers=(r"(en|de)coder\.embed_positions\.weights",),
        function_keys=(
            *(*FUNCTION_KEYS, "scale_embedding", *tie_keys(ties)),
            "pad_token_id",  # positions are counted from it
        ),
    )
