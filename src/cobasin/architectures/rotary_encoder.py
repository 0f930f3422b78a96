"""Encoders with a rotary embedding: EuroBERT, of Llama's layers; NomicBERT, GTE and Jina v3, post-norm as BERT."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from cobasin.architectures import Request, declares
from cobasin.architectures.encoder import ANSWERING, bert_head, bert_spaces, masked_lm, roberta_head, unread
from cobasin.architectures.joining import without_keys
from cobasin.architectures.parts import NEURONS, attention, layer_norm, linear, output_head, rope_keys, tie_keys
from cobasin.architectures.rmsnorm_decoder import gated, head_width, rmsnorm_decoder, rotary_attention
from cobasin.symmetry.gauges import ValueBias
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
    basis, attention = rotary_attention(config)
    spec = rmsnorm_decoder(
        request,
        basis | {"pool": Space(config.hidden_size, Permutation(), part="ffn")},
        attention,
        gated(bias=config.mlp_bias),
        keys=("classifier_pooling",) if classifies else (),
        own_head=head,
    )
    return without_keys(spec, "is_causal")  # it is not


class Names(NamedTuple):
    """What files call the norm of the embeddings, a layer, its projections and its norms."""

    embedded: str
    layer: str
    fused: str
    output: str
    after: tuple[str, str]


NOMIC = Names("emb_ln", "encoder.layers.{layer}", "attn.Wqkv", "attn.out_proj", ("norm1", "norm2"))
JINA = NOMIC._replace(fused="mixer.Wqkv", output="mixer.out_proj")
GTE = Names(
    "embeddings.LayerNorm",
    "encoder.layer.{layer}",
    "attention.qkv_proj",
    "attention.o_proj",
    ("attn_ln", "mlp_ln"),
)


def _post_norm(
    request: Request,
    names: Names,
    mlp: dict[str, str],
    head: tuple[dict[str, str], dict[str, str]],
    biased: bool,
    **options,
) -> Spec:
    """A BERT with a rotary embedding; ``mlp`` are the tensors of a layer's FFN, gated where one of them says so."""
    config, (templates, ties) = request.config, head
    fused, output, *norms = (f"{names.layer}.{name}" for name in (names.fused, names.output, *names.after))
    tables = {"word": "vocab", **({"token_type": "type"} if config.type_vocab_size else {})}
    width = head_width(config)
    spaces = bert_spaces(request) | attention(config.num_attention_heads, width, rotated=width)
    if any("ffn~" in type_ for type_ in mlp.values()):
        spaces["ffn"] = replace(spaces["ffn"], group=NEURONS)
    kept = unread(request, "pooler.dense", templates)
    return Spec(
        request.architecture,
        spaces,
        {
            **{f"embeddings.{name}_embeddings.weight": f"{rows} resid" for name, rows in tables.items()},
            **layer_norm(names.embedded),
            **linear(fused, "(head pair freq + head pair' freq + head vo)", "resid", biased),
            **linear(output, "resid", "(head vo')", biased),
            **layer_norm(norms[0]),
            **{f"{names.layer}.mlp.{name}": type_ for name, type_ in mlp.items()},
            **layer_norm(norms[1]),
            **templates,
            **kept,
        },
        tied=ties,
        biases=(ValueBias(f"{fused}.bias", f"{output}.weight", f"{output}.bias", block=2),) if biased else (),
        unread=tuple(kept),
        function_keys=("num_attention_heads", "hidden_act", "layer_norm_eps", *rope_keys(config), *tie_keys(ties)),
        **options,
    )


@declares("NomicBert", "nomic_bert", *HEADS)
def nomic_bert(request: Request) -> Spec:
    """NomicBERT."""
    p, tied = "cls.predictions", request.config.tie_word_embeddings
    masked = masked_lm(tied, f"{p}.transform.dense", f"{p}.transform.layer_norm", f"{p}.decoder", f"{p}.bias")
    mlp = {"fc11.weight": "ffn resid", "fc12.weight": "ffn~ resid", "fc2.weight": "resid ffn'"}
    return _post_norm(request, NOMIC, mlp, bert_head(request, "pooler.dense", masked), False, prefix="nomic_bert.")


@declares("Gte", "gte", *HEADS)
def gte(request: Request) -> Spec:
    """GTE, English v1.5 and multilingual. On the hub the base model is called ``new``."""
    tied, decoder = request.config.tie_word_embeddings, "lm_head.decoder"
    masked = masked_lm(tied, "lm_head.dense", "lm_head.norm", decoder, f"{decoder}.bias")
    mlp = {"up_gate_proj.weight": "(ffn + ffn~) resid", **linear("down_proj", "resid", "ffn'")}
    head = bert_head(request, "pooler.dense", masked)
    return _post_norm(request, GTE, mlp, head, True, prefix="gte.", aliases={"new.": ""})


@declares("JinaEmbeddingsV3", "jina_embeddings_v3", *ANSWERING)
def jina(request: Request) -> Spec:
    """Jina embeddings v3, without the adapters of its tasks."""
    mlp = linear("fc1", "ffn", "resid") | linear("fc2", "resid", "ffn'")
    return _post_norm(request, JINA, mlp, roberta_head(request), True, prefix="roberta.")
