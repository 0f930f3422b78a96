"""PaddleOCR-VL: a Llama that reads pictures through SigLIP's layers, whose patches are turned by row and column.

The projector begins with a norm of its own, so that gain and offset of the tower's last norm stay where they are, and
the tower's stream has an order only.
"""

from __future__ import annotations

import copy
from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.parts import LAYER, attention, layer_norm, linear, neurons, sides
from cobasin.architectures.rmsnorm_decoder import gated, head_width, projections, rmsnorm_decoder, rotary
from cobasin.architectures.vision_language import TEXT, decoder, vision_of, whole
from cobasin.symmetry.gauges import Norm, ValueBias
from cobasin.symmetry.groups import Permutation
from cobasin.symmetry.spec import Space, Spec

TOWER, PROJECTOR = "visual.vision_model.", "projector."
BLOCK = f"{TOWER}encoder.layers.{{layer}}"
OWN, MLP = f"{BLOCK}.self_attn", f"{BLOCK}.mlp"
# files have the names of Paddle, or those that Transformers has in memory
ALIASES = {f"{part}.": f"{TEXT}{part}." for part in ("embed_tokens", "layers", "norm")} | {"mlp_AR.": PROJECTOR}
UNREAD = r"visual\.vision_model\.(head|embeddings\.packing_position_embedding)\..*"


def _text(request: Request) -> Spec:
    """The decoder: biases everywhere or nowhere."""
    biased = bool(request.config.use_bias)
    parts = projections(biased, biased), gated(bias=biased)
    return rmsnorm_decoder(request, rotary(head_width(request.config)), *parts)


def _norm(name: str, readers: dict[str, str], stream: str = "resid") -> Norm:
    """A LayerNorm on a stream whose mean others read, too."""
    weights = tuple(reader for reader in readers if reader.endswith(".weight"))
    return Norm(f"{name}.weight", weights, f"{name}.bias", stream=stream, keeps_mean=True)


def _tower(request: Request) -> Spec:
    """The tower, whose positions are resampled. A rotary embedding turns its keys: no softmax cancels their bias."""
    config = vision_of(request, "paddleocr_vl_vision")
    width, (down, right) = config.hidden_size // config.num_attention_heads, sides(config.patch_size)
    reading = {
        **linear(f"{OWN}.q_proj", "(head pair freq)", "resid"),
        **linear(f"{OWN}.k_proj", "(head pair' freq)", "resid"),
        **linear(f"{OWN}.v_proj", "(head vo)", "resid"),
    }
    up = linear(f"{MLP}.fc1", "ffn", "resid")
    return Spec(
        request.architecture,
        {
            "layer": Space(config.num_hidden_layers),
            "resid": Space(config.hidden_size, Permutation(), part="residual"),
            **attention(config.num_attention_heads, width, rotated=width),
            "ffn": Space(config.intermediate_size, neurons(config.hidden_act), LAYER, part="ffn"),
            "pos": Space((config.image_size // config.patch_size) ** 2),
            "channel": Space(config.num_channels),
            "down": Space(down),
            "right": Space(right),
        },
        {
            **linear(f"{TOWER}embeddings.patch_embedding", "resid", "channel down right"),
            f"{TOWER}embeddings.position_embedding.weight": "pos resid",
            **layer_norm(f"{BLOCK}.layer_norm1"),
            **reading,
            **linear(f"{OWN}.out_proj", "resid", "(head vo')"),
            **layer_norm(f"{BLOCK}.layer_norm2"),
            **up,
            **linear(f"{MLP}.fc2", "resid", "ffn'"),
            **layer_norm(f"{TOWER}post_layernorm"),
        },
        norms=(_norm(f"{BLOCK}.layer_norm1", reading), _norm(f"{BLOCK}.layer_norm2", up)),
        biases=(ValueBias(f"{OWN}.v_proj.bias", f"{OWN}.out_proj.weight", f"{OWN}.out_proj.bias"),),
        buffers=(UNREAD,),
        function_keys=("num_attention_heads", "hidden_act", "layer_norm_eps", "rope_parameters"),
    )


@declares("PaddleOCRVL", "paddleocr_vl", "ForConditionalGeneration")
def paddleocr_vl(request: Request) -> Spec:
    """PaddleOCR-VL: squares of patches become tokens.

    Where a config has no part for the decoder, as on the hub, Transformers takes the head for tied, whatever the config
    says, but reads one of its own that a file has beside the embeddings.
    """
    tower = request.config.vision_config
    if request.has("lm_head.weight") and request.has("embed_tokens.weight"):
        request = replace(request, config=copy.copy(request.config))
        request.config.tie_word_embeddings = False
    square = tower.spatial_merge_size**2
    reading = linear(f"{PROJECTOR}linear_1", "merged", "(merge vision_resid)")
    return whole(
        request,
        decoder(request, _text),
        _tower(request),
        layer_norm(f"{PROJECTOR}pre_norm", "vision_resid")
        | reading
        | linear(f"{PROJECTOR}linear_2", "resid", "merged'"),
        _norm(f"{PROJECTOR}pre_norm", reading, "vision_resid"),
        spaces={
            "merge": Space(square),
            "merged": Space(square * tower.hidden_size, Permutation(), part="ffn"),
        },
        aliases=ALIASES,
    )
