"""BEiT and data2vec for pictures: vision transformers whose heads know how far patches lie apart."""

from __future__ import annotations

from cobasin.architectures import Request, declares
from cobasin.architectures.parts import linear
from cobasin.architectures.vision import FUNCTION_KEYS, PICTURE_KEYS, VIT, grid, vision_transformer
from cobasin.symmetry.gauges import SoftmaxShift
from cobasin.symmetry.groups import Permutation
from cobasin.symmetry.spec import Space, Spec


@declares("Beit", "beit", "Model", "ForImageClassification")
@declares("Data2VecVision", "data2vec-vision", "Model", "ForImageClassification")
def beit(request: Request) -> Spec:
    """BEiT, data2vec for pictures: layer scales, keys without a bias, one for every head and offset between patches.

    A constant added to all biases of a head cancels in the softmax. So does one added where the class token looks
    from; that is left out. Only a bare model reads the mask token.
    """
    config, bare = request.config, request.head == "Model"
    norm = "layernorm"
    if config.use_mean_pooling:  # of the stream, then normalised
        norm = "pooler.layernorm" if request.has("pooler.layernorm.weight") or not bare else ""
    tables = {
        "encoder.layer.{layer}.attention.attention.relative_position_bias": config.use_relative_position_bias,
        "encoder.relative_position_bias": config.use_shared_relative_position_bias,
    }
    tables = [f"{name}.relative_position_bias_table" for name, used in tables.items() if used]
    rows, columns = grid(config)
    spaces = {"offset": Space((2 * rows - 1) * (2 * columns - 1) + 3)}
    if config.use_shared_relative_position_bias:  # one order of the heads in all layers
        spaces["head"] = Space(config.num_attention_heads, Permutation(), part="heads")
    return vision_transformer(
        request,
        VIT,
        {"cls_token": "1 1 resid"} | ({"mask_token": "1 1 resid"} if config.use_mask_token else {}),
        dict.fromkeys(tables, "offset head") | ({} if bare else linear("classifier", "label", "resid")),
        spaces,
        norm,
        positions=config.use_absolute_position_embeddings,
        biased=(True, False, True),
        scales=("lambda_1", "lambda_2") if config.layer_scale_init_value > 0 else (),
        biases=tuple(SoftmaxShift(table, "offset", "attention") for table in tables),
        buffers=(r".*relative_position_index",),
        function_keys=(*FUNCTION_KEYS, *PICTURE_KEYS),
    )
