"""Qwen's decoders that read pictures beside text: Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5.

The tower's patches see each other, or those of a window, turned by row and column. Squares of them, in Qwen3-VL those
behind some earlier layers as well, are read by projectors that write to the decoder's stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cobasin.architectures import Declaration, Request, declares
from cobasin.architectures.gated_delta import FURTHER, qwen3_5_decoder, qwen3_5_moe_decoder
from cobasin.architectures.moe import qwen3_moe_decoder
from cobasin.architectures.parts import LAYER, NEURONS, attention, layer_norm, linear, neurons, sides
from cobasin.architectures.qk_norm_decoder import qwen3_decoder
from cobasin.architectures.rmsnorm_decoder import qwen2
from cobasin.architectures.vision import free_stream, norm_before
from cobasin.architectures.vision_language import TEXT, decoder, whole
from cobasin.symmetry.gauges import Norm, ValueBias
from cobasin.symmetry.groups import Orthogonal, Permutation, SignedPermutation
from cobasin.symmetry.spec import Space, Spec

BLOCK, OWN, MLP = "visual.blocks.{layer}", "visual.blocks.{layer}.attn", "visual.blocks.{layer}.mlp"
MERGER = "visual.merger"
# on the hub the decoders of Qwen2-VL and 2.5 have the names of decoders that are alone
ALIASES = {f"{part}.": f"{TEXT}{part}." for part in ("embed_tokens", "layers", "norm")}


def turned_tower(
    request: Request,
    stream: Space,
    ffn: Space,
    up: Mapping[str, str],
    down: Mapping[str, str],
    embeddings: Mapping[str, str],
    centred: bool,
    *keys: str,
    biased: tuple[bool, bool] = (True, True),
    apart: bool = False,
) -> Spec:
    """The tower up to its last layer; its norms are LayerNorms (``centred``) or RMSNorms.

    ``biased`` says whether there are biases in attention: of queries, keys and values, and of the output. The former
    three are one tensor, or three (``apart``).
    """
    config = request.config.vision_config
    width, (height, length) = stream.size // config.num_heads, sides(config.patch_size)
    qkv = linear(f"{OWN}.qkv", "(head pair freq + head pair' freq + head vo)", "resid", biased[0])
    value = ValueBias(f"{OWN}.qkv.bias", f"{OWN}.proj.weight", f"{OWN}.proj.bias", block=2)
    if apart:
        types = {"q": "(head pair freq)", "k": "(head pair' freq)", "v": "(head vo)"}
        qkv = {k: v for name, own in types.items() for k, v in linear(f"{OWN}.{name}", own, "resid", biased[0]).items()}
        value = ValueBias(f"{OWN}.v.bias", f"{OWN}.proj.weight", f"{OWN}.proj.bias")
    norms = {f"{BLOCK}.norm1": qkv, f"{BLOCK}.norm2": up}
    return Spec(
        request.architecture,
        {
            "layer": Space(config.depth),
            "resid": stream,
            **attention(config.num_heads, width, rotated=width),
            "ffn": ffn,
            "channel": Space(config.in_channels),
            "frame": Space(config.temporal_patch_size),
            "down": Space(height),
            "right": Space(length),
        },
        {
            "visual.patch_embed.proj.weight": "resid channel frame down right",
            **embeddings,
            **{name: type_ for norm in norms for name, type_ in _norm_types(norm, centred, "resid").items()},
            **qkv,
            **linear(f"{OWN}.proj", "resid", "(head vo')", biased[1]),
            **up,
            **down,
        },
        norms=tuple(norm_before(branch, norm, centred=centred) for norm, branch in norms.items() if stream.folded),
        biases=(value,) if all(biased) else (),
        function_keys=("num_heads", "hidden_act", "rope_parameters", *keys),
    )


def _norm_types(name: str, centred: bool, space: str) -> dict[str, str]:
    return layer_norm(name, space) if centred else {f"{name}.weight": f"{space}~"}


def _merged(request: Request) -> dict[str, Space]:
    """Spaces of a square of patches, and of the neurons that read it."""
    config = request.config.vision_config
    square = config.spatial_merge_size**2
    width = square * getattr(config, "embed_dim", config.hidden_size)
    return {"merge": Space(square), "merged": Space(width, Permutation(), part="ffn")}


def with_qwen2(request: Request, tower: Spec, centred: bool) -> Spec:
    """The tower and a decoder of Qwen2's."""
    reading = linear(f"{MERGER}.mlp.0", "merged", "(merge vision_resid)")
    projector = {
        **_norm_types(f"{MERGER}.ln_q", centred, "vision_resid"),
        **reading,
        **linear(f"{MERGER}.mlp.2", "resid", "merged'"),
    }
    norm = norm_before(reading, f"{MERGER}.ln_q", "vision_resid", centred)
    parts = decoder(request, qwen2), tower, projector, norm
    return whole(request, *parts, spaces=_merged(request), aliases=ALIASES)


