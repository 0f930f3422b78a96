"""Nyströmformer: BERT, whose attention goes by landmarks, and adds a convolution of the values of every head."""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.encoder import HEADS, bert_masked_lm, bert_spec, token_head
from cobasin.architectures.joining import without_keys
from cobasin.architectures.parts import linear, neurons, require
from cobasin.symmetry.gauges import KeyBias
from cobasin.symmetry.spec import Space, Spec


@declares("Nystromformer", "nystromformer", *HEADS)
def nystromformer(request: Request) -> Spec:
    """Nyströmformer. Landmarks are means of queries and keys, so that a map of these goes through them.

    What a head puts out is no mean of its values, whose biases are not free.
    """
    config = request.config
    require(not config.inv_coeff_init_option, "inv_coeff_init_option")  # Transformers looks it up by another name
    act, (head, ties) = config.hidden_act, (token_head(request), {})
    if request.head == "ForMaskedLM":
        head, ties = bert_masked_lm(request)
    if request.head == "ForSequenceClassification":
        head = linear("classifier.dense", "read", "resid") | linear("classifier.out_proj", "label", "read'")
    if request.head == "ForMultipleChoice":
        act, head = "relu", linear("pre_classifier", "read", "resid") | linear("classifier", "label", "read'")
    spec = without_keys(bert_spec(request, head, ties, "nystromformer."), "position_embedding_type", "is_decoder")
    return replace(
        spec,
        spaces={
            **spec.spaces,
            "pos": Space(config.max_position_embeddings + 2),
            "read": Space(config.hidden_size, neurons(act), part="ffn"),
            "tap": Space(config.conv_kernel_size),
        },
        templates={**spec.templates, "encoder.layer.{layer}.attention.self.conv.weight": "head 1 tap 1"},
        biases=tuple(bias for bias in spec.biases if isinstance(bias, KeyBias)),
        function_keys=(*spec.function_keys, "num_landmarks", "segment_means_seq_len"),
    )
