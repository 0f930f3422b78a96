"""wav2vec 2.0, HuBERT, UniSpeech, WavLM, data2vec: convolutions over the waveform, then a pre- or post-norm encoder.

A convolution in groups tells positions: it reads groups of channels of the stream, and writes to the same ones behind a
GELU. An order would have to keep the groups together; the stream stays as it is. WavLM also cuts the stream into as
many pieces as there are heads, and each head reads its own: the heads cannot be in another order.
"""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.encoder_decoder import free_biases, multi_head
from cobasin.architectures.parts import LAYER, Parts, attention, labels, layer_norm, linear, neurons, require
from cobasin.architectures.speech_adapters import ADAPTER_KEYS, shortening, within_layers
from cobasin.symmetry.gauges import FreeGauge, SoftmaxShift
from cobasin.symmetry.groups import Orthogonal, Permutation
from cobasin.symmetry.spec import Space, Spec

HEADS = ("Model", "ForCTC", "ForSequenceClassification")
ONE = "encoder.layers.{layer}"
POSITIONS = "encoder.pos_conv_embed.conv"
# what PyTorch calls the two parts of a weight, and did before its version 2
WEIGHT_NORM = (
    ("parametrizations.weight.original0", "parametrizations.weight.original1"),
    ("weight_g", "weight_v"),
)
BIAS = "encoder.layers.0.attention.rel_attn_embed.weight"
# of pre-training, in files of bare models, which show all that it reads, so that all of it stays
PRE_TRAINING = (
    r"(quantizer|project_hid|project_q|ctc_proj|speaker_proj|layer_norm_for_extract)\..*",
    "label_embeddings_concat",
)
FUNCTION_KEYS = (
    "num_attention_heads",
    "hidden_act",
    "layer_norm_eps",
    "feat_extract_activation",
    "conv_stride",
    "do_stable_layer_norm",
)
# keys with what holds where a config lacks them; data2vec's code goes this way, whatever its config says
CHOICES = {"feat_extract_norm": "layer", "feat_proj_layer_norm": True, "do_stable_layer_norm": False}

# the types that have convolutions behind the layers if told to, and those that end their layers in an FFN
SHORTENED = ("wav2vec2", "wavlm", "data2vec-audio")
EXTENDED = ("wav2vec2", "hubert", "unispeech", "unispeech-sat")


def _reads_choices(config) -> bool:
    return config.model_type != "data2vec-audio"


def _chosen(config, key: str):
    return getattr(config, key, CHOICES[key]) if _reads_choices(config) else CHOICES[key]


def waveform(config, bare: bool) -> Parts:
    """Spaces and tensors of the convolutions over the waveform, and of what reads them.

    The last channels are an output of a bare model. An instance norm behind the first convolution cancels a bias there.
    """
    grouped = _chosen(config, "feat_extract_norm") == "group"
    require(not (config.conv_bias and grouped), "conv_bias with feat_extract_norm = group")
    spaces, templates, last = {}, {}, len(config.conv_dim) - 1
    for i, (size, kernel) in enumerate(zip(config.conv_dim, config.conv_kernel, strict=True)):
        name = f"feature_extractor.conv_layers.{i}"
        spaces[f"conv{i}"] = Space(size, None if bare and i == last else Permutation(), part="ffn")
        spaces[f"kernel{i}"] = Space(kernel)
        templates[f"{name}.conv.weight"] = f"conv{i} {f'conv{i - 1}' if i else '1'} kernel{i}"
        templates |= {f"{name}.conv.bias": f"conv{i}"} if config.conv_bias else {}
        normed = i == 0 or not grouped
        templates |= layer_norm(f"{name}.layer_norm", f"conv{i}") if normed else {}
    if _chosen(config, "feat_proj_layer_norm"):
        templates |= layer_norm("feature_projection.layer_norm", f"conv{last}")
    return spaces, templates | linear("feature_projection.projection", "resid", f"conv{last}")


def _positions(request: Request) -> Parts:
    """Spaces and tensors of what tells positions: one convolution with its weight in two parts, or several as they are.

    Of data2vec, whose several convolutions are followed by norms without gains.
    """
    config = request.config
    if config.model_type == "data2vec-audio":
        spaces = {"kernel": Space(config.conv_pos_kernel_size), "conv_layer": Space(config.num_conv_pos_embeddings)}
        return spaces, linear("encoder.pos_conv_embed.layers.{conv_layer}.conv", "resid", "channel kernel")
    size, direction = next((names for names in WEIGHT_NORM if request.has(names[0])), WEIGHT_NORM[0])
    return {"kernel": Space(config.num_conv_pos_embeddings)}, {
        f"{POSITIONS}.bias": "resid",
        f"{POSITIONS}.{size}": "1 1 kernel",
        f"{POSITIONS}.{direction}": "resid channel kernel",
    }


