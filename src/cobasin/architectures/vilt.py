"""ViLT: a vision transformer that reads a text and the patches of a picture in one row."""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures.encoder import masked_lm
from cobasin.architectures.parts import labels, layer_norm, linear, require
from cobasin.architectures.vision import FUNCTION_KEYS, PICTURE_KEYS, VIT, pictures, pre_norm, require_squares
from cobasin.symmetry.groups import Permutation, SignedPermutation
from cobasin.symmetry.spec import Space, Spec

TEXT, SCORE = "embeddings.text_embeddings", "mlm_score"
TABLES = {
    f"{TEXT}.word_embeddings.weight": "vocab resid",
    f"{TEXT}.position_embeddings.weight": "place resid",
    f"{TEXT}.token_type_embeddings.weight": "type resid",
    **layer_norm(f"{TEXT}.LayerNorm"),
    "embeddings.token_type_embeddings.weight": "kind resid",
    "embeddings.cls_token": "1 1 resid",
    "embeddings.position_embeddings": "1 pos resid",
    **linear("embeddings.patch_embeddings.projection", "resid", "channel down right"),
}


def _head(request: Request) -> tuple[dict[str, str], dict[str, str]]:
    """A head and its ties. That of a masked LM repeats the words, whatever a config says, and reads no pooler."""
    if request.head == "ForMaskedLM":
        names = (
            f"{SCORE}.transform.dense",
            f"{SCORE}.transform.LayerNorm",
            f"{SCORE}.decoder",
            f"{SCORE}.decoder.bias",
        )
        ties = {f"{SCORE}.decoder.weight": f"{TEXT}.word_embeddings.weight"}
        return masked_lm(True, *names)[0] | linear("pooler.dense", "pooled", "resid"), ties
    pooler = linear("pooler.dense", "pool", "resid")
    if request.head == "ForImageAndTextRetrieval":
        return pooler | linear("rank_output", "1", "pool"), {}
    answer = linear("classifier.0", "hidden", "pool") | layer_norm("classifier.1", "hidden")
    return pooler | answer | linear("classifier.3", "label", "hidden"), {}


@declares("Vilt", "vilt", "ForMaskedLM", "ForQuestionAnswering", "ForImageAndTextRetrieval")
def vilt(request: Request) -> Spec:
    """ViLT. The gain of the norm behind the embeddings of words sits in the stream."""
    config, (head, ties) = request.config, _head(request)
    require(config.max_image_length < 0, "max_image_length, which draws patches at random,")
    require_squares(config)
    return pre_norm(
        request.architecture,
        config,
        VIT,
        {
            **pictures(config, tokens=1),
            "resid": Space(config.hidden_size, Permutation(), part="residual"),
            "vocab": Space(config.vocab_size),
            "place": Space(config.max_position_embeddings),
            "type": Space(config.type_vocab_size),
            "kind": Space(config.modality_type_vocab_size),
            "label": labels(config),
            "pool": Space(config.hidden_size, SignedPermutation, part="ffn"),
            "pooled": Space(config.hidden_size),
            "hidden": Space(2 * config.hidden_size, Permutation(), part="ffn"),
        },
        TABLES,
        "layernorm",
        head,
        biased=(config.qkv_bias,) * 3,
        prefix="vilt.",
        tied=ties,
        buffers=(r"embeddings\.text_embeddings\.position_ids",),
        unread=tuple(linear("pooler.dense", "", "")) if ties else (),
        function_keys=(*FUNCTION_KEYS, *PICTURE_KEYS),
    )
