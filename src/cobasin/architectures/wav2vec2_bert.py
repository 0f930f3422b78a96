"""Wav2Vec2-BERT: a conformer over mel features, whose layers end in a norm of the stream.

Between two halves of an FFN and attention each layer has a convolution over time of every channel alone: a gate is in
front of its channels, a norm over them behind.
"""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures.parts import LAYER, NEURONS, attention, head_bases, labels, layer_norm, linear, neurons
from cobasin.architectures.speech import HEADS, task_head
from cobasin.symmetry.gauges import FreeGauge, KeyBias, SoftmaxShift, ValueBias
from cobasin.symmetry.groups import Orthogonal, Permutation
from cobasin.symmetry.spec import Space, Spec

ONE = "encoder.layers.{layer}"
OWN, CONV = f"{ONE}.self_attn", f"{ONE}.conv_module"
KEYS = ("num_attention_heads", "hidden_act", "layer_norm_eps", "position_embeddings_type")
ADAPTER_KEYS = ("adapter_act", "adapter_stride")


def positions(config) -> tuple[dict[str, Space], dict[str, str], tuple[FreeGauge, ...], tuple[str, ...]]:
    """Spaces, templates, free biases and keys of how a layer tells positions.

    By a table that all heads share, and with it their basis of queries and keys; by a map of sines; or by turning what
    queries and keys read, before their projections.
    """
    kind, width = config.position_embeddings_type, config.hidden_size // config.num_attention_heads
    if kind == "relative_key":
        left, right = config.left_max_position_embeddings, config.right_max_position_embeddings
        spaces = {"qk": Space(width, Orthogonal(scaled=True), LAYER, part="attention")}
        table = f"{OWN}.distance_embedding.weight"
        shift = SoftmaxShift(table, "distance", "attention")
        spaces["distance"] = Space(left + right + 1)
        return (
            spaces,
            {table: "distance qk'"},
            (shift,),
            ("left_max_position_embeddings", "right_max_position_embeddings"),
        )
    if kind == "relative":
        spaces = {"wave": Space(config.hidden_size)}
        biases = {f"{OWN}.pos_bias_{name}": "head qk" for name in "uv"}
        return spaces, {f"{OWN}.linear_pos.weight": "(head qk') wave", **biases}, (), ()
    return {}, {}, (), ("rotary_embedding_base",) if kind == "rotary" else ()


def _attention(own: str, read: str, written: str, kind: str = "") -> dict[str, str]:
    """Attention that reads one space and writes another; the spaces of its heads begin with ``kind``."""
    return {
        **linear(f"{own}.linear_q", f"({kind}head {kind}qk)", read),
        **linear(f"{own}.linear_k", f"({kind}head {kind}qk')", read),
        **linear(f"{own}.linear_v", f"({kind}head {kind}vo)", read),
        **linear(f"{own}.linear_out", written, f"({kind}head {kind}vo')"),
    }


def free(own: str) -> tuple[FreeGauge, ...]:
    """The free biases of such attention."""
    value = ValueBias(f"{own}.linear_v.bias", f"{own}.linear_out.weight", f"{own}.linear_out.bias")
    return KeyBias(f"{own}.linear_k.bias"), value


def _feed_forward(name: str, inner: str, stream: str) -> dict[str, str]:
    return linear(f"{name}.intermediate_dense", inner, stream) | linear(f"{name}.output_dense", stream, f"{inner}'")


