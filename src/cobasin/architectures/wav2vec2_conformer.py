"""wav2vec 2.0 with the layers of a conformer: they begin with convolutions over the waveform.

Other than in Wav2Vec2-BERT, a batch norm is behind the convolution over time, with the statistics of its training.
"""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures.parts import layer_norm, require
from cobasin.architectures.speech import HEADS, PRE_TRAINING, books, coding, task_head, waveform
from cobasin.architectures.speech_adapters import ADAPTER_KEYS, shortening
from cobasin.architectures.wav2vec2_bert import CONV, OWN, free, layer, positions, stack
from cobasin.symmetry.spec import Space, Spec

KEYS = (
    "num_attention_heads",
    "hidden_act",
    "layer_norm_eps",
    "feat_extract_activation",
    "conv_stride",
    "position_embeddings_type",
)
FREQUENCIES = "encoder.embed_positions.inv_freq"
# a convolution in groups that is there and not run; how many batches the statistics are of
COPIED = (r"encoder\.pos_conv_embed\..*", r".*\.num_batches_tracked")


@declares("Wav2Vec2Conformer", "wav2vec2-conformer", *HEADS, "ForAudioFrameClassification", "ForPreTraining")
def wav2vec2_conformer(request: Request) -> Spec:
    """wav2vec2-conformer. Turned before the projections, or shown as output, the stream is fixed.

    Files have the frequencies by which it is turned. Only training reads the vector that hides frames.
    """
    config, head = request.config, request.head
    kind = config.position_embeddings_type
    require(kind in ("relative", "rotary", None), f"position_embeddings_type = {kind}")
    require(not (config.add_adapter and head == "ForPreTraining"), "add_adapter")
    still = (head == "Model" and not config.add_adapter) or kind == "rotary"
    read, (shorter, adapter) = shortening(config, head == "Model")
    spaces, convolutions = waveform(config, head == "Model")
    own, told, biases, keys = positions(config)
    masked = {"masked_spec_embed": "resid"} if request.has("masked_spec_embed") else {}
    # a classifier of the streams of all layers reads the last one in front of this norm
    last = layer_norm("encoder.layer_norm")
    weighted = config.use_weighted_layer_sum and head in ("ForSequenceClassification", "ForAudioFrameClassification")
    norm = layer_norm(f"{CONV}.batch_norm", "mixed~")
    norm |= {f"{CONV}.batch_norm.running_{moment}": "mixed~" for moment in ("mean", "var")}
    return Spec(
        request.architecture,
        stack(config, still)
        | spaces
        | own
        | {"freq": Space(config.hidden_size // config.num_attention_heads // 2)}
        | shorter
        | (books(config) if head == "ForPreTraining" else {}),
        {
            **convolutions,
            **masked,
            **({FREQUENCIES: "freq"} if kind == "rotary" else {}),
            **layer(norm),
            **told,
            **last,
            **adapter,
            **(coding(config) if head == "ForPreTraining" else task_head(request, read)),
        },
        prefix="wav2vec2_conformer.",
        biases=(*free(OWN), *biases),
        buffers=(*COPIED, *(PRE_TRAINING if head == "Model" else ())),
        unread=(*masked, *(last if weighted else ())),
        function_keys=(*KEYS, *keys, *(ADAPTER_KEYS if config.add_adapter else ())),
    )
