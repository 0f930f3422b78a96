"""Gemma 4's tower for sounds: attention to what was near between two FFNs, and a convolution of every channel alone.

It may clip what its linear layers read and write, as the tower for pictures. What softplus makes of one gain a
coordinate of a query is common to all heads, and so is the order of these coordinates.
"""

from __future__ import annotations

from cobasin.architectures import Request
from cobasin.architectures.parts import LAYER, NEURONS, PER_HEAD, linear
from cobasin.architectures.vision import norm_before
from cobasin.symmetry.groups import Orthogonal, Permutation, SignedPermutation
from cobasin.symmetry.spec import Space, Spec

ROOT = "audio_tower."
BLOCK, CONVOLUTIONS = f"{ROOT}layers.{{layer}}", f"{ROOT}subsample_conv_projection"
OUTPUT = linear(f"{ROOT}output_proj", "heard", "audio_resid") | linear(
    "embed_audio.embedding_projection", "resid", "heard", bias=False
)
KEYS = (
    "hidden_act",
    "rms_norm_eps",
    "residual_weight",
    "attention_chunk_size",
    "attention_context_left",
    "attention_context_right",
    "attention_logit_cap",
    "attention_invalid_logits_value",
    "gradient_clipping",
    "use_clipped_linears",
)


def _spaces(config) -> dict[str, Space]:
    heads, clipped = config.num_attention_heads, config.use_clipped_linears
    width, (first, second) = config.hidden_size // heads, config.subsampling_conv_channels
    bases = Permutation() if clipped else Orthogonal(scaled=True)
    return {
        "layer": Space(config.num_hidden_layers),
        "resid": Space(config.hidden_size, Permutation() if clipped else SignedPermutation, part="residual"),
        "head": Space(heads, Permutation(), LAYER, part="heads"),
        "qk": Space(width, Permutation() if clipped else SignedPermutation, LAYER, part="attention"),
        "vo": Space(width, bases, PER_HEAD, part="attention"),
        "channel": Space(config.hidden_size, Permutation() if clipped else NEURONS, LAYER, part="ffn"),
        **{f"ffn{i}": Space(4 * config.hidden_size, Permutation(), LAYER, part="ffn") for i in (1, 2)},
        "first": Space(first, Permutation(scaled=True), part="ffn"),
        "second": Space(second, Permutation(scaled=True), part="ffn"),
        "bin": Space(first // 4),
        "side": Space(3),
        "tap": Space(config.conv_kernel_size),
        "wave": Space(config.hidden_size),
    }


def sounds(request: Request) -> Spec:
    """The tower up to its last layer; convolutions with a ReLU read the spectrogram."""
    config, own, conv = request.config.audio_config, f"{BLOCK}.self_attn", f"{BLOCK}.lconv1d"
    branches = {
        f"{BLOCK}.norm_pre_attn": linear(f"{own}.q_proj.linear", "(head qk)", "resid", bias=False)
        | linear(f"{own}.k_proj.linear", "(head qk)", "resid", bias=False)
        | linear(f"{own}.v_proj.linear", "(head vo)", "resid", bias=False),
        f"{conv}.pre_layer_norm": linear(f"{conv}.linear_start.linear", "(channel + channel~)", "resid", bias=False),
    }
    writers = linear(f"{own}.post.linear", "resid", "(head vo')", bias=False)
    writers |= linear(f"{conv}.linear_end.linear", "resid", "channel~", bias=False)
    gains = [f"{BLOCK}.norm_post_attn", f"{BLOCK}.norm_out"]
    for i in (1, 2):
        ffn = f"{BLOCK}.feed_forward{i}"
        branches[f"{ffn}.pre_layer_norm"] = linear(f"{ffn}.ffw_layer_1.linear", f"ffn{i}", "resid", bias=False)
        writers |= linear(f"{ffn}.ffw_layer_2.linear", "resid", f"ffn{i}", bias=False)
        gains.append(f"{ffn}.post_layer_norm")
    return Spec(
        request.architecture,
        _spaces(config),
        {
            f"{CONVOLUTIONS}.layer0.conv.weight": "first~ 1 side side",
            f"{CONVOLUTIONS}.layer0.norm.weight": "first",
            f"{CONVOLUTIONS}.layer1.conv.weight": "second~ first' side side",
            f"{CONVOLUTIONS}.layer1.norm.weight": "second",
            f"{CONVOLUTIONS}.input_proj_linear.weight": "resid (bin second')",
            **{f"{gain}.weight": "resid~" for gain in (*branches, *gains)},
            **{name: type_ for branch in branches.values() for name, type_ in branch.items()},
            **writers,
            f"{own}.relative_k_proj.weight": "(head qk) wave",
            f"{own}.per_dim_scale": "qk~",
            f"{conv}.depthwise_conv1d.weight": "channel' 1 tap",
            f"{conv}.conv_norm.weight": "channel~",
        },
        norms=()
        if config.use_clipped_linears
        else tuple(norm_before(branch, norm, centred=False) for norm, branch in branches.items()),
        function_keys=KEYS,
    )
