"""EuroBERT: an encoder of Llama's layers."""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.parts import linear, output_head
from cobasin.architectures.rmsnorm_decoder import gated, head_width, projections, rmsnorm_decoder, rotary
from cobasin.symmetry.groups import Permutation
from cobasin.symmetry.spec import Space, Spec

HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")


@declares("EuroBert", "eurobert", *HEADS)
def eurobert(request: Request) -> Spec:
    """EuroBERT."""
    config = request.config
    if classifies := request.head == "ForSequenceClassification":
        head = linear("dense", "pool", "resid") | linear("classifier", "label", "pool"), {}
    else:
        head = output_head(request, "embed_tokens.weight", biased=config.mlp_bias, classifier="classifier")
    biased = config.attention_bias
    spec = rmsnorm_decoder(
        request,
        rotary(head_width(config)) | {"pool": Space(config.hidden_size, Permutation(), part="ffn")},
        projections(biased, biased),
        gated(bias=config.mlp_bias),
        keys=("classifier_pooling",) if classifies else (),
        own_head=head,
    )
    return replace(spec, function_keys=tuple(key for key in spec.function_keys if key != "is_causal"))  # it is not
