"""Zamba 2: layers of Mamba-2, some of which also read what one of a few transformer blocks makes of the stream.

A block is in the file once, in the first layer that uses it, and reads the stream beside the embeddings that it began
with. Its branches follow each other without a residual: attention writes what a norm in front of the FFN reads, and the
FFN what a matrix of every layer reads, so that any rotation, and any invertible map, may act there. Each use of a block
has low-rank adapters of its own, between whose two factors any invertible map may act.
"""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.joining import relabelled
from cobasin.architectures.parts import (
    NEURONS,
    decoder_stream,
    head_bases,
    layers_of_kinds,
    linear,
    output_head,
    require,
    rope_keys,
    tie_keys,
)
from cobasin.architectures.state_space import StateSpace
from cobasin.symmetry.gauges import Norm
from cobasin.symmetry.groups import Orthogonal, Permutation, SignedPermutation
from cobasin.symmetry.spec import Space, Spec

COMMON = ("resid", "half", "use")  # what all blocks have
BASIS = Orthogonal(scaled=True)


def _adapted(name: str, adapters: str, out: str, into: str, rank: str, bias: bool = False) -> dict[str, str]:
    """A linear layer and what every use of it adds."""
    added = linear(f"{adapters}.{{uses}}.0", rank, into, bias=False)
    return linear(name, out, into, bias) | added | linear(f"{adapters}.{{uses}}.1", out, f"{rank}'", bias=False)


def _block(request: Request, block: int) -> Spec:
    """The transformer block of this number."""
    config = request.config
    name = f"layers.{config.hybrid_layer_ids[block]}.shared_transformer"
    own, mlp = f"{name}.self_attn", f"{name}.feed_forward"
    uses = tuple(range(block, len(config.hybrid_layer_ids), config.num_mem_blocks))
    width, kv = config.attention_head_dim, config.num_key_value_heads
    bases, query, key = head_bases(width, ("kv",), width if config.use_mem_rope else 0)
    projections, both = {"q": f"(kv rep {query})", "k": f"(kv {key})", "v": "(kv vo)"}, "(half resid)"
    reading: dict[str, str] = {}
    for letter, out in projections.items():
        if config.use_shared_attention_adapter:
            adapters, rank = f"{own}.linear_{letter}_adapter_list", f"rank_{letter}"
            reading |= _adapted(f"{own}.{letter}_proj", adapters, out, both, rank)
        else:
            reading |= linear(f"{own}.{letter}_proj", out, both, bias=False)
    biased, up = config.add_bias_linear, f"{mlp}.gate_up_proj"
    gated = _adapted(up, f"{up}_adapter_list", "(ffn~ + ffn)", "between", "rank", biased)
    norm, between = f"{name}.pre_ff_layernorm.weight", (n for n, type_ in gated.items() if type_.endswith(" between"))
    ranks = Space(config.adapter_rank, BASIS, ("use",), part="attention")
    size = config.hidden_size
    spec = Spec(
        request.architecture,
        {
            "kv": Space(kv, Permutation(), part="heads"),
            "rep": Space(config.num_attention_heads // kv, Permutation(), ("kv",), part="heads"),
            **bases,
            **{f"rank_{letter}": ranks for letter in projections},
            "between": Space(size, SignedPermutation, part="residual", folded=Orthogonal()),
            "ffn": Space(config.intermediate_size, NEURONS, part="ffn"),
            "rank": replace(ranks, part="ffn"),
            "out": Space(size, BASIS, part="residual"),
            "uses": Space(len(uses), within="use", values=uses),
        },
        {
            f"{name}.input_layernorm.weight": "(half resid~)",
            **reading,
            **linear(f"{own}.o_proj", "between", "(kv rep vo')", bias=False),
            norm: "between~",
            **gated,
            **linear(f"{mlp}.down_proj", "out", "ffn'", biased),
        },
        norms=(Norm(norm, tuple(between), centred=False, stream="between"),),
    )
    return relabelled(spec, space=lambda own: own if own in COMMON else f"block{block}_{own}")


@declares("Zamba2", "zamba2", "Model", "ForCausalLM")
def zamba2(request: Request) -> Spec:
    """Zamba 2. Gains in front of branches stay: the last would untie the head, and Transformers with it the blocks."""
    config, hybrid = request.config, request.config.hybrid_layer_ids
    require(config.tie_word_embeddings, "tie_word_embeddings = false")
    sizes = config.n_mamba_heads, config.mamba_ngroups, config.mamba_headdim, config.mamba_d_state, config.mamba_d_conv
    head, ties = output_head(request, "embed_tokens.weight")
    spaces, templates, norms = dict[str, Space](), dict[str, str](), list[Norm]()
    for name in ("layers.{mamba_layer}", "layers.{hybrid_layer}.mamba_decoder"):
        biased = config.add_bias_linear
        mixer = StateSpace(f"{name}.mamba", *sizes, conv_bias=True, bias=biased, out_bias=biased)
        spaces |= mixer.spaces
        templates |= {f"{name}.input_layernorm.weight": "resid~", **mixer.templates}
        norms += mixer.norms
    blocks = range(min(config.num_mem_blocks, len(hybrid)))
    for block, spec in ((block, _block(request, block)) for block in blocks):
        users = hybrid[block :: config.num_mem_blocks]
        here = {f"block{block}_layer": Space(len(users), within="layer", values=tuple(users))}
        spaces |= {**spec.spaces, **here}
        templates |= {**spec.templates, f"layers.{{block{block}_layer}}.linear.weight": f"resid block{block}_out'"}
        norms += spec.norms
    return Spec(
        request.architecture,
        {
            "layer": Space(config.num_hidden_layers),
            "resid": decoder_stream(config.hidden_size, request.head, SignedPermutation),
            "vocab": Space(config.vocab_size),
            "half": Space(2),
            "use": Space(len(hybrid)),
            **spaces,
            **layers_of_kinds(config.layers_block_type, mamba_layer="linear_attention", hybrid_layer="hybrid"),
        },
        {"embed_tokens.weight": "vocab resid", **templates, "final_layernorm.weight": "resid~", **head},
        prefix="model.",
        tied=ties,
        norms=tuple(norms),
        function_keys=(
            *("rms_norm_eps", "num_attention_heads", "num_key_value_heads", "hidden_act", "is_causal", "use_mem_rope"),
            *("layers_block_type", "num_mem_blocks", "mamba_ngroups", "mamba_d_state", "time_step_min"),
            *(rope_keys(config) if config.use_mem_rope else ()),
            *tie_keys(ties),
        ),
    )
