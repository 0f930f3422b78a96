"""Encoder-decoders with biases: BART and its like (post-LayerNorm), mBART and Whisper (pre-LayerNorm)."""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures.parts import Parts, labels, layer_norm, linear, neurons, require, tie_keys
from cobasin.symmetry.gauges import FreeGauge, KeyBias, Norm, ValueBias
from cobasin.symmetry.groups import Group, Orthogonal, Permutation, SignedPermutation
from cobasin.symmetry.spec import Space, Spec

HEADS = ("ForConditionalGeneration", "Model", "ForSequenceClassification")
ENCODER, DECODER = "encoder.layers.{layer}", "decoder.layers.{decoder_layer}"
SELF, CROSS = f"{DECODER}.self_attn", f"{DECODER}.encoder_attn"
FUNCTION_KEYS = (
    "encoder_attention_heads",
    "decoder_attention_heads",
    "activation_function",
    "is_causal",
)
# a sequence is classified at its last end-of-sequence token; the decoder reads the sequence itself, shifted right
SHIFTED = ("pad_token_id", "decoder_start_token_id")
TOKENS_READ = {"ForSequenceClassification": ("eos_token_id", *SHIFTED), "ForQuestionAnswering": SHIFTED}


def heads(prefix: str, count: int, width: int, layer: str, tied: bool = False) -> dict[str, Space]:
    """Spaces of a multi-head attention in every ``layer``; ``tied``: in the same order in all of them."""
    head = f"{prefix}head"
    basis = Space(width, Orthogonal(scaled=True), (layer, head), part="attention")
    order = Space(count, Permutation(), () if tied else (layer,), part="heads")
    return {head: order, f"{prefix}qk": basis, f"{prefix}vo": basis}


def stack(
    prefix: str, layers: int, count: int, width: int, ffn: int, group: Group, tied: bool = False
) -> dict[str, Space]:
    """Spaces of a stack of layers: its self-attention, with ``count`` heads of size ``width``, and its FFN."""
    layer = f"{prefix}layer"
    return {
        layer: Space(layers),
        **heads(prefix, count, width, layer, tied),
        f"{prefix}ffn": Space(ffn, group, (layer,), part="ffn"),
    }


def multi_head(
    name: str,
    prefix: str,
    stream: str = "resid",
    memory: str = "resid",
    names: tuple[str, str, str, str] = ("q_proj", "k_proj", "v_proj", "out_proj"),
    biased: tuple[bool, bool, bool, bool] = (True, True, True, True),
) -> dict[str, str]:
    """Query, key, value and output projections: queries read ``stream``, keys and values ``memory``."""
    qk, vo = f"{prefix}head {prefix}qk", f"{prefix}head {prefix}vo"
    types = ((f"({qk})", stream), (f"({qk}')", memory), (f"({vo})", memory), (stream, f"({vo}')"))
    found: dict[str, str] = {}
    for projection, (out, into), bias in zip(names, types, biased, strict=True):
        found |= linear(f"{name}.{projection}", out, into, bias)
    return found


def sequence_head(request: Request) -> dict[str, str]:
    """The head of BART and T5 over labels, whose tanh is odd, or over the start and the end of an answer."""
    if request.head == "ForQuestionAnswering":
        return linear("qa_outputs", "span", "resid")
    if request.head != "ForSequenceClassification":
        return {}
    name = "classification_head"
    return linear(f"{name}.dense", "pool", "resid") | linear(f"{name}.out_proj", "label", "pool")


