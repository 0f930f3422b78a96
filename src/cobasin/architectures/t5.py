"""T5, Flan-T5, mT5, UMT5 and LongT5: pre-RMSNorm stacks without biases."""

from __future__ import annotations

import re
from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.encoder_decoder import TOKENS_READ, heads, multi_head, sequence_head, stack
from cobasin.architectures.parts import Parts, labels, linear, neurons, require
from cobasin.symmetry.gauges import Norm, SoftmaxShift
from cobasin.symmetry.groups import Orthogonal, SignedPermutation
from cobasin.symmetry.spec import Space, Spec

ENCODERS = ("EncoderModel", "ForTokenClassification")
HEADS = ("ForConditionalGeneration", "Model", "ForSequenceClassification", "ForQuestionAnswering", *ENCODERS)
ENCODER, DECODER = "encoder.block.{layer}.layer", "decoder.block.{decoder_layer}.layer"
CROSS = f"{DECODER}.1.EncDecAttention"
POSITION = "relative_attention_bias.weight"
# what the encoder's attention is called; LongT5's looks at what is near, and maybe at sums over blocks
ATTENTION = {"local": "LocalSelfAttention", "transient-global": "TransientGlobalSelfAttention"}


def _attention(name: str, prefix: str) -> dict[str, str]:
    return multi_head(name, prefix, names=("q", "k", "v", "o"), biased=(False, False, False, False))


def _mlp(name: str, space: str, gated: bool) -> dict[str, str]:
    gate = linear(f"{name}.wi_0", f"{space}~", "resid", bias=False) if gated else {}
    up = linear(f"{name}.wi_1" if gated else f"{name}.wi", space, "resid", bias=False)
    return gate | up | linear(f"{name}.wo", "resid", f"{space}'", bias=False)


def _weights(name: str, *layers: str) -> tuple[str, ...]:
    return tuple(f"{name}.{layer}.weight" for layer in layers)


def _norms(own: str, gated: bool, decodes: bool, output: tuple[str, ...]) -> tuple[Norm, ...]:
    """Every norm with what reads it; the encoder's last one is read by all cross-attentions."""
    up = ("wi_0", "wi_1") if gated else ("wi",)
    read = {
        f"{ENCODER}.0.layer_norm": _weights(f"{ENCODER}.0.{own}", *"qkv"),
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


def _gated(config) -> bool:
    return config.model_type != "switch_transformers" and config.is_gated_act  # Switch has no gates, whatever it says


def _stacks(config, own: str, decodes: bool) -> Parts:
    """Spaces and tensors of the layers, without their norms."""
    gated, shared = _gated(config), config.model_type != "umt5"
    ffn = config.d_ff, neurons(config.dense_act_fn, gated)
    spaces = stack("", config.num_layers, config.num_heads, config.d_kv, *ffn, shared)
    templates = {f"{ENCODER}.0.{own}.{POSITION}": "bucket head"}
    templates |= _attention(f"{ENCODER}.0.{own}", "") | _mlp(f"{ENCODER}.1.DenseReluDense", "ffn", gated)
    if decodes:
        spaces |= stack("decoder_", config.num_decoder_layers, config.num_heads, config.d_kv, *ffn, shared)
        spaces |= heads("cross_", config.num_heads, config.d_kv, "decoder_layer")
        templates |= {f"{DECODER}.0.SelfAttention.{POSITION}": "bucket decoder_head"}
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
    own = _encoder_attention(config)
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
    norms = _norms(own, _gated(config), decodes, output)
    spaces, templates = _stacks(config, own, decodes)
    generic, folded = (SignedPermutation, Orthogonal()) if head else (None, None)  # a bare model shows the stream
    spaces |= {
        "resid": Space(config.d_model, generic, part="residual", folded=folded),
        "bucket": Space(config.relative_attention_num_buckets),
        "vocab": Space(config.vocab_size),
        "pool": Space(config.d_model, SignedPermutation, part="ffn"),
        "label": labels(config),
        "span": Space(2),
    }
    later = r"(en|de)coder\.block\.[1-9]\d*\.layer\.0\.\w+\." + re.escape(POSITION)
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


def _encoder_attention(config) -> str:
    if config.model_type != "longt5":
        return "SelfAttention"
    require(config.encoder_attention_type in ATTENTION, f"encoder_attention_type = {config.encoder_attention_type}")
    return ATTENTION[config.encoder_attention_type]


@declares("LongT5", "longt5", "ForConditionalGeneration", "Model", "EncoderModel")
def longt5(request: Request) -> Spec:
    """LongT5. Its encoder looks at what is near and, if transient-global, at sums over blocks, too.

    These are sums of what a norm has put out, which pass another norm: the gain of the former sits in the stream. The
    softmax then runs over both, and cancels only what the position biases of both share.
    """
    spec, config = t5(request), request.config
    spec = replace(spec, function_keys=(*spec.function_keys, "local_radius"))
    if config.encoder_attention_type == "local":
        return spec
    own = f"{ENCODER}.0.{ATTENTION[config.encoder_attention_type]}"
    later = r"encoder\.block\.[1-9]\d*\.layer\.0\.\w+\.global_" + re.escape(POSITION)
    return replace(
        spec,
        spaces={**spec.spaces, "resid": replace(spec.spaces["resid"], folded=None)},
        templates={
            **spec.templates,
            f"{own}.global_{POSITION}": "bucket head",
            f"{own}.global_input_layer_norm.weight": "resid~",
        },
        absent=(*spec.absent, later),
        norms=(),
        biases=tuple(one for one in spec.biases if isinstance(one, SoftmaxShift) and one.weight.startswith(DECODER)),
        function_keys=(*spec.function_keys, "global_block_size"),
    )
