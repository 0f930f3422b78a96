"""Encoder-decoders without a norm behind the embeddings: Marian (post-LayerNorm); Pegasus, M2M-100, Blenderbot (pre-).

Positions are added to the stream, so that it can move only where the file has them: in Pegasus, whose are sines and
cosines, and in Blenderbot, which has learned them. Marian computes sines and cosines when it is loaded, M2M-100 when it
runs: no file says otherwise, and their streams are fixed.
"""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures.encoder_decoder import (
    CROSS,
    DECODER,
    ENCODER,
    FUNCTION_KEYS,
    block,
    both_stacks,
    free_biases,
    norms_in_front,
    read_in_layer,
)
from cobasin.architectures.parts import layer_norm, tie_keys
from cobasin.symmetry.gauges import Norm
from cobasin.symmetry.groups import Orthogonal, Permutation
from cobasin.symmetry.spec import Space, Spec

SHARED, OWN = "shared.weight", ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
POSITIONS = "embed_positions.weight"
GENERATING = ("ForConditionalGeneration", "MTModel")
BUFFERS = {
    "marian": (r"(en|de)coder\.embed_positions\.weight",),
    "m2m_100": (r"(en|de)coder\.embed_positions\.weights",),
}


def embeddings(request: Request) -> tuple[dict[str, str], dict[str, str]]:
    """The tables of words and the output head (templates, ties).

    Marian may have a vocabulary for each language. Untied, the shared table of the others is there and not read.
    """
    config, head = request.config, ("lm_head.weight",) if request.head in GENERATING else ()
    if getattr(config, "share_encoder_decoder_embeddings", True):
        others = (*OWN, *head)
        ties = dict.fromkeys(others, SHARED) if config.tie_word_embeddings else {}
        return dict.fromkeys((SHARED, *others), "vocab resid"), ties
    ties = dict.fromkeys(head, OWN[1]) if config.tie_word_embeddings else {}
    return {OWN[0]: "vocab resid", **dict.fromkeys((OWN[1], *head), "decoder_vocab resid")}, ties


def _norms() -> tuple[Norm, ...]:
    """Of pre-LayerNorm models; the encoder's last norm is read by all cross-attentions."""
    last = {
        "encoder.layer_norm": (f"{CROSS}.k_proj.weight", f"{CROSS}.v_proj.weight"),
        "decoder.layer_norm": ("lm_head.weight",),
    }
    return norms_in_front(read_in_layer(ENCODER) | read_in_layer(DECODER, crossed=True) | last)


@declares("Marian", "marian", "MTModel", "Model")
@declares("Pegasus", "pegasus", "ForConditionalGeneration", "Model")
@declares("M2M100", "m2m_100", "ForConditionalGeneration", "Model")
@declares("Blenderbot", "blenderbot", "ForConditionalGeneration", "Model")
def unnormed(request: Request) -> Spec:
    """Marian (OPUS-MT), Pegasus, M2M-100 and NLLB, Blenderbot. Both stacks have one stream, as they do in BART."""
    config, kind = request.config, request.config.model_type
    stored = kind in ("pegasus", "blenderbot") and request.has(f"encoder.{POSITIONS}")
    templates, ties = embeddings(request)
    for name, layer, prefix, memory in (("encoder", ENCODER, "", ""), ("decoder", DECODER, "decoder_", "resid")):
        templates |= block(layer, prefix, "resid", memory)
        templates |= {} if kind == "marian" else layer_norm(f"{name}.layer_norm")
        templates |= {f"{name}.{POSITIONS}": "pos resid"} if stored else {}
    if request.has("final_logits_bias"):
        templates["final_logits_bias"] = "1 " + templates["decoder.embed_tokens.weight"].split()[0]
    turns = stored and request.head != "Model"
    stream = (Permutation(), Orthogonal(fix_ones=True)) if turns else (None, None)
    return Spec(
        request.architecture,
        both_stacks(config)
        | {
            "resid": Space(config.d_model, stream[0], part="residual", folded=stream[1]),
            "pos": Space(config.max_position_embeddings),
            "decoder_vocab": Space(getattr(config, "decoder_vocab_size", config.vocab_size)),
        },
        templates,
        prefix="model.",
        tied=ties,
        norms=_norms() if turns else (),
        biases=free_biases(templates),
        buffers=BUFFERS.get(kind, ()),
        unread=() if ties else tuple(name for name in templates if name == SHARED),
        function_keys=(
            *(*FUNCTION_KEYS, "scale_embedding", *tie_keys(ties)),
            *(("pad_token_id",) if kind == "m2m_100" else ()),  # positions are counted from it
        ),
    )