def books(config) -> dict[str, Space]:
    """Spaces of the quantizer of pre-training, which takes an entry out of each of its books and puts them in a row."""
    count, book = config.num_codevector_groups, ("book",)
    return {
        "book": Space(count, Permutation(), part="heads"),
        "entry": Space(config.num_codevectors_per_group, Permutation(), book, part="ffn"),
        "piece": Space(config.codevector_dim // count, Orthogonal(scaled=True), book, part="attention"),
        "joint": Space(config.proj_codevector_dim),
    }


def task_head(request: Request, stream: str = "resid") -> dict[str, str]:
    """The templates of a task head on a stream."""
    config = request.config
    # the only heads that read it, and the streams of all layers with it
    weighted = {"layer_weights": "depth"} if config.use_weighted_layer_sum else {}
    return {
        "ForCTC": linear("lm_head", "vocab", stream),
        "ForSequenceClassification": linear("projector", "proj", stream)
        | linear("classifier", "label", "proj'")
        | weighted,
        "ForAudioFrameClassification": linear("classifier", "label", stream) | weighted,
    }.get(request.head, {})


def coding(config) -> dict[str, str]:
    """Templates of pre-training, which compares the stream with codes of the last channels."""
    return (
        linear("quantizer.weight_proj", "(book entry)", f"conv{len(config.conv_dim) - 1}")
        | {"quantizer.codevectors": "1 (book entry) piece"}
        | linear("project_q", "joint", "(book piece')")
        | linear("project_hid", "joint", "resid")
    )


@declares("Wav2Vec2", "wav2vec2", *HEADS, "ForAudioFrameClassification", "ForPreTraining")
@declares("Hubert", "hubert", *HEADS)
@declares("UniSpeech", "unispeech", *HEADS)
@declares("UniSpeechSat", "unispeech-sat", *HEADS, "ForAudioFrameClassification")
@declares("Data2VecAudio", "data2vec-audio", *HEADS, "ForAudioFrameClassification")
def wav2vec2(request: Request) -> Spec:
    """wav2vec 2.0, XLS-R, HuBERT, UniSpeech, UniSpeech-SAT, data2vec. Only training reads the vector that hides frames.

    A classifier's projection is linear: any basis will do.
    """
    config = request.config
    stable = _chosen(config, "do_stable_layer_norm")  # the last norm is in front of the layers or behind
    shortened, within = (getattr(config, key, None) for key in ("add_adapter", "adapter_attn_dim"))
    behind = config.model_type in SHORTENED and request.head != "ForPreTraining"
    require(behind or not shortened, "add_adapter")
    require((stable and config.model_type in EXTENDED) or within is None, "adapter_attn_dim")
    require(not getattr(config, "conv_pos_batch_norm", False), "conv_pos_batch_norm")
    spaces, convolutions = waveform(config, request.head == "Model")
    kernel, positions = _positions(request)
    read, (shorter, adapter) = shortening(config, request.head == "Model")
    added, layers_end = within_layers(config) if within is not None else ({}, {})
    last = layer_norm("encoder.layer_norm")
    masked = {"masked_spec_embed": "resid"} if request.has("masked_spec_embed") else {}
    templates = {
        **convolutions,
        **masked,
        **positions,
        **({} if stable else last),
        **multi_head(f"{ONE}.attention", ""),
        **layer_norm(f"{ONE}.layer_norm"),
        **linear(f"{ONE}.feed_forward.intermediate_dense", "ffn", "resid"),
        **linear(f"{ONE}.feed_forward.output_dense", "resid", "ffn'"),
        **layer_norm(f"{ONE}.final_layer_norm"),
        **layers_end,
        **(last if stable else {}),
        **adapter,
        **(coding(config) if request.head == "ForPreTraining" else task_head(request, read)),
    }
    return Spec(
        request.architecture,
        spaces
        | attention(config.num_attention_heads, config.hidden_size // config.num_attention_heads)
        | {
            "layer": Space(config.num_hidden_layers),
            "resid": Space(config.hidden_size, part="residual"),
            "channel": Space(config.hidden_size // config.num_conv_pos_embedding_groups),
            **kernel,
            **added,
            **shorter,
            "ffn": Space(config.intermediate_size, neurons(config.hidden_act), LAYER, part="ffn"),
            "proj": Space(config.classifier_proj_size, Orthogonal(scaled=True), part="ffn"),
            "vocab": Space(config.vocab_size or 0),
            "label": labels(config),
            "depth": Space(config.num_hidden_layers + 1),
            **(books(config) if request.head == "ForPreTraining" else {}),
        },
        templates,
        prefix=f"{config.model_type.replace('-', '_')}.",
        biases=free_biases(templates),
        buffers=PRE_TRAINING if request.head == "Model" else (),
        unread=tuple(masked),
        function_keys=(
            *(key for key in FUNCTION_KEYS if key not in CHOICES or _reads_choices(config)),
            *(ADAPTER_KEYS if shortened else ()),
        ),
    )


@declares("WavLM", "wavlm", *HEADS, "ForAudioFrameClassification")
def wavlm(request: Request) -> Spec:
    """WavLM: a position bias of every head, which gates that read the head's piece of the stream multiply.

    A gate is the same for all that a query looks at: the softmax cancels what a head's biases share.
    """
    config, spec = request.config, wav2vec2(request)
    own = {
        "head": Space(config.num_attention_heads),
        "piece": Space(config.hidden_size // config.num_attention_heads),
        "gate": Space(8),
        "bucket": Space(config.num_buckets),
    }
    gates = {f"{ONE}.attention.gru_rel_pos_const": "1 head 1 1"}
    shift: FreeGauge = SoftmaxShift(BIAS, "bucket", "attention")
    return replace(
        spec,
        spaces={**spec.spaces, **own},
        templates={
            BIAS: "bucket head",
            **spec.templates,
            **gates,
            **linear(f"{ONE}.attention.gru_rel_pos_linear", "gate", "piece"),
        },
        biases=(*spec.biases, shift),
        function_keys=(*spec.function_keys, "max_bucket_distance"),
    )
