"""MarkupLM: RoBERTa, which also reads where in the tree of a page a word is."""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.encoder import ANSWERING, bert_head, bert_spec
from cobasin.architectures.joining import without_keys
from cobasin.architectures.parts import linear, neurons
from cobasin.symmetry.groups import Orthogonal
from cobasin.symmetry.spec import Space, Spec

PATH = "embeddings.xpath_embeddings"
UNREAD = f"{PATH}.xpath_unitseq2_embeddings"  # of the class, which its code does not call


@declares("MarkupLM", "markuplm", *(head for head in ANSWERING if head != "ForMaskedLM"))
def markuplm(request: Request) -> Spec:
    """MarkupLM. At every depth of the tree a tag and its number are added, in a basis of which any will do."""
    config = request.config
    spec = bert_spec(request, *bert_head(request, "pooler.dense", ({}, {})), "markuplm.")
    spec = without_keys(spec, "position_embedding_type", "is_decoder", "is_causal")
    depths = [f"unit_{depth}" for depth in range(config.max_depth)]
    units = " + ".join(f"{unit}'" for unit in depths)
    basis = Space(config.xpath_unit_hidden_size, Orthogonal(scaled=True), part="residual")
    unread = linear(UNREAD, "pooled", f"({units})")
    return replace(
        spec,
        spaces={
            **spec.spaces,
            **dict.fromkeys(depths, basis),
            "tag": Space(config.max_xpath_tag_unit_embeddings),
            "number": Space(config.max_xpath_subs_unit_embeddings),
            "path": Space(4 * config.hidden_size, neurons("relu"), part="ffn"),
        },
        templates={
            **{f"{PATH}.xpath_tag_sub_embeddings.{i}.weight": f"tag {unit}" for i, unit in enumerate(depths)},
            **{f"{PATH}.xpath_subs_sub_embeddings.{i}.weight": f"number {unit}" for i, unit in enumerate(depths)},
            **linear(f"{PATH}.xpath_unitseq2_inner", "path", f"({units})"),
            **linear(f"{PATH}.inner2emb", "resid", "path'"),
            **unread,
            **spec.templates,
        },
        unread=(*spec.unread, *unread),
        # positions are counted from the first; the others are read where no tags are given
        function_keys=(*spec.function_keys, "pad_token_id", "tag_pad_id", "subs_pad_id"),
    )
