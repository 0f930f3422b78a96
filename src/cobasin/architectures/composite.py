"""Models made of two others, whose configs lie within theirs: an encoder, and a decoder that looks at its stream.

Both parts are declared alone. Alone, an encoder shows its stream as output; here only the decoder's attention reads it,
behind a linear layer where the sizes differ, so that it moves.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from cobasin.architectures import Declaration, Request, declares
from cobasin.architectures.crossing import DECODERS
from cobasin.architectures.encoder import bert, roberta
from cobasin.architectures.encoder_variants import bert_generation
from cobasin.architectures.joining import joined, relabelled
from cobasin.architectures.parts import linear, require
from cobasin.architectures.vision import deit, vit
from cobasin.architectures.window_vision import swin
from cobasin.symmetry.groups import Orthogonal
from cobasin.symmetry.spec import Space, Spec

# Of every encoder its declaration, and a linear head that it has on the stream, whose place others take here.
Encoders = dict[str, tuple[Declaration, str]]
TEXTS: Encoders = {
    "bert": (bert, "ForTokenClassification"),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), (roberta, "ForTokenClassification")),
    "bert-generation": (bert_generation, "Decoder"),
}
PICTURES: Encoders = {
    "vit": (vit, "ForImageClassification"),
    "deit": (deit, "ForImageClassification"),
    **dict.fromkeys(("swin", "donut-swin"), (swin, "ForImageClassification")),
}
HEADS = ("cls.", "lm_head.", "output_projection.", "classifier.")  # what is no part of the base model
ROOT, POOLER = "encoder.", "pooler.dense"
PROJECTION = "enc_to_dec_proj"


def part(request: Request, name: str, root: str, known: Collection[str]) -> Request:
    """What a part is declared from: its config, which is called ``name`` and of one of the ``known`` types.

    The names of its tensors begin with ``root`` in the whole.

    Raises:
        InputError: it is of another type.
    """
    config = getattr(request.config, name)
    require(config.model_type in known, f"{name}.model_type {config.model_type!r}")
    names = [one.removeprefix(root) for one in request.names if one.startswith(root)]
    return Request(config, request.architecture, "", names)


def placed(spec: Spec, root: str, prefix: str = "") -> Spec:
    """The same with the names that its tensors have in the whole: ``root``, and ``prefix`` but for heads."""

    def name(own: str) -> str:
        return f"{root}{own}" if own.startswith(HEADS) else f"{root}{prefix}{own}"

    return replace(
        relabelled(spec, name=name),
        prefix="",
        buffers=tuple(f"{re.escape(root + prefix)}{pattern}" for pattern in spec.buffers),
        unread=tuple(map(name, spec.unread)),
    )


def headless(spec: Spec) -> Spec:
    """A part without its head."""
    return replace(
        spec,
        spaces={name: space for name, space in spec.spaces.items() if name != "label"},
        templates={name: type_ for name, type_ in spec.templates.items() if not name.startswith(HEADS)},
    )


def read_by(spec: Spec, root: str, readers: tuple[str, ...]) -> Spec:
    """A part in its place, the norm in front of whose head the ``readers`` read."""
    heads = tuple(f"{root}{name}" for name in HEADS)
    norms = (replace(norm, readers=readers) if norm.readers[0].startswith(heads) else norm for norm in spec.norms)
    return replace(spec, norms=tuple(norms))


def encoder_of(request: Request, known: Encoders, readers: tuple[str, ...], stream: str) -> Spec:
    """The encoder, whose last norm the ``readers`` read; its stream is the space ``stream``.

    Its pooler, which only some files have, reads that norm as well, and nothing reads it.
    """
    request = part(request, "encoder", ROOT, known)
    declaration, head = known[request.config.model_type]
    spec = declaration(replace(request, head=head))
    read = next(type_ for name, type_ in spec.templates.items() if name.startswith(HEADS)).split()[-1]
    spec, kept = headless(spec), dict[str, str]()
    spaces = spec.spaces
    if request.has(f"{POOLER}.weight") and f"{POOLER}.weight" not in spec.templates:
        kept = linear(POOLER, "pooled", "resid")
        spaces = {**spaces, "pooled": Space(request.config.pooler_output_size)}
    templates = {**spec.templates, **kept}
    spec = placed(replace(spec, spaces=spaces, templates=templates, tied={}, unread=(*spec.unread, *kept)), ROOT)
    spec = relabelled(spec, space=lambda name: stream if name == read else f"encoder_{name}")
    return read_by(spec, ROOT, (*readers, *(f"{ROOT}{name}" for name in kept if name.endswith(".weight"))))


def composite(request: Request, encoders: Encoders) -> Spec:
    """An encoder and a decoder; between streams of two sizes there is a linear layer, unless the decoder says no."""
    config, own = request.config, part(request, "decoder", "decoder.", DECODERS)
    # Transformers 5 ignores it, others would let one part have the weights of the other
    require(not getattr(config, "tie_encoder_decoder", False), "tie_encoder_decoder")
    spec = DECODERS[own.config.model_type](own)
    decoder = placed(spec, "decoder.", spec.prefix)
    readers = tuple(name for name, type_ in decoder.templates.items() if "memory" in type_)
    width = own.config.hidden_size
    if config.encoder.hidden_size == width or getattr(own.config, "cross_attention_hidden_size", None) is not None:
        encoder = encoder_of(request, encoders, readers, "memory")
    else:
        encoder = encoder_of(request, encoders, (f"{PROJECTION}.weight",), "encoder_resid")
        projection, memory = linear(PROJECTION, "memory", "encoder_resid"), Space(width, Orthogonal(), part="residual")
        encoder = replace(encoder, templates={**encoder.templates, **projection})
        decoder = replace(decoder, spaces={**decoder.spaces, "memory": memory})
    return joined(encoder, decoder, {}, apart="", configs=("encoder", "decoder"))


@declares("EncoderDecoder", "encoder-decoder", "Model")
def encoder_decoder(request: Request) -> Spec:
    """BERT2BERT, RoBERTa2RoBERTa and their like."""
    return composite(request, TEXTS)


@declares("VisionEncoderDecoder", "vision-encoder-decoder", "Model")
def vision_encoder_decoder(request: Request) -> Spec:
    """TrOCR, Donut, ViT-GPT2 and their like."""
    return composite(request, PICTURES)
