"""Decoders as the second part of a model: what is declared of them alone, with attention to the stream of an encoder.

That stream is the space ``memory`` here, which the model around them has.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

from cobasin.architectures import Declaration, Request
from cobasin.architectures.decoder import gpt2
from cobasin.architectures.encoder import bert, roberta
from cobasin.architectures.encoder_decoder import block, free_biases, heads, multi_head, stack
from cobasin.architectures.encoder_variants import bert_generation
from cobasin.architectures.parts import conv1d, layer_norm, neurons, require, tie_keys
from cobasin.symmetry.gauges import FreeGauge, KeyBias, Norm, ValueBias
from cobasin.symmetry.groups import Permutation
from cobasin.symmetry.spec import Space, Spec

Templates = dict[str, str]
Crossed = Callable[[Request], Spec]


def _without_crossing(request: Request, declaration: Declaration, head: str) -> Spec:
    """What the decoder is alone; its class has no other attention unless the config says so."""
    require(request.config.add_cross_attention, "decoder.add_cross_attention = false")
    config = copy.copy(request.config)
    config.add_cross_attention = False
    return declaration(replace(request, config=config, head=head))


def _with(spec: Spec, after: str, templates: Templates, norms: tuple[Norm, ...], *biases: FreeGauge) -> Spec:
    """The same with an attention that looks at ``memory``, whose ``templates`` follow those of ``after``."""
    given = list(spec.templates.items())
    place = list(spec.templates).index(after) + 1
    return replace(
        spec,
        spaces={**spec.spaces, **heads("cross_", spec.sizes["head"], spec.sizes["vo"], "layer")},
        templates={**dict(given[:place]), **templates, **dict(given[place:])},
        norms=(*spec.norms, *norms),
        biases=(*spec.biases, *biases),
    )


def _of_bert(declaration: Declaration, head: str) -> Crossed:
    """A decoder with BERT's layers."""
    layer = "encoder.layer.{layer}"
    own = f"{layer}.crossattention"
    names = ("self.query", "self.key", "self.value", "output.dense")

    def crossed(request: Request) -> Spec:
        require(request.config.is_decoder, "decoder.is_decoder = false")
        return _with(
            _without_crossing(request, declaration, head),
            f"{layer}.attention.output.LayerNorm.bias",
            multi_head(own, "cross_", "resid", "memory", names) | layer_norm(f"{own}.output.LayerNorm"),
            (),
            KeyBias(f"{own}.self.key.bias"),
            ValueBias(f"{own}.self.value.bias", f"{own}.output.dense.weight", f"{own}.output.dense.bias"),
        )

    return crossed


def _gpt2(request: Request) -> Spec:
    """GPT-2, with a norm of its own in front of the queries."""
    own, norm = "h.{layer}.crossattention", "h.{layer}.ln_cross_attn"
    spec = _with(
        _without_crossing(request, gpt2, "LMHeadModel"),
        "h.{layer}.attn.c_proj.bias",
        {
            **layer_norm(norm),
            **conv1d(f"{own}.q_attn", "(cross_head cross_qk)", "resid"),
            **conv1d(f"{own}.c_attn", "(cross_head cross_qk' + cross_head cross_vo)", "memory"),
            **conv1d(f"{own}.c_proj", "resid", "(cross_head cross_vo')"),
        },
        (Norm(f"{norm}.weight", (f"{own}.q_attn.weight",), f"{norm}.bias"),),
        KeyBias(f"{own}.c_attn.bias"),
        ValueBias(f"{own}.c_attn.bias", f"{own}.c_proj.weight", f"{own}.c_proj.bias", block=1),
    )
    return replace(spec, buffers=(*spec.buffers, r"h\.\d+\.crossattention\.(bias|masked_bias)"))


def _bart(request: Request) -> Spec:
    """BART, mBART and TrOCR: the second stack of an encoder-decoder. Sines that TrOCR may add keep its stream."""
    config, layer, embedding = request.config, "layers.{layer}", "embed_tokens.weight"
    trocr = config.model_type == "trocr"
    learned = not trocr or config.use_learned_position_embeddings
    head = "output_projection.weight" if trocr else "lm_head.weight"
    templates = {embedding: "vocab resid"} | ({"embed_positions.weight": "pos resid"} if learned else {})
    if not trocr or config.layernorm_embedding:
        templates |= layer_norm("layernorm_embedding")
    templates |= block(layer, "", "resid", "memory")
    if config.model_type == "mbart":
        templates |= layer_norm("layer_norm")
    count, ties = config.decoder_attention_heads, {head: embedding} if config.tie_word_embeddings else {}
    width, group = config.d_model // count, neurons(config.activation_function)
    return Spec(
        request.architecture,
        {
            **stack("", config.decoder_layers, count, width, config.decoder_ffn_dim, group),
            **heads("cross_", count, width, "layer"),
            "resid": Space(config.d_model, Permutation() if learned else None, part="residual"),
            "vocab": Space(config.vocab_size),
            "pos": Space(config.max_position_embeddings + 2),
        },
        templates | {head: "vocab resid"},
        prefix="model.decoder.",
        tied=ties,
        biases=free_biases(templates),
        buffers=("version", r"embed_positions\._float_tensor"),
        function_keys=(
            *("decoder_attention_heads", "activation_function", "scale_embedding", "is_causal"),
            *(() if learned else ("pad_token_id",)),  # positions are counted from it
            *tie_keys(ties),
        ),
    )


DECODERS: dict[str, Crossed] = {
    "bert": _of_bert(bert, "LMHeadModel"),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), _of_bert(roberta, "ForCausalLM")),
    "bert-generation": _of_bert(bert_generation, "Decoder"),
    "gpt2": _gpt2,
    **dict.fromkeys(("bart", "mbart", "trocr"), _bart),
}
