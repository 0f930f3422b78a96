"""BigBird-Pegasus: a Pegasus that has learned its positions, whose encoder looks at blocks of a text as BigBird's.

What a head looks at is drawn for every head in training only.
"""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures.encoder_decoder import (
    CROSS,
    DECODER,
    ENCODER,
    FUNCTION_KEYS,
    SELF,
    TOKENS_READ,
    both_stacks,
    free_biases,
    multi_head,
    norms_in_front,
    read_in_layer,
    sequence_head,
)
from cobasin.architectures.parts import layer_norm, linear, tie_keys
from cobasin.architectures.unnormed_encoder_decoder import POSITIONS, SHARED, embeddings
from cobasin.symmetry.gauges import KeyBias, Norm, ValueBias
from cobasin.symmetry.groups import Orthogonal, Permutation, SignedPermutation
from cobasin.symmetry.spec import Space, Spec

OWN = f"{ENCODER}.self_attn"
# the key projections
PROJECTIONS = (f"{OWN}.self.key.weight", f"{SELF}.k_proj.weight", f"{CROSS}.k_proj.weight")
HEADS = ("ForConditionalGeneration", "Model", "ForSequenceClassification", "ForQuestionAnswering")


def _norms(head: tuple[str, ...], biased: bool) -> tuple[Norm, ...]:
    """The norms and what reads them: the encoder's last one all cross-attentions, the decoder's ``head``."""
    before, after = f"{ENCODER}.self_attn_layer_norm", f"{ENCODER}.final_layer_norm"
    read = {
        before: tuple(f"{OWN}.self.{name}.weight" for name in ("query", "key", "value")),
        after: (f"{ENCODER}.fc1.weight",),
        "encoder.layernorm_embedding": (f"{CROSS}.k_proj.weight", f"{CROSS}.v_proj.weight"),
        **read_in_layer(DECODER, crossed=True),
        "decoder.layernorm_embedding": head,
    }
    return norms_in_front(read, () if biased else PROJECTIONS)


def _layers(biased: bool) -> dict[str, str]:
    """Templates of the layers of both stacks, with their last norms, which are called as others call the first ones."""
    all_four, names = (biased, biased, biased, biased), ("self.query", "self.key", "self.value", "output")
    templates = multi_head(OWN, "", names=names, biased=all_four) | multi_head(SELF, "decoder_", biased=all_four)
    templates |= multi_head(CROSS, "cross_", biased=all_four) | layer_norm(f"{DECODER}.encoder_attn_layer_norm")
    for name, layer, ffn in (("encoder", ENCODER, "ffn"), ("decoder", DECODER, "decoder_ffn")):
        templates |= layer_norm(f"{layer}.self_attn_layer_norm") | layer_norm(f"{layer}.final_layer_norm")
        templates |= linear(f"{layer}.fc1", ffn, "resid") | linear(f"{layer}.fc2", "resid", f"{ffn}'")
        templates |= layer_norm(f"{name}.layernorm_embedding") | {f"{name}.{POSITIONS}": "pos resid"}
    return templates


@declares("BigBirdPegasus", "bigbird_pegasus", *HEADS)
def bigbird_pegasus(request: Request) -> Spec:
    """BigBird-Pegasus. Both stacks have one stream, as they do in BART."""
    config, bare, biased = request.config, request.head == "Model", request.config.use_bias
    tables, ties = embeddings(request)
    head = sequence_head(request)
    reader = next((name for name in head if name.endswith(".weight")), "lm_head.weight")
    layers = _layers(biased)
    own = (
        KeyBias(f"{OWN}.self.key.bias"),
        ValueBias(f"{OWN}.self.value.bias", f"{OWN}.output.weight", f"{OWN}.output.bias"),
    )
    stream = (None, None) if bare else (Permutation(), Orthogonal(fix_ones=True))
    sparse = ("block_size", "num_random_blocks") if config.attention_type == "block_sparse" else ()
    keys = (*FUNCTION_KEYS, "scale_embedding", "attention_type", *sparse, *TOKENS_READ.get(request.head, ()))
    return Spec(
        request.architecture,
        both_stacks(config)
        | {
            "resid": Space(config.d_model, stream[0], part="residual", folded=stream[1]),
            "pos": Space(config.max_position_embeddings),
            "pool": Space(config.d_model, SignedPermutation, part="ffn"),
        },
        {
            **tables,
            **layers,
            **head,
            **({"final_logits_bias": "1 vocab"} if request.has("final_logits_bias") else {}),
        },
        prefix="model.",
        tied=ties,
        norms=() if bare else _norms((reader,), biased),
        biases=(*own, *free_biases(layers)) if biased else (),
        unread=() if ties else (SHARED,),
        function_keys=(*keys, *tie_keys(ties)),
    )
