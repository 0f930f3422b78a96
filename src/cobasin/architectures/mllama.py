"""Llama 3.2 that reads pictures: some layers of the decoder look at them, and at nothing of the text.

Of such a layer only the queries read the stream, and no rotary embedding turns them; keys and values read what the
projector makes of a picture, which passes no norm: any rotation will do there. Not any map: values have bases that any
map may act on, and two of these that meet in one tensor have no balanced basis. Gates are single numbers.
"""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.encoder_decoder import multi_head, stack
from cobasin.architectures.parts import layer_norm, layers_of_kinds, linear, neurons
from cobasin.architectures.qk_norm_decoder import normed_basis
from cobasin.architectures.rmsnorm_decoder import gated, head_width, projections, rmsnorm_decoder, rotary
from cobasin.architectures.vision import PICTURE_KEYS, pictures
from cobasin.architectures.vision_language import TEXT_ALIASES, decoder, vision_of, whole
from cobasin.symmetry.groups import Orthogonal, Permutation
from cobasin.symmetry.spec import Space, Spec

LAYER, CROSS = "layers.{cross_layer}", "layers.{cross_layer}.cross_attn"
ROOT = "vision_model."
UNBIASED = (False, False, False, False)
EXTRA_ROWS = 8  # of the embeddings: the picture's token and others that are never written


@declares("Mllama", "mllama_text_model", "ForCausalLM")
def mllama_text(request: Request) -> Spec:
    """Llama 3.2's decoder; alone, what its cross-attention looks at is an input."""
    config, width = request.config, head_width(request.config)
    crossed = [i in config.cross_attention_layers for i in range(config.num_hidden_layers)]
    still = normed_basis(width, shared=True, rotated=0)
    attention = {name.replace("{layer}", "{own_layer}"): type_ for name, type_ in projections().items()} | {
        f"{CROSS}.q_proj.weight": "(kv rep nope sign) resid",
        f"{CROSS}.k_proj.weight": "(kv nope sign) memory'",
        f"{CROSS}.v_proj.weight": "(kv vo) memory'",
        f"{CROSS}.o_proj.weight": "resid (kv rep vo')",
        f"{CROSS}.q_norm.weight": "(nope still)",
        f"{CROSS}.k_norm.weight": "(nope still')",
        f"{LAYER}.cross_attn_attn_gate": "1",
    }
    spec = rmsnorm_decoder(
        request,
        {
            **rotary(width),
            **{name: still[name] for name in ("nope", "sign", "still")},
            **layers_of_kinds(crossed, own_layer=False, cross_layer=True),
            "memory": Space(config.hidden_size),
            "extra": Space(EXTRA_ROWS),
        },
        attention,
        gated() | {f"{LAYER}.cross_attn_mlp_gate": "1"},
        own_head=(linear("lm_head", "vocab", "resid", bias=False), {}),
    )
    return replace(spec, templates={**spec.templates, "embed_tokens.weight": "(vocab + extra) resid"})


def _layers(name: str, prefix: str = "") -> dict[str, str]:
    """A stack of the tower's layers, without their gates."""
    layer = f"{ROOT}{name}.layers.{{{prefix}layer}}"
    own = multi_head(f"{layer}.self_attn", prefix, names=("q_proj", "k_proj", "v_proj", "o_proj"), biased=UNBIASED)
    up = linear(f"{layer}.mlp.fc1", f"{prefix}ffn", "resid")
    down = linear(f"{layer}.mlp.fc2", "resid", f"{prefix}ffn'")
    return layer_norm(f"{layer}.input_layernorm") | own | layer_norm(f"{layer}.post_attention_layernorm") | up | down


def _embedded() -> dict[str, str]:
    """What becomes the stream: patches, with their places and those of their tiles, and a class token."""
    found = {f"{ROOT}class_embedding": "resid", f"{ROOT}patch_embedding.weight": "resid channel down right"}
    for place in ("pre", "post"):  # in front of either stack
        tiled = f"{ROOT}{place}_tile_positional_embedding"
        found |= {f"{tiled}.embedding.weight": "ratio (tile resid)", f"{tiled}.gate": "1"}
        found |= layer_norm(f"{ROOT}layernorm_{place}")
    places = f"{ROOT}gated_positional_embedding"
    return found | {
        f"{places}.embedding": "pos resid",
        f"{places}.tile_embedding.weight": "ratio (tile pos resid)",
        f"{places}.gate": "1",
    }


def _tower(request: Request) -> Spec:
    """Two stacks of layers, one stream: the gains of the norms in front of either sit in it, so permutations only."""
    config = vision_of(request, "mllama_vision_model")
    heads, size = config.attention_heads, config.hidden_size
    sizes = heads, size // heads, config.intermediate_size, neurons(config.hidden_act)
    gates = (f"{ROOT}global_transformer.layers.{{global_layer}}.gate_{branch}" for branch in ("attn", "ffn"))
    return Spec(
        request.architecture,
        {
            **stack("", config.num_hidden_layers, *sizes),
            **stack("global_", config.num_global_layers, *sizes),
            "resid": Space(size, Permutation(), part="residual"),
            "ratio": Space(config.max_aspect_ratio_id + 1),
            "tile": Space(config.max_num_tiles),
            **pictures(config, tokens=1),
        },
        _embedded() | _layers("transformer") | _layers("global_transformer", "global_") | dict.fromkeys(gates, "1"),
        function_keys=("attention_heads", "hidden_act", "norm_eps", "intermediate_layers_indices", *PICTURE_KEYS),
    )


@declares("Mllama", "mllama", "ForConditionalGeneration")
def mllama(request: Request) -> Spec:
    """Llama 3.2 with its tower, whose stream the projector reads at its end and behind some layers."""
    config = request.config
    return whole(
        request,
        decoder(request, mllama_text),
        _tower(request),
        linear("multi_modal_projector", "memory", "(vision_resid + vision_resid chosen)"),
        spaces={
            "memory": Space(config.text_config.hidden_size, Orthogonal(), part="residual"),
            "chosen": Space(len(config.vision_config.intermediate_layers_indices)),
        },
        aliases=TEXT_ALIASES,
    )