@declares("Qwen2VL", "qwen2_vl", "ForConditionalGeneration")
def qwen2_vl(request: Request) -> Spec:
    """Qwen2-VL: a tower of LayerNorms."""
    config = request.config.vision_config
    ffn = Space(int(config.embed_dim * config.mlp_ratio), neurons(config.hidden_act), LAYER, part="ffn")
    up, down = linear(f"{MLP}.fc1", "ffn", "resid"), linear(f"{MLP}.fc2", "resid", "ffn'")
    return with_qwen2(request, turned_tower(request, free_stream(config.embed_dim), ffn, up, down, {}, True), True)


def windowed_tower(request: Request, *keys: str, apart: bool = False) -> Spec:
    """A tower of RMSNorms and gated FFNs, whose patches see those of their window in most layers."""
    config, keys = request.config.vision_config, ("window_size", "fullatt_block_indexes", *keys)
    stream = Space(config.hidden_size, SignedPermutation, part="residual", folded=Orthogonal())
    ffn = Space(config.intermediate_size, NEURONS, LAYER, part="ffn")
    up = linear(f"{MLP}.gate_proj", "ffn~", "resid") | linear(f"{MLP}.up_proj", "ffn", "resid")
    down = linear(f"{MLP}.down_proj", "resid", "ffn'")
    return turned_tower(request, stream, ffn, up, down, {}, False, *keys, apart=apart)


@declares("Qwen2_5_VL", "qwen2_5_vl", "ForConditionalGeneration")
def qwen2_5_vl(request: Request) -> Spec:
    """Qwen2.5-VL. The key of its tower says how far apart frames are."""
    return with_qwen2(request, windowed_tower(request, "tokens_per_second"), False)


def _placed_tower(request: Request, stream: Space, *keys: str) -> Spec:
    """A tower of LayerNorms with a table of positions."""
    config = request.config.vision_config
    ffn = Space(config.intermediate_size, neurons(config.hidden_act), LAYER, part="ffn")
    up, down = linear(f"{MLP}.linear_fc1", "ffn", "resid"), linear(f"{MLP}.linear_fc2", "resid", "ffn'")
    embeddings = {"visual.patch_embed.proj.bias": "resid", "visual.pos_embed.weight": "pos resid"}
    tower = turned_tower(request, stream, ffn, up, down, embeddings, True, *keys)
    return replace(tower, spaces={**tower.spaces, "pos": Space(config.num_position_embeddings)})


def _merger(name: str, normed: str, neurons: str) -> dict[str, str]:
    """What reads squares of patches; its norm is over a patch or over all of them."""
    return (
        layer_norm(f"{name}.norm", normed)
        | linear(f"{name}.linear_fc1", neurons, "(merge vision_resid)")
        | linear(f"{name}.linear_fc2", "resid", f"{neurons}'")
    )


def _with_early(request: Request, text: Spec) -> Spec:
    """A tower whose norms behind earlier layers are over a whole square: permutations only."""
    config, merged = request.config.vision_config, _merged(request)
    early = "visual.deepstack_merger_list.{early}"
    return whole(
        request,
        text,
        _placed_tower(request, Space(config.hidden_size, Permutation(), part="residual"), "deepstack_visual_indexes"),
        _merger(MERGER, "vision_resid", "merged") | _merger(early, "(merge vision_resid)", "early_merged"),
        spaces=merged
        | {
            "early": Space(len(config.deepstack_visual_indexes)),
            "early_merged": replace(merged["merged"], over=("early",)),
        },
    )


@declares("Qwen3VL", "qwen3_vl", "ForConditionalGeneration")
def qwen3_vl(request: Request) -> Spec:
    """Qwen3-VL."""
    return _with_early(request, decoder(request, qwen3_decoder))


@declares("Qwen3VLMoe", "qwen3_vl_moe", "ForConditionalGeneration")
def qwen3_vl_moe(request: Request) -> Spec:
    """Qwen3-VL with experts."""
    return _with_early(request, decoder(request, qwen3_moe_decoder))


def _mixed(request: Request, declaration: Declaration) -> Spec:
    """A tower of LayerNorms and a decoder of delta nets."""
    norm = f"{MERGER}.norm"
    projector = _merger(MERGER, "vision_resid", "merged")
    spec = whole(
        request,
        decoder(request, declaration),
        _placed_tower(request, free_stream(request.config.vision_config.hidden_size)),
        projector,
        Norm(f"{norm}.weight", (f"{MERGER}.linear_fc1.weight",), f"{norm}.bias", stream="vision_resid"),
        spaces=_merged(request),
        aliases={},
    )
    return replace(spec, further=(FURTHER,))


@declares("Qwen3_5", "qwen3_5", "ForConditionalGeneration", "ForSequenceClassification")
def qwen3_5_pictures(request: Request) -> Spec:
    """Qwen3.5 with its vision tower."""
    return _mixed(request, qwen3_5_decoder)


@declares("Qwen3_5Moe", "qwen3_5_moe", "ForConditionalGeneration")
def qwen3_5_moe_pictures(request: Request) -> Spec:
    """Qwen3.5-MoE with its vision tower."""
    return _mixed(request, qwen3_5_moe_decoder)
