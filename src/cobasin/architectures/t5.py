"""T5, Flan-T5, mT5 and UMT5: pre-RMSNorm stacks without biases."""

from __future__ import annotations

import re

from cobasin.architectures import Request, declares
from cobasin.architectures.encoder_decoder import TOKENS_READ, heads, multi_head, sequence_head, stack
from cobasin.architectures.parts import Parts, labels, linear, neurons
from cobasin.symmetry.gauges import Norm, SoftmaxShift
from cobasin.symmetry.groups import Orthogonal, SignedPermutation
from cobasin.symmetry.spec import Space, Spec

ENCODERS = ("EncoderModel", "ForTokenClassification")
HEADS = ("ForConditionalGeneration", "Model", "ForSequenceClassification", "ForQuestionAnswering", *ENCODERS)
ENCODER, DECODER = "encoder.block.{layer}.layer", "decoder.block.{decoder_layer}.layer"
CROSS = f"{DECODER}.1.EncDecAttention"
POSITION = "0.SelfAttention.relative_attention_bias.weight"


def _attention(name: str, prefix: str) -> dict[str, str]:
    return multi_head(name, prefix, names=("q", "k", "v", "o"), biased=(False, False, False, False))


def _mlp(name: str, space: str, gated: bool) -> dict[str, str]:
    gate = linear(f"{name}.wi_0", f"{space}~", "resid", bias=False) if gated else {}
    up = linear(f"{name}.wi_1" if gated else f"{name}.wi", space, "resid", bias=False)
    return gate | up | linear(f"{name}.wo", "resid", f"{space}'", bias=False)


def _weights(name: str, *layers: str) -> tuple[str, ...]:
    return tuple(f"{name}.{layer}.weight" for layer in layers)


def _norms(gated: bool, decodes: bool, output: tuple[str, ...]) -> tuple[Norm, ...]:
    """Every norm with what reads it; the encoder's last one is read by all cross-attentions."""
    up = ("wi_0", "wi_1") if gated else ("wi",)
    read = {
        f"{ENCODER}.0.layer_norm": _weights(f"{ENCODER}.0.SelfAttention", *"qkv"),
        f"{ENCODER}.1.layer_norm": _weights(f"{ENCODER}.1.DenseReluDense", *up),
        "encoder.final_layer_norm": _weights(CROSS, *"kv") if decodes else output,
    }
    if decodes:
        read |= {
            f"{DECODER}.0.layer_norm": _weights(f"{DECODER}.0.SelfAttention", *"qkv"),
            f"{DECODER}.1.layer_norm": _weights(CROSS, "q"),
            f"{DECODER}.2.layer_norm": _weights(f"{DECODER}.2.DenseReluDense", *up),
            "decoder.final_layer_norm": output,
        }
    return tuple(Norm(f"{name}.weight", readers, centred=False) for name, readers in read.items())


def _stacks(config, decodes: bool) -> Parts:
    """Spaces and tensors of the layers, without their norms."""
    gated, shared = config.is_gated_act, config.model_type != "umt5"
    ffn = config.d_ff, neurons(config.dense_act_fn, gated)
    spaces = stack("", config.num_layers, config.num_heads, config.d_kv, *ffn, shared)
    templates = {f"{ENCODER}.{POSITION}": "bucket head"}
    templates |= _attention(f"{ENCODER}.0.SelfAttention", "") | _mlp(f"{ENCODER}.1.DenseReluDense", "ffn", gated)
    if decodes:
        spaces |= stack("decoder_", config.num_decoder_layers, config.num_heads, config.d_kv, *ffn, shared)
        spaces |= heads("cross_", config.num_heads, config.d_kv, "decoder_layer")
        templates |= {f"{DECODER}.{POSITION}": "bucket decoder_head"}
        templates |= _attention(f"{DECODER}.0.SelfAttention", "decoder_") | _attention(CROSS, "cross_")
        templates |= _mlp(f"{DECODER}.2.DenseReluDense", "decoder_ffn", gated)
    return spaces, templates


@declares("T5", "t5", *HEADS)
@declares("MT5", "mt5", *HEADS)
@declares("UMT5", "umt5", *HEADS)
def t5(request: Request) -> Spec:
    """T5. Both stacks read one embedding, so that they share one stream.

    The position bias of the first layer serves all layers of its stack, and so ties the order of their heads; in
    UMT5 every layer has its own. What it adds at all distances alike, the softmax cancels. Behind a gate only
    (up, down) may change sign and scale. Transformers ties the output head where the file has none of its own.
    """
    config, decodes = request.config, request.head not in ENCODERS
    names = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    embedding, *others = names[: 3 if decodes else 2]
    ties: dict[str, str] = dict.fromkeys(others, embedding)
    head = sequence_head(request)
    if request.head == "ForTokenClassification":
        head = linear("classifier", "label", "resid")
    if request.head == "ForConditionalGeneration":
        head = {"lm_head.weight": "vocab resid"}
        if config.tie_word_embeddings and not request.has("lm_head.weight"):
            ties["lm_head.weight"] = embedding
    output = tuple(name for name, type_ in head.items() if type_.endswith(" resid"))
    norms = _norms(config.is_gated_act, decodes, output)
    spaces, templates = _stacks(config, decodes)
    generic, folded = (SignedPermutation, Orthogonal()) if head else (None, None)  # a bare model shows the stream
    spaces |= {
        "resid": Space(config.d_model, generic, part="residual", folded=folded),
        "bucket": Space(config.relative_attention_num_buckets),
        "vocab": Space(config.vocab_size),
        "pool": Space(config.d_model, SignedPermutation, part="ffn"),
        "label": labels(config),
        "span": Space(2),
    }
    later = r"(en|de)coder\.block\.[1-9]\d*\.layer\." + re.escape(POSITION)
    return Spec(
        request.architecture,
        spaces,
        dict.fromkeys((embedding, *ties), "vocab resid") | templates | {n.weight: "resid~" for n in norms} | head,
        prefix="transformer.",
        absent=() if config.model_type == "umt5" else (later,),
        tied=ties,
        norms=norms if head else (),
        biases=tuple(SoftmaxShift(name, "bucket", "attention") for name in templates if name.endswith(POSITION)),
        buffers=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),  # never read
        function_keys=(
            *("dense_act_fn", "layer_norm_epsilon", "relative_attention_max_distance", "scale_decoder_outputs"),
            *(("is_causal",) if decodes else ()),
            *TOKENS_READ.get(request.head, ()),
        ),
    )