def both_stacks(config) -> dict[str, Space]:
    """Spaces of both stacks, without the streams."""
    encoder, decoder = config.encoder_attention_heads, config.decoder_attention_heads
    group, width = neurons(config.activation_function), config.d_model // decoder
    return {
        **stack("", config.encoder_layers, encoder, config.d_model // encoder, config.encoder_ffn_dim, group),
        **stack("decoder_", config.decoder_layers, decoder, width, config.decoder_ffn_dim, group),
        **heads("cross_", decoder, width, "decoder_layer"),
        "vocab": Space(config.vocab_size),
        "label": labels(config),
        "span": Space(2),
    }


def block(name: str, prefix: str, stream: str, memory: str = "", key_bias: bool = True) -> dict[str, str]:
    """A layer of a stack, with cross-attention where there is a ``memory``: the stream of the encoder."""
    biased = (True, key_bias, True, True)
    cross = {}
    if memory:
        cross = multi_head(f"{name}.encoder_attn", "cross_", stream, memory, biased=biased)
        cross |= layer_norm(f"{name}.encoder_attn_layer_norm", stream)
    return (
        multi_head(f"{name}.self_attn", prefix, stream, stream, biased=biased)
        | layer_norm(f"{name}.self_attn_layer_norm", stream)
        | cross
        | linear(f"{name}.fc1", f"{prefix}ffn", stream)
        | linear(f"{name}.fc2", stream, f"{prefix}ffn'")
        | layer_norm(f"{name}.final_layer_norm", stream)
    )


def free_biases(templates: dict[str, str]) -> tuple[FreeGauge, ...]:
    """Key biases that the softmax cancels, and value biases that can move."""
    names = [name.removesuffix(".v_proj.bias") for name in templates if name.endswith(".v_proj.bias")]
    keys = tuple(KeyBias(f"{name}.k_proj.bias") for name in names if f"{name}.k_proj.bias" in templates)
    values = (ValueBias(f"{n}.v_proj.bias", f"{n}.out_proj.weight", f"{n}.out_proj.bias") for n in names)
    return (*keys, *values)


def read_in_layer(name: str, crossed: bool = False) -> dict[str, tuple[str, ...]]:
    """The norms in front of the branches of a layer, each with what reads it; ``crossed``: with cross-attention."""
    own = tuple(f"{name}.self_attn.{projection}_proj.weight" for projection in "qkv")
    cross = {f"{name}.encoder_attn_layer_norm": (f"{name}.encoder_attn.q_proj.weight",)} if crossed else {}
    return {f"{name}.self_attn_layer_norm": own, **cross, f"{name}.final_layer_norm": (f"{name}.fc1.weight",)}


def norms_in_front(read: dict[str, tuple[str, ...]], keys: tuple[str, ...] = ()) -> tuple[Norm, ...]:
    """Norms by their names, with their readers, of which ``keys`` are key projections without a bias."""
    return tuple(
        Norm(f"{name}.weight", readers, f"{name}.bias", keys=tuple(key for key in keys if key in readers))
        for name, readers in read.items()
    )


@declares("Bart", "bart", *HEADS, "ForQuestionAnswering")
@declares("MBart", "mbart", *HEADS, "ForQuestionAnswering")
@declares("PLBart", "plbart", *HEADS)
@declares("BlenderbotSmall", "blenderbot-small", "ForConditionalGeneration", "Model")
def bart(request: Request) -> Spec:
    """BART, PLBART, Blenderbot of 90M, and mBART. Both stacks read one embedding, so that they share one stream.

    The gain of the norm behind the embeddings sits in that stream, also in mBART, whose other norms are pre-norms.
    """
    config = request.config
    require(config.tie_word_embeddings, "tie_word_embeddings = false")
    unread = 0 if config.model_type == "blenderbot-small" else 2  # the first rows of positions
    names = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    embedding, *others = names
    ties: dict[str, str] = dict.fromkeys(others, embedding)
    if request.head == "ForConditionalGeneration":
        ties["lm_head.weight"] = embedding
    templates = dict.fromkeys((embedding, *ties), "vocab resid") | sequence_head(request)
    for name, layer, prefix, memory in (("encoder", ENCODER, "", ""), ("decoder", DECODER, "decoder_", "resid")):
        templates |= {f"{name}.embed_positions.weight": "pos resid", **layer_norm(f"{name}.layernorm_embedding")}
        templates |= block(layer, prefix, "resid", memory)
        if config.model_type == "mbart":
            templates |= layer_norm(f"{name}.layer_norm")
    if request.has("final_logits_bias"):
        templates["final_logits_bias"] = "1 vocab"
    return Spec(
        request.architecture,
        both_stacks(config)
        | {
            "resid": Space(config.d_model, None if request.head == "Model" else Permutation(), part="residual"),
            "pos": Space(getattr(config, "max_position_embeddings", 0) + unread),  # LED has two tables
            "pool": Space(config.d_model, SignedPermutation, part="ffn"),
        },
        templates,
        prefix="model.",
        tied=ties,
        biases=free_biases(templates),
        buffers=(r"(en|de)coder\.version",),
        function_keys=(*FUNCTION_KEYS, "scale_embedding", *TOKENS_READ.get(request.head, ())),
    )


def whisper_encoder(config, root: str = "encoder.") -> Parts:
    """Whisper's encoder, without the spaces of its layers and its stream: convolutions in front of a stack."""
    spaces = {
        "conv": Space(config.d_model, neurons("gelu"), part="ffn"),
        "mel": Space(config.num_mel_bins),
        "kernel": Space(3),
        "pos": Space(config.max_source_positions),
    }
    return spaces, {
        **{f"{root}conv1.weight": "conv mel kernel", f"{root}conv1.bias": "conv"},
        **{f"{root}conv2.weight": "encoder conv kernel", f"{root}conv2.bias": "encoder"},
        f"{root}embed_positions.weight": "pos encoder",
        **block(f"{root}layers.{{layer}}", "", "encoder", key_bias=False),
        **layer_norm(f"{root}layer_norm", "encoder"),
    }


@declares("Whisper", "whisper", "ForConditionalGeneration", "Model", "ForAudioClassification")
def whisper(request: Request) -> Spec:
    """Whisper. The encoder's stream is written by a GELU: it can only be permuted, and its norms keep their gains.

    A bare model shows both streams. The decoder's keys have no bias: what they take from the offset of a norm, the
    softmax cancels. An audio classifier's projection is linear: any basis will do.
    """
    config, head, embed = request.config, request.head, "decoder.embed_tokens.weight"
    require(not config.use_weighted_layer_sum, "use_weighted_layer_sum")
    permuted, generates = None if head == "Model" else Permutation(), head == "ForConditionalGeneration"
    turned = Orthogonal(fix_ones=True) if generates else None
    (spaces, templates), ties, norms = whisper_encoder(config), {}, ()
    if head == "ForAudioClassification":
        templates |= linear("projector", "proj", "encoder") | linear("classifier", "label", "proj'")
    else:
        templates |= {embed: "vocab resid", "decoder.embed_positions.weight": "decoder_pos resid"}
        templates |= block(DECODER, "decoder_", "resid", "encoder", key_bias=False) | layer_norm("decoder.layer_norm")
    if generates:
        templates["proj_out.weight"] = "vocab resid"
        ties = {"proj_out.weight": embed} if config.tie_word_embeddings else {}
        read = read_in_layer(DECODER, crossed=True) | {"decoder.layer_norm": ("proj_out.weight",)}
        norms = norms_in_front(read, keys=(f"{SELF}.k_proj.weight",))
    return Spec(
        request.architecture,
        both_stacks(config)
        | spaces
        | {
            "encoder": Space(config.d_model, permuted, part="residual"),
            "resid": Space(config.d_model, permuted, part="residual", folded=turned),
            "proj": Space(config.classifier_proj_size, Orthogonal(scaled=True), part="ffn"),
            "decoder_pos": Space(config.max_target_positions),
        },
        templates,
        prefix="model.",
        tied=ties,
        norms=norms,
        biases=free_biases(templates),
        function_keys=(*FUNCTION_KEYS, *tie_keys(ties)),
    )
