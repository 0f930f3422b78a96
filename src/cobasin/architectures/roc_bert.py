"""RoCBert: BERT, which also reads how a character looks and how it is pronounced."""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.encoder import HEADS, VOCABULARY, bert_head, bert_spec, masked_lm, with_tables
from cobasin.architectures.joining import without_keys
from cobasin.architectures.parts import layer_norm, linear, require
from cobasin.symmetry.groups import Orthogonal, Permutation
from cobasin.symmetry.spec import Space, Spec

MAP = "embeddings.map_inputs_layer"
LOOKS, SOUNDS = "embeddings.shape_embed.weight", "embeddings.pronunciation_embed.weight"


@declares("RoCBert", "roc_bert", *HEADS, "ForPreTraining", "ForCausalLM")
def roc_bert(request: Request) -> Spec:
    """RoCBert. Where one linear map reads the tables of words, looks and sounds, any basis of these will do.

    Compared with the words by a tied masked-LM head, these have an order and scales: its last gain and offset shrink
    as they grow.
    """
    config, p = request.config, "cls.predictions"
    if request.head == "ForPreTraining":  # puts out what a masked language model does; the rest is for its loss
        request = replace(request, head="ForMaskedLM")
    mapped, tied = config.concat_input, config.tie_word_embeddings
    embed = "embed" if mapped else "resid"
    head = masked_lm(tied, f"{p}.transform.dense", f"{p}.transform.LayerNorm", f"{p}.decoder", f"{p}.bias", embed)
    spec = bert_spec(request, *bert_head(request, "pooler.dense", head), "roc_bert.")
    spec = without_keys(spec, "position_embedding_type")
    free, ordered = Orthogonal(scaled=True), tied and request.head in VOCABULARY
    read = {"shape": config.enable_shape, "pronunciation": config.enable_pronunciation}
    tables = {LOOKS: "look shape", SOUNDS: "sound pronunciation"}
    if not mapped:  # added to the stream behind its norm
        widths = (config.shape_embed_dim, config.pronunciation_embed_dim)
        require(set(widths) == {config.hidden_size}, "concat_input = false with narrower tables")
        tables = {
            LOOKS: "look resid" if config.enable_shape else "look shape",
            SOUNDS: "sound resid" if config.enable_pronunciation else "sound pronunciation",
        }
    spaces = {
        "embed": Space(config.hidden_size, Permutation(scaled=True) if ordered else free, part="residual"),
        "shape": Space(config.shape_embed_dim, free if read["shape"] else None, part="residual"),
        "pronunciation": Space(
            config.pronunciation_embed_dim, free if read["pronunciation"] else None, part="residual"
        ),
    }
    parts = ("embed'", *(f"{name}'" for name, enabled in read.items() if enabled))
    kept = tuple(name for name, enabled in zip(tables, read.values(), strict=True) if not enabled)
    spec = with_tables(spec, tables, look=config.shape_vocab_size, sound=config.pronunciation_vocab_size)
    words = {"embeddings.word_embeddings.weight": f"vocab {embed}"}
    if mapped and ordered:
        words |= linear(f"{p}.transform.dense", "embed~", "resid") | layer_norm(f"{p}.transform.LayerNorm", "embed'")
    return replace(
        spec,
        spaces={**spec.spaces, **spaces},
        templates={**spec.templates, **words, **(linear(MAP, "resid", f"({' + '.join(parts)})") if mapped else {})},
        unread=(*spec.unread, *kept),
        function_keys=(*spec.function_keys, "concat_input", "enable_shape", "enable_pronunciation"),
    )
