"""Encoder-decoders that write what they hear: Speech2Text, from mel features, and Moonshine, from the waveform."""

from __future__ import annotations

import re

from cobasin.architectures import Request, declares
from cobasin.architectures.encoder_decoder import (
    CROSS,
    DECODER,
    ENCODER,
    FUNCTION_KEYS,
    SELF,
    block,
    both_stacks,
    free_biases,
    heads,
)
from cobasin.architectures.parts import (
    NEURONS,
    Parts,
    head_bases,
    layer_norm,
    linear,
    neurons,
    require,
    rope_keys,
    tie_keys,
)
from cobasin.architectures.rmsnorm_decoder import head_width, partly_rotated
from cobasin.symmetry.gauges import Norm
from cobasin.symmetry.groups import Orthogonal, Permutation
from cobasin.symmetry.spec import Space, Spec

EMBEDDING = "decoder.embed_tokens.weight"
OWN = f"{ENCODER}.self_attn"
MOONSHINE_HEADS = tuple(
    f"{side}_num_{kind}_heads" for side in ("encoder", "decoder") for kind in ("attention", "key_value")
)


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


def _turned_heads(config, prefix: str) -> tuple[dict[str, Space], str, str]:
    """Spaces of the heads of a stack, and types of queries and keys; a part of a head is turned, by neighbours."""
    head, layer = f"{prefix}head", f"{prefix}layer"
    count, rotated = config.encoder_num_attention_heads, partly_rotated(config)
    bases, query, key = head_bases(head_width(config), (layer, head), rotated, order="freq pair")
    spaces = {name if name == "freq" else f"{prefix}{name}": space for name, space in bases.items()}
    spaces[head] = Space(count, Permutation(), (layer,), part="heads")
    query, key = (re.sub("pair|nope", rf"{prefix}\g<0>", text) for text in (query, key))
    return spaces, f"({head} {query})", f"({head} {key})"


def _attention(name: str, prefix: str, query: str, key: str, stream: str, memory: str) -> dict[str, str]:
    """Attention of Moonshine, which has no biases: queries read ``stream``, keys and values ``memory``."""
    return {
        f"{name}.q_proj.weight": f"{query} {stream}",
        f"{name}.k_proj.weight": f"{key} {memory}",
        f"{name}.v_proj.weight": f"({prefix}head {prefix}vo) {memory}",
        f"{name}.o_proj.weight": f"{stream} ({prefix}head {prefix}vo')",
    }


def _hearing(config) -> Parts:
    """Spaces and templates of the convolutions of Moonshine, and of a norm over all that the first one makes."""
    width = config.hidden_size
    spaces = {
        "conv1": Space(width, Permutation(), part="ffn"),
        "conv2": Space(2 * width, neurons("gelu"), part="ffn"),
        **{f"kernel{i}": Space(size) for i, size in enumerate((127, 7, 3), 1)},
    }
    return spaces, {
        "encoder.conv1.weight": "conv1 1 kernel1",
        **layer_norm("encoder.groupnorm", "conv1"),
        **linear("encoder.conv2", "conv2", "conv1 kernel2"),
        **linear("encoder.conv3", "encoder", "conv2 kernel3"),
    }


@declares("Moonshine", "moonshine", "ForConditionalGeneration", "Model")
def moonshine(request: Request) -> Spec:
    """Moonshine. The encoder's stream is written by a GELU: it can only be permuted, and its norms keep their gains.

    A bare model shows both streams. Transformers gives all attention the same number of heads.
    """
    config, generates = request.config, request.head == "ForConditionalGeneration"
    first, *others = MOONSHINE_HEADS
    for key in others:
        require(getattr(config, key) == getattr(config, first), f"{key} other than {first}")
    require(not config.attention_bias, "attention_bias")
    spaces, templates = _hearing(config)
    own, query, key = _turned_heads(config, "")
    decoder, decoder_query, decoder_key = _turned_heads(config, "decoder_")
    across = heads("cross_", config.decoder_num_attention_heads, head_width(config), "decoder_layer")
    cross = ("(cross_head cross_qk)", "(cross_head cross_qk')")
    norms = {
        f"{DECODER}.input_layernorm": tuple(f"{SELF}.{name}_proj.weight" for name in "qkv"),
        f"{DECODER}.post_attention_layernorm": (f"{CROSS}.q_proj.weight",),
        f"{DECODER}.final_layernorm": (f"{DECODER}.mlp.fc1.weight",),
        "decoder.norm": ("proj_out.weight",),
    }
    templates |= {
        **_attention(OWN, "", query, key, "encoder", "encoder"),
        **linear(f"{ENCODER}.mlp.fc1", "ffn", "encoder"),
        **linear(f"{ENCODER}.mlp.fc2", "encoder", "ffn'"),
        **{f"{ENCODER}.{name}_layernorm.weight": "encoder" for name in ("input", "post_attention")},
        "encoder.layer_norm.weight": "encoder",
        EMBEDDING: "vocab resid",
        **_attention(SELF, "decoder_", decoder_query, decoder_key, "resid", "resid"),
        **_attention(CROSS, "cross_", *cross, "resid", "encoder"),
        **linear(f"{DECODER}.mlp.fc1", "(decoder_ffn + decoder_ffn~)", "resid"),
        **linear(f"{DECODER}.mlp.fc2", "resid", "decoder_ffn'"),
        **{f"{name}.weight": "resid" for name in norms},
        **({"proj_out.weight": "vocab resid"} if generates else {}),
    }
    ties = {"proj_out.weight": EMBEDDING} if generates and config.tie_word_embeddings else {}
    permuted, turned = (Permutation(), Orthogonal(fix_ones=True)) if generates else (None, None)
    ffn = config.intermediate_size
    return Spec(
        request.architecture,
        {
            **spaces,
            **own,
            **decoder,
            **across,
            "layer": Space(config.encoder_num_hidden_layers),
            "decoder_layer": Space(config.decoder_num_hidden_layers),
            "encoder": Space(config.hidden_size, permuted, part="residual"),
            "resid": Space(config.hidden_size, permuted, part="residual", folded=turned),
            "ffn": Space(ffn, neurons(config.encoder_hidden_act), ("layer",), part="ffn"),
            "decoder_ffn": Space(ffn, NEURONS, ("decoder_layer",), part="ffn"),
            "vocab": Space(config.vocab_size),
        },
        templates,
        prefix="model.",
        tied=ties,
        norms=tuple(Norm(f"{name}.weight", readers) for name, readers in norms.items()) if generates else (),
        function_keys=(
            *MOONSHINE_HEADS,
            *("encoder_hidden_act", "decoder_hidden_act", "is_causal"),
            *(*rope_keys(config), *tie_keys(ties)),
        ),
    )
