"""AIMv2: a vision transformer with RMSNorms and a pooling head, alone or with a text tower beside it as in CLIP.

The gain of the norm behind the patches sits in the tower's stream: of its rotations, signs and orders are left. Sines
are added to the stream of one that takes pictures of any size, and nothing moves it.
"""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.encoder_decoder import free_biases, multi_head
from cobasin.architectures.joining import joined
from cobasin.architectures.multimodal import TEXT, TEXT_PROJECTION, VISION
from cobasin.architectures.parts import LAYER, NEURONS, attention, linear, require
from cobasin.architectures.rmsnorm_decoder import gated
from cobasin.architectures.vision import norm_before, pictures, require_squares
from cobasin.symmetry.gauges import KeyBias, ValueBias
from cobasin.symmetry.groups import Group, Orthogonal, Permutation, SignedPermutation
from cobasin.symmetry.spec import Space, Spec

KEYS = ("num_attention_heads", "hidden_act", "rms_norm_eps")


def _stream(size: int, group: Group | None, folded: Group | None = None) -> dict[str, Space]:
    return {"resid": Space(size, group, part="residual", folded=folded)}


def _tower(
    request: Request, config, root: str, spaces: dict[str, Space], tensors: dict[str, str], readers: tuple[str, ...]
) -> Spec:
    """The layers of a tower, whose names begin with ``root``, and its last norm.

    ``tensors`` are what is in front of them and behind; ``readers`` those weights that read the last norm. Without
    these the stream is an output.
    """
    layer = f"{root}encoder.layers.{{layer}}"
    biased = config.qkv_bias
    own, mlp, before, after = (f"{layer}.{part}" for part in ("attention", "ffn", "rms_norm1", "rms_norm2"))
    branches = {
        before: [f"{own}.{name}_proj.weight" for name in "qkv"],
        after: [f"{mlp}.{name}_proj.weight" for name in ("gate", "up")],
        f"{root}rms_norm": readers,
    }
    templates = {
        **tensors,
        **multi_head(own, "", biased=(biased, biased, biased, biased)),
        **gated(mlp, bias=config.mlp_bias),
        **{f"{norm}.weight": "resid~" for norm in branches},
    }
    norms = tuple(norm_before(weights, norm, centred=False) for norm, weights in branches.items())
    return Spec(
        request.architecture,
        {
            "layer": Space(config.num_hidden_layers),
            **attention(config.num_attention_heads, config.hidden_size // config.num_attention_heads),
            "ffn": Space(config.intermediate_size, NEURONS, LAYER, part="ffn"),
            **spaces,
        },
        templates,
        norms=norms if readers else (),
        biases=free_biases({name: type_ for name, type_ in templates.items() if name.startswith(own)}),
        buffers=(r"(.*\.)?embeddings\.position_ids",),
    )


def _text(request: Request, config, root: str, spaces: dict[str, Space], head: dict[str, str]) -> Spec:
    """The text tower, of which the place of a text's first end is read."""
    tensors = {
        f"{root}embeddings.token_embedding.weight": "vocab resid",
        f"{root}embeddings.position_embedding.weight": "pos resid",
    }
    spaces = {"vocab": Space(config.vocab_size), "pos": Space(config.max_position_embeddings), **spaces}
    spec = _tower(request, config, root, spaces, tensors | head, tuple(head))
    return replace(spec, function_keys=(*KEYS, "is_causal", "eos_token_id"))


def _vision(request: Request, config, root: str, bare: bool, behind: dict[str, str]) -> Spec:
    """The vision tower, whose pooling head has a parameter for its only query; ``behind`` reads what that puts out.

    Between two linear layers upon each other any rotation will do.
    """
    require_squares(config, "" if bare else "vision_config.")
    size, heads, name = config.hidden_size, config.num_attention_heads, f"{root}head"
    spaces = pictures(config, tokens=0)
    spaces |= _stream(size, None if bare or config.is_native else SignedPermutation)
    tensors = linear(f"{root}embeddings.patch_embed", "resid", "channel down right")
    tensors[f"{root}embeddings.rms_norm.weight"] = "resid~"
    if config.is_native:
        del spaces["pos"]
    else:
        tensors[f"{root}embeddings.position_embedding.weight"] = "pos resid"
    biases = ()
    if config.use_head:
        base = Space(size // heads, Orthogonal(scaled=True), ("pool_head",), part="attention")
        spaces |= {"pool_head": Space(heads, Permutation(), part="heads"), "pool_qk": base, "pool_vo": base}
        spaces["pooled"] = Space(size, None if bare else Orthogonal(), part="ffn")
        key, value, output = (f"{name}.{part}_proj" for part in ("k", "v", "output"))
        tensors[f"{name}.cls_token"] = "1 1 (pool_head pool_qk)"
        tensors |= linear(key, "(pool_head pool_qk')", "resid", config.qkv_bias)
        tensors |= linear(value, "(pool_head pool_vo)", "resid", config.qkv_bias)
        tensors |= linear(output, "pooled", "(pool_head pool_vo')")
        if config.qkv_bias:
            biases = (KeyBias(f"{key}.bias"), ValueBias(f"{value}.bias", f"{output}.weight", f"{output}.bias"))
    readers = () if bare else (f"{name}.k_proj.weight", f"{name}.v_proj.weight")
    spec = _tower(request, config, root, spaces, tensors | behind, readers)
    sizes = ("patch_size",) if config.is_native else ("patch_size", "image_size")
    return replace(spec, biases=(*spec.biases, *biases), function_keys=(*KEYS, *sizes))


@declares("Aimv2", "aimv2", "Model")
def aimv2(request: Request) -> Spec:
    """AIMv2 with a text tower. The cosine's length is bounded by a setting."""
    config, text, vision = request.config, request.config.text_config, request.config.vision_config
    require(vision.use_head, "vision_config.use_head = false")
    spaces = _stream(text.hidden_size, SignedPermutation, Orthogonal())
    spaces["joint"] = Space(config.projection_dim, Orthogonal(), part="residual")
    spec = joined(
        _text(request, text, TEXT, spaces, TEXT_PROJECTION),
        _vision(request, vision, VISION, False, {"visual_projection.weight": "joint pooled'"}),
        {"logit_scale": "scalar"},
    )
    return replace(spec, function_keys=(*spec.function_keys, "max_logit_scale"))


@declares("Aimv2", "aimv2_text_model", "TextModel")
def aimv2_text(request: Request) -> Spec:
    """AIMv2's text tower, with the stream as output."""
    return _text(request, request.config, "", _stream(request.config.hidden_size, None), {})


@declares("Aimv2", "aimv2_vision_model", "VisionModel")
def aimv2_vision(request: Request) -> Spec:
    """AIMv2's vision tower, with the stream and what it is pooled to as outputs."""
    return _vision(request, request.config, "", True, {})
