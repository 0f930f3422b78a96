"""Llama 4 that reads pictures: a tower of LayerNorms, squares of whose patches pass two layers of neurons."""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.no_rope_decoder import llama4
from cobasin.architectures.parts import LAYER, attention, layer_norm, linear, require
from cobasin.architectures.vision import grid, norm_before
from cobasin.architectures.vision_language import PROJECTOR, decoder, vision_of, whole
from cobasin.symmetry.gauges import ValueBias
from cobasin.symmetry.groups import Permutation
from cobasin.symmetry.spec import Space, Spec

ROOT, BLOCK = "vision_model.", "vision_model.model.layers.{layer}"
ADAPTER = f"{ROOT}vision_adapter.mlp"


def _tower(request: Request) -> Spec:
    """The tower. The gain of the norm behind its embeddings sits in the stream: permutations only."""
    config, own, mlp = vision_of(request, "llama4_vision_model"), f"{BLOCK}.self_attn", f"{BLOCK}.mlp"
    width, (rows, columns) = config.hidden_size // config.num_attention_heads, grid(config)
    branches = {
        f"{BLOCK}.input_layernorm": linear(f"{own}.q_proj", "(head freq pair)", "resid")
        | linear(f"{own}.k_proj", "(head freq pair')", "resid")
        | linear(f"{own}.v_proj", "(head vo)", "resid"),
        f"{BLOCK}.post_attention_layernorm": linear(f"{mlp}.fc1", "ffn", "resid"),
    }
    return Spec(
        request.architecture,
        {
            "layer": Space(config.num_hidden_layers),
            "resid": Space(config.hidden_size, Permutation(), part="residual"),
            **attention(config.num_attention_heads, width, rotated=width),
            "ffn": Space(config.intermediate_size, Permutation(), LAYER, part="ffn"),
            "pixel": Space(config.num_channels * config.patch_size**2),
            "pos": Space(rows * columns + 1),
        },
        {
            f"{ROOT}patch_embedding.linear.weight": "resid pixel",
            f"{ROOT}class_embedding": "resid",
            f"{ROOT}positional_embedding_vlm": "pos resid",
            **{
                name: type_
                for norm in (*branches, f"{ROOT}layernorm_pre", f"{ROOT}layernorm_post")
                for name, type_ in layer_norm(norm).items()
            },
            **{name: type_ for branch in branches.values() for name, type_ in branch.items()},
            **linear(f"{own}.o_proj", "resid", "(head vo')"),
            **linear(f"{mlp}.fc2", "resid", "ffn"),
        },
        # the first norm writes a mean to the stream
        norms=tuple(replace(norm_before(branch, norm), keeps_mean=True) for norm, branch in branches.items()),
        biases=(ValueBias(f"{own}.v_proj.bias", f"{own}.o_proj.weight", f"{own}.o_proj.bias"),),
        function_keys=("num_attention_heads", "rope_parameters", "image_size", "patch_size", "pixel_shuffle_ratio"),
    )


@declares("Llama4", "llama4", "ForConditionalGeneration")
def llama4_pictures(request: Request) -> Spec:
    """Llama 4 with its tower."""
    # the decoder's head is tied by its own config, whatever that of the whole says
    tied = request.config.tie_word_embeddings or request.config.text_config.tie_word_embeddings
    require(not tied, "tie_word_embeddings")
    config = request.config.vision_config
    merged = round(1 / config.pixel_shuffle_ratio) ** 2
    same = config.projector_input_dim == config.projector_output_dim == config.vision_output_dim
    require(same, "vision_config.vision_output_dim other than the widths of the projector")
    fits = merged * config.hidden_size == config.intermediate_size
    require(fits, "vision_config.pixel_shuffle_ratio of squares of another size than intermediate_size")
    neurons = Space(config.vision_output_dim, Permutation(), part="ffn")
    projector = (
        linear(f"{ADAPTER}.fc1", "squares", "(merge vision_resid)", bias=False)
        | linear(f"{ADAPTER}.fc2", "projected", "squares", bias=False)
        | linear(f"{PROJECTOR}linear_1", "resid", "projected", bias=False)
    )
    return whole(
        request,
        decoder(request, llama4, "language_model.model."),
        _tower(request),
        projector,
        spaces={"merge": Space(merged), "squares": neurons, "projected": neurons},
        aliases={"language_model.lm_head.": "lm_head."},
    )