def _adapter(config, bare: bool) -> tuple[str, dict[str, Space], dict[str, str], tuple[FreeGauge, ...]]:
    """What shortens the frames behind the layers: the stream that a head reads, spaces, templates, free biases.

    Every layer of it begins a stream with a gated convolution, and its attention reads another one.
    """
    size, read = config.output_hidden_size, "resid"
    heads = Space(config.num_attention_heads, Permutation(), part="heads")
    spaces, templates, biases = {"tap": Space(config.adapter_kernel_size)}, dict[str, str](), tuple[FreeGauge, ...]()
    if config.use_intermediate_ffn_before_adapter:
        templates |= _feed_forward("intermediate_ffn", "before", read)
        spaces["before"] = Space(config.intermediate_size, neurons("relu"), part="ffn")
    if size != config.hidden_size:
        templates |= linear("adapter.proj", "narrow", read) | layer_norm("adapter.proj_layer_norm", "narrow")
        spaces["narrow"], read = Space(size, Permutation(), part="residual"), "narrow"
    for i in range(config.num_adapter_layers):
        one, kind = f"adapter.layers.{i}", f"adapter{i}_"
        stream, inner, ffn = f"{kind}resid", f"{kind}mixed", f"{kind}ffn"
        fixed = bare and i == config.num_adapter_layers - 1
        spaces |= {
            f"{kind}head": heads,
            **{f"{kind}{name}": basis for name, basis in head_bases(size // heads.size, (f"{kind}head",))[0].items()},
            inner: Space(size, NEURONS, part="ffn"),
            ffn: Space(config.intermediate_size, neurons(config.adapter_act), part="ffn"),
            stream: Space(size, None if fixed else Permutation(), part="residual"),
        }
        templates |= {
            **layer_norm(f"{one}.residual_layer_norm", read),
            f"{one}.residual_conv.weight": f"({stream} + {stream}) {read} tap",
            f"{one}.residual_conv.bias": f"({stream} + {stream})",
            **layer_norm(f"{one}.self_attn_layer_norm", read),
            f"{one}.self_attn_conv.weight": f"({inner} + {inner}~) {read} tap",
            f"{one}.self_attn_conv.bias": f"({inner} + {inner}~)",
            **_attention(f"{one}.self_attn", f"{inner}'", stream, kind),
            **layer_norm(f"{one}.ffn_layer_norm", stream),
            **_feed_forward(f"{one}.ffn", ffn, stream),
        }
        biases += free(f"{one}.self_attn")
        read = stream
    return read, spaces, templates, biases


def stack(config, still: bool) -> dict[str, Space]:
    """Spaces of the layers of a conformer, and of what heads read them by; ``still``: the stream is fixed."""
    ffn = Space(config.intermediate_size, neurons(config.hidden_act), LAYER, part="ffn")
    return attention(config.num_attention_heads, config.hidden_size // config.num_attention_heads) | {
        "layer": Space(config.num_hidden_layers),
        "resid": Space(config.hidden_size, None if still else Permutation(), part="residual"),
        "mixed": Space(config.hidden_size, NEURONS, LAYER, part="ffn"),
        "kernel": Space(config.conv_depthwise_kernel_size),
        "ffn1": ffn,
        "ffn2": ffn,
        "proj": Space(config.classifier_proj_size, Orthogonal(scaled=True), part="ffn"),
        "vocab": Space(config.vocab_size or 0),
        "label": labels(config),
        "depth": Space(config.num_hidden_layers + 1),
    }


def layer(norm: dict[str, str]) -> dict[str, str]:
    """A layer of a conformer, with the ``norm`` behind its convolution over time."""
    templates = {
        **_attention(OWN, "resid", "resid"),
        f"{CONV}.pointwise_conv1.weight": "(mixed + mixed~) resid 1",
        f"{CONV}.depthwise_conv.weight": "mixed' 1 kernel",
        **norm,
        f"{CONV}.pointwise_conv2.weight": "resid mixed~ 1",
        **layer_norm(f"{CONV}.layer_norm"),
        **layer_norm(f"{ONE}.self_attn_layer_norm"),
        **layer_norm(f"{ONE}.final_layer_norm"),
    }
    for name in ("ffn1", "ffn2"):
        templates |= layer_norm(f"{ONE}.{name}_layer_norm") | _feed_forward(f"{ONE}.{name}", name, "resid")
    return templates


@declares("Wav2Vec2Bert", "wav2vec2-bert", *HEADS, "ForAudioFrameClassification")
def wav2vec2_bert(request: Request) -> Spec:
    """Wav2Vec2-BERT. Turned before the projections, or shown as output, the stream is fixed.

    Only training reads the vector that hides frames.
    """
    config = request.config
    bare = request.head == "Model"
    still = (bare and not config.add_adapter) or config.position_embeddings_type == "rotary"
    spaces, told, biases, keys = positions(config)
    last, behind, adapter, more = _adapter(config, bare) if config.add_adapter else ("resid", {}, {}, ())
    masked = {"masked_spec_embed": "resid"} if request.has("masked_spec_embed") else {}
    return Spec(
        request.architecture,
        stack(config, still) | spaces | {"feature": Space(config.feature_projection_input_dim)} | behind,
        {
            **layer_norm("feature_projection.layer_norm", "feature"),
            **linear("feature_projection.projection", "resid", "feature"),
            **masked,
            **layer(layer_norm(f"{CONV}.depthwise_layer_norm", "mixed~")),
            **told,
            **adapter,
            **task_head(request, last),
        },
        prefix="wav2vec2_bert.",
        biases=(*free(OWN), *biases, *more),
        unread=tuple(masked),
        function_keys=(*KEYS, *keys, *(ADAPTER_KEYS if config.add_adapter else ())),
    )
