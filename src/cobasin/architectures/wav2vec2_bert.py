"""Wav2Vec2-BERT: a conformer over mel features, whose layers end in a norm of the stream.

Between two halves of an FFN and attention each layer has a convolution over time of every channel alone: a gate is in
front of its channels, a norm over them behind.
"""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures.parts import LAYER, NEURONS, attention, labels, layer_norm, linear, neurons, require
from cobasin.architectures.speech import HEADS, task_head
from cobasin.symmetry.gauges import FreeGauge, KeyBias, SoftmaxShift, ValueBias
from cobasin.symmetry.groups import Orthogonal, Permutation
from cobasin.symmetry.spec import Space, Spec

ONE = "encoder.layers.{layer}"
OWN, CONV = f"{ONE}.self_attn", f"{ONE}.conv_module"
KEYS = ("num_attention_heads", "hidden_act", "layer_norm_eps", "position_embeddings_type")
BIASES = (
    KeyBias(f"{OWN}.linear_k.bias"),
    ValueBias(f"{OWN}.linear_v.bias", f"{OWN}.linear_out.weight", f"{OWN}.linear_out.bias"),
)


def _positions(config) -> tuple[dict[str, Space], dict[str, str], tuple[FreeGauge, ...], tuple[str, ...]]:
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


def _layer() -> dict[str, str]:
    templates = {
        **linear(f"{OWN}.linear_q", "(head qk)", "resid"),
        **linear(f"{OWN}.linear_k", "(head qk')", "resid"),
        **linear(f"{OWN}.linear_v", "(head vo)", "resid"),
        **linear(f"{OWN}.linear_out", "resid", "(head vo')"),
        f"{CONV}.pointwise_conv1.weight": "(mixed + mixed~) resid 1",
        f"{CONV}.depthwise_conv.weight": "mixed' 1 kernel",
        **layer_norm(f"{CONV}.depthwise_layer_norm", "mixed~"),
        f"{CONV}.pointwise_conv2.weight": "resid mixed~ 1",
        **layer_norm(f"{CONV}.layer_norm"),
        **layer_norm(f"{ONE}.self_attn_layer_norm"),
        **layer_norm(f"{ONE}.final_layer_norm"),
    }
    for name in ("ffn1", "ffn2"):
        templates |= layer_norm(f"{ONE}.{name}_layer_norm")
        templates |= linear(f"{ONE}.{name}.intermediate_dense", name, "resid")
        templates |= linear(f"{ONE}.{name}.output_dense", "resid", f"{name}'")
    return templates


@declares("Wav2Vec2Bert", "wav2vec2-bert", *HEADS, "ForAudioFrameClassification")
def wav2vec2_bert(request: Request) -> Spec:
    """Wav2Vec2-BERT. Turned before the projections, or shown as output, the stream is fixed.

    Only training reads the vector that hides frames.
    """
    config = request.config
    require(not config.add_adapter, "add_adapter")
    still = request.head == "Model" or config.position_embeddings_type == "rotary"
    spaces, positions, biases, keys = _positions(config)
    ffn = Space(config.intermediate_size, neurons(config.hidden_act), LAYER, part="ffn")
    masked = {"masked_spec_embed": "resid"} if request.has("masked_spec_embed") else {}
    return Spec(
        request.architecture,
        attention(config.num_attention_heads, config.hidden_size // config.num_attention_heads)
        | spaces
        | {
            "layer": Space(config.num_hidden_layers),
            "resid": Space(config.hidden_size, None if still else Permutation(), part="residual"),
            "feature": Space(config.feature_projection_input_dim),
            "mixed": Space(config.hidden_size, NEURONS, LAYER, part="ffn"),
            "kernel": Space(config.conv_depthwise_kernel_size),
            "ffn1": ffn,
            "ffn2": ffn,
            "proj": Space(config.classifier_proj_size, Orthogonal(scaled=True), part="ffn"),
            "vocab": Space(config.vocab_size or 0),
            "label": labels(config),
            "depth": Space(config.num_hidden_layers + 1),
        },
        {
            **layer_norm("feature_projection.layer_norm", "feature"),
            **linear("feature_projection.projection", "resid", "feature"),
            **masked,
            **_layer(),
            **positions,
            **task_head(request),
        },
        prefix="wav2vec2_bert.",
        biases=(*BIASES, *biases),
        unread=tuple(masked),
        function_keys=(*KEYS, *keys),
    )
