"""Pre-LayerNorm vision transformers: ViT, ViT-MSN, ViT-MAE, I-JEPA, DeiT, DINOv2 with and without registers.

A bare model shows its stream as output: there it is fixed, and gains and layer scales stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cobasin.architectures import Request, declares
from cobasin.architectures.parts import LAYER, attention, labels, layer_norm, linear, neurons, require, sides
from cobasin.symmetry.gauges import FreeGauge, KeyBias, LayerScale, Norm, ValueBias
from cobasin.symmetry.groups import Orthogonal, Permutation
from cobasin.symmetry.spec import Space, Spec

FUNCTION_KEYS = ("num_attention_heads", "hidden_act", "layer_norm_eps")
PICTURE_KEYS = ("image_size", "patch_size")
MASKED = "ForMaskedImageModeling"


class Names(NamedTuple):
    """What a layer, its linear layers and its norms are called."""

    layer: str
    query: str
    key: str
    value: str
    output: str
    before: str
    after: str
    up: str
    down: str


VIT = Names(
    "encoder.layer.{layer}",
    "attention.attention.query",
    "attention.attention.key",
    "attention.attention.value",
    "attention.output.dense",
    "layernorm_before",
    "layernorm_after",
    "intermediate.dense",
    "output.dense",
)
DINO = VIT._replace(before="norm1", after="norm2", up="mlp.fc1", down="mlp.fc2")
SWIGLU = DINO._replace(up="mlp.weights_in", down="mlp.weights_out")


def free_stream(size: int) -> Space:
    """A residual stream that LayerNorms and linear layers read and linear layers write."""
    return Space(size, Permutation(), part="residual", folded=Orthogonal(fix_ones=True))


def grid(config) -> tuple[int, int]:
    """Rows and columns of patches."""
    (height, width), (down, right) = sides(config.image_size), sides(config.patch_size)
    return height // down, width // right


def require_squares(config, within: str = "") -> None:
    """Of a class that divides the side of a picture by that of a patch."""
    one = isinstance(config.image_size, int) and isinstance(config.patch_size, int)
    require(one, f"{within}image_size or patch_size of two numbers")


def pictures(config, tokens: int) -> dict[str, Space]:
    """Spaces of pictures that are cut into patches, with ``tokens`` before the patches."""
    (rows, columns), (down, right) = grid(config), sides(config.patch_size)
    return {
        "channel": Space(getattr(config, "num_channels", 3)),
        "down": Space(down),
        "right": Space(right),
        "pos": Space(rows * columns + tokens),
    }


def pre_norm(
    architecture: str,
    config,
    names: Names,
    spaces: dict[str, Space],
    embeddings: dict[str, str],
    final: str,
    head: dict[str, str],
    *,
    biased: tuple[bool, bool, bool] = (True, True, True),
    scales: tuple[str, ...] = (),
    up: str = "ffn",
    norms: tuple[Norm, ...] = (),
    biases: tuple[FreeGauge, ...] = (),
    width: int | None = None,
    **options,
) -> Spec:
    """A model around a stack of pre-LayerNorm layers.

    ``final`` is the norm behind the stack, which the weights of ``head`` read, where they are here. Queries, keys and
    values of one name are one tensor. ``biased`` says
    which of query, key and value have a bias, ``scales`` names the layer scales of attention and FFN. The norms fold
    where ``resid`` has a larger group for it; ``norms`` and ``biases`` are those of other parts. ``width`` is the size
    of a head where it is not that of the stream divided by their number.
    """
    query, key, value, output, before, after, first, second = (f"{names.layer}.{part}" for part in names[1:])
    scales = tuple(f"{names.layer}.{scale}" for scale in scales)
    fused, rows = query == key, ("head qk", "head qk'", "head vo")
    heads = config.num_attention_heads
    width = width or config.hidden_size // heads
    spaces = attention(heads, width) | {"layer": Space(config.num_hidden_layers)} | spaces
    if "ffn" not in spaces:
        spaces["ffn"] = Space(config.intermediate_size, neurons(config.hidden_act), LAYER, part="ffn")
    folding = (
        Norm(
            f"{before}.weight",
            tuple(dict.fromkeys(f"{name}.weight" for name in (query, key, value))),
            f"{before}.bias",
            keys=() if biased[1] or fused else (f"{key}.weight",),
        ),
        Norm(f"{after}.weight", (f"{first}.weight",), f"{after}.bias"),
        *((norm_before(head, final),) if head else ()),
    )
    own = linear(query, f"({' + '.join(rows)})", "resid", biased[0]) if fused else {}
    if not fused:
        for name, row, bias in zip((query, key, value), rows, biased, strict=True):
            own |= linear(name, f"({row})", "resid", bias)
    written = (f"{output}.weight", f"{output}.bias")
    writers = (written, (f"{second}.weight", f"{second}.bias"))
    folds = spaces["resid"].folded is not None
    return Spec(
        architecture,
        spaces,
        {
            **embeddings,
            **layer_norm(before),
            **own,
            **linear(output, "resid", "(head vo')"),
            **layer_norm(after),
            **linear(first, up, "resid"),
            **linear(second, "resid", "ffn'"),
            **dict.fromkeys(scales, "resid"),
            **(layer_norm(final) if final else {}),
            **head,
        },
        norms=(*(folding if folds else ()), *norms),
        scales=tuple(map(LayerScale, scales, writers)) if folds else (),
        biases=(
            *((KeyBias(f"{key}.bias", 1 if fused else 0),) if biased[1] else ()),
            *((ValueBias(f"{value}.bias", *written, 2 if fused else 0),) if biased[2] else ()),
            *biases,
        ),
        **options,
    )


def norm_before(readers: Iterable[str], name: str, stream: str = "resid", centred: bool = True) -> Norm:
    """The norm in front of the weights among ``readers``: a LayerNorm (``centred``) or an RMSNorm."""
    weights = tuple(reader for reader in readers if reader.endswith(".weight"))
    return Norm(f"{name}.weight", weights, f"{name}.bias" if centred else None, centred, stream)


def vision_transformer(
    request: Request,
    names: Names,
    tokens: dict[str, str],
    head: dict[str, str],
    spaces: dict[str, Space],
    norm: str = "layernorm",
    positions: bool = True,
    prefix: str = "",
    **options,
) -> Spec:
    """A vision transformer with ``tokens`` before its patches and ``norm`` behind the last layer.

    ``prefix`` is that of a bare model's tensors in one with a head, where it is not the model's type.
    """
    config, bare = request.config, request.head == "Model"
    size = config.hidden_size
    return pre_norm(
        request.architecture,
        config,
        names,
        pictures(config, len(tokens.keys() & {"cls_token", "distillation_token"}))
        | {"resid": Space(size, part="residual") if bare else free_stream(size), "label": labels(config)}
        | spaces,
        {f"embeddings.{name}": type_ for name, type_ in tokens.items()}
        | ({"embeddings.position_embeddings": "1 pos resid"} if positions else {})
        | linear("embeddings.patch_embeddings.projection", "resid", "channel down right"),
        norm,
        head,
        prefix=prefix or f"{config.model_type.replace('-', '_')}.",
        width=getattr(config, "head_dim", None),
        **options,
    )


def _pooler(request: Request) -> dict[str, str]:
    return linear("pooler.dense", "pool", "resid") if request.has("pooler.dense.weight") else {}


def _picture_head(request: Request, tokens: dict[str, str]) -> tuple[dict[str, str], dict[str, str], dict[str, Space]]:
    """The ``tokens`` of a model, what reads its stream, and the spaces that this adds: hidden patches are drawn."""
    config = request.config
    if request.head == "Model":
        return tokens, _pooler(request), {"pool": Space(getattr(config, "pooler_output_size", 0))}
    if request.head == MASKED:
        require_squares(config)
        require(config.encoder_stride == config.patch_size, "encoder_stride other than patch_size")
        drawn = Space(config.encoder_stride**2 * config.num_channels)
        return tokens | {"mask_token": "1 1 resid"}, linear("decoder.0", "pixel", "resid 1 1"), {"pixel": drawn}
    return tokens, linear("classifier", "label", "resid"), {}


@declares("ViT", "vit", "Model", "ForImageClassification", MASKED)
@declares("ViTMSN", "vit_msn", "Model", "ForImageClassification")
@declares("ViTMAE", "vit_mae", "Model")
@declares("IJepa", "ijepa", "Model", "ForImageClassification")
def vit(request: Request) -> Spec:
    """ViT, ViT-MSN, the encoder of ViT-MAE, which sees a part of the patches, and I-JEPA, without a class token."""
    config = request.config
    joint = config.model_type == "ijepa"
    keys = {"vit_mae": ("mask_ratio",), **dict.fromkeys(("vit", "ijepa"), ("pooler_act",))}.get(config.model_type, ())
    # of pre-training: it reads the encoder's output, which a bare model shows, so that all of it stays
    decoder = (r"decoder\..*",) if config.model_type == "vit_mae" else ()
    return vision_transformer(
        request,
        VIT,
        *_picture_head(request, {} if joint else {"cls_token": "1 1 resid"}),
        prefix="ijepa." if joint else "vit.",
        biased=(config.qkv_bias,) * 3,
        buffers=decoder,
        function_keys=(*FUNCTION_KEYS, *PICTURE_KEYS, *keys),
    )


@declares("DeiT", "deit", "Model", "ForImageClassification", "ForImageClassificationWithTeacher", MASKED)
def deit(request: Request) -> Spec:
    """DeiT: ViT with a second token, which a second head may read."""
    config = request.config
    tokens, head, spaces = _picture_head(request, {"cls_token": "1 1 resid", "distillation_token": "1 1 resid"})
    if request.head == "ForImageClassificationWithTeacher":
        head = linear("cls_classifier", "label", "resid") | linear("distillation_classifier", "label", "resid")
    return vision_transformer(
        request,
        VIT,
        tokens,
        head,
        spaces,
        biased=(config.qkv_bias,) * 3,
        function_keys=(*FUNCTION_KEYS, *PICTURE_KEYS, "pooler_act"),
    )


@declares("Dinov2", "dinov2", "Model", "ForImageClassification")
@declares("Dinov2WithRegisters", "dinov2_with_registers", "Model", "ForImageClassification")
def dinov2(request: Request) -> Spec:
    """DINOv2: layer scales, and a head that reads the stream twice, at the class token and as mean of the patches.

    Only a bare model reads the mask token, which files have as a rule, those of models with registers always.
    Registers have no positions.
    """
    config, gated, bare = request.config, request.config.use_swiglu_ffn, request.head == "Model"
    hidden = int(config.hidden_size * config.mlp_ratio)
    if gated:  # two thirds of it, rounded up to a multiple of eight
        hidden = (int(hidden * 2 / 3) + 7) // 8 * 8
    group = neurons(config.hidden_act, gated)
    registers = getattr(config, "num_register_tokens", None)
    tokens = {"cls_token": "1 1 resid"}
    if registers is not None or config.use_mask_token:
        tokens["mask_token"] = "1 resid"
    return vision_transformer(
        request,
        SWIGLU if gated else DINO,
        tokens if registers is None else tokens | {"register_tokens": "1 register resid"},
        {} if bare else linear("classifier", "label", "(half resid)"),
        spaces={
            "ffn": Space(hidden, group, LAYER, part="ffn"),
            "half": Space(2),
            "register": Space(registers or 0),
        },
        up="(ffn~ + ffn)" if gated else "ffn",
        biased=(config.qkv_bias,) * 3,
        scales=("layer_scale1.lambda1", "layer_scale2.lambda1"),
        unread=("embeddings.mask_token",) if "mask_token" in tokens and not bare else (),
        function_keys=(*FUNCTION_KEYS, *PICTURE_KEYS),
    )
