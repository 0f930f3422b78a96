"""Decoders with LayerNorms: GPT-NeoX, GPT-J, OPT, BLOOM; and what they share with those of `parallel_decoder`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cobasin.architectures import Request, declares
from cobasin.architectures.parts import (
    LAYER,
    PADDING_READ,
    PER_HEAD,
    attention,
    decoder_stream,
    head_bases,
    labels,
    layer_norm,
    linear,
    neurons,
    output_head,
    require,
    rope_keys,
    rotated_size,
    tie_keys,
)
from cobasin.architectures.rmsnorm_decoder import ANSWERING
from cobasin.symmetry.gauges import FreeGauge, KeyBias, Norm, ValueBias
from cobasin.symmetry.groups import Orthogonal, Permutation
from cobasin.symmetry.spec import Space, Spec

BUFFERS = (
    r"(h|layers)\.\d+\.(attn(\.attention)?|attention|self_attn)\.(bias|masked_bias|causal_mask|embed_positions)",
    r"(h|layers)\.\d+\.(attn(\.attention)?|attention|self_attn)\.rotary_emb\.inv_freq",
    r"decoder\.version",
    r"position_ids",
)
Templates = dict[str, str]


def layers_of(templates: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the linear layers among some templates."""
    return tuple(name.removesuffix(".weight") for name in templates if name.endswith(".weight"))


def separate_attention(own: str, query: str, key: str, biased: bool) -> Templates:
    """Templates of multi-head attention with a linear layer each for queries, keys, values and output."""
    return (
        linear(f"{own}.q_proj", f"(head {query})", "resid", biased)
        | linear(f"{own}.k_proj", f"(head {key})", "resid", biased)
        | linear(f"{own}.v_proj", "(head vo)", "resid", biased)
        | linear(f"{own}.out_proj", "resid", "(head vo')", biased)
    )


def megatron_layer(
    own: str, mlp: str, heads: str, query: str, key: str, biased: bool = True, mlp_biased: bool = True
) -> tuple[Templates, tuple[FreeGauge, ...]]:
    """Templates and free biases of a layer whose queries, keys and values are fused group by group.

    ``heads`` are the spaces that number the heads: ``head``, or ``kv rep``.
    """
    group, rep = (*heads.split(), "")[:2]
    fused, output = f"{own}.query_key_value", f"{own}.dense"
    templates = {
        **linear(fused, f"({group} ({rep} {query} + {key} + vo))", "resid", biased),
        **linear(output, "resid", f"({heads} vo')", biased),
        **linear(f"{mlp}.dense_h_to_4h", "ffn", "resid", mlp_biased),
        **linear(f"{mlp}.dense_4h_to_h", "resid", "ffn'", mlp_biased),
    }
    if not biased:
        return templates, ()
    terms = query.count("+") + 1  # as many blocks; coordinates without rotary embedding are the last
    value = ValueBias(f"{fused}.bias", f"{output}.weight", f"{output}.bias", block=2 * terms)
    return templates, (value,) if query.endswith("freq)") else (KeyBias(f"{fused}.bias", block=2 * terms - 1), value)


def layer_norm_decoder(
    request: Request,
    head: tuple[Templates, Mapping[str, str]],
    spaces: Mapping[str, Space],
    templates: Templates,
    reads: Mapping[str, Iterable[str]],
    biases: tuple[FreeGauge, ...],
    keys: tuple[str, ...],
    prefix: str,
    last: str = "",
    offsets: bool = True,
) -> Spec:
    """A decoder with LayerNorms ``reads``, each with the linear layers, or stacks of them, that read it.

    The norm ``last``, if any, is behind them, and read by the ``head``. The norms, with ``offsets`` or gains alone,
    fold into what reads them unless ``spaces`` has a residual stream of another kind.
    """
    config = request.config
    spaces = {
        "resid": decoder_stream(config.hidden_size, request.head, Permutation(), Orthogonal(fix_ones=True)),
        **spaces,
        "layer": Space(config.num_hidden_layers),
        "vocab": Space(config.vocab_size),
        "label": labels(config),
        "span": Space(2),
    }
    reads = {**reads, last: layers_of(head[0])} if last else reads
    for name in reads:
        templates = templates | (layer_norm(name) if offsets else {f"{name}.weight": "resid"})
    named = templates | head[0]
    norms = (
        Norm(
            f"{name}.weight",
            tuple(f"{one}.weight" if f"{one}.weight" in named else one for one in layers),
            f"{name}.bias" if offsets else None,
        )
        for name, layers in reads.items()
    )
    return Spec(
        request.architecture,
        spaces,
        named,
        prefix=prefix,
        tied=head[1],
        norms=tuple(norms) if spaces["resid"].folded else (),
        biases=biases,
        buffers=BUFFERS,
        function_keys=(*keys, "is_causal", *tie_keys(head[1]), *PADDING_READ.get(request.head, ())),
    )


@declares("GPTNeoX", "gpt_neox", *ANSWERING)
def gpt_neox(request: Request) -> Spec:
    """GPT-NeoX and Pythia, with branches in parallel or one after the other. Files name the LM head ``embed_out``."""
    config = request.config
    width = config.hidden_size // config.num_attention_heads
    # only the rotary embedding reads head_dim
    rotated = rotated_size(config, getattr(config, "head_dim", None) or width)
    require(rotated <= width, "head_dim beyond the size of a head")
    bases, query, key = head_bases(width, PER_HEAD, rotated)
    own, mlp = "layers.{layer}.attention", "layers.{layer}.mlp"
    layer, biases = megatron_layer(own, mlp, "head", query, key, config.attention_bias)
    name = "lm_head" if request.has("lm_head.weight") else "embed_out"
    return layer_norm_decoder(
        request,
        output_head(request, "embed_in.weight", name, classifier="classifier"),
        bases
        | {
            "head": Space(config.num_attention_heads, Permutation(), LAYER, part="heads"),
            "ffn": Space(config.intermediate_size, neurons(config.hidden_act), LAYER, part="ffn"),
        },
        {"embed_in.weight": "vocab resid", **layer},
        {
            "layers.{layer}.input_layernorm": (f"{own}.query_key_value",),
            "layers.{layer}.post_attention_layernorm": (f"{mlp}.dense_h_to_4h",),
        },
        biases,
        (
            *("num_attention_heads", "hidden_act", "layer_norm_eps", "use_parallel_residual", "head_dim"),
            *rope_keys(config),
        ),
        "gpt_neox.",
        "final_layer_norm",
    )


@declares("GPTJ", "gptj", "Model", "ForCausalLM", "ForSequenceClassification", "ForQuestionAnswering")
def gptj(request: Request) -> Spec:
    """GPT-J: rotary pairs side by side, one LayerNorm for attention and FFN, an LM head with a bias."""
    config = request.config
    bases, query, key = head_bases(config.n_embd // config.n_head, PER_HEAD, config.rotary_dim, "freq pair")
    own, mlp = "h.{layer}.attn", "h.{layer}.mlp"
    return layer_norm_decoder(
        request,
        output_head(request, "wte.weight", biased=True),
        bases
        | {
            "head": Space(config.n_head, Permutation(), LAYER, part="heads"),
            "ffn": Space(config.n_inner or 4 * config.n_embd, neurons(config.activation_function), LAYER, part="ffn"),
        },
        {
            "wte.weight": "vocab resid",
            **separate_attention(own, query, key, biased=False),
            **linear(f"{mlp}.fc_in", "ffn", "resid"),
            **linear(f"{mlp}.fc_out", "resid", "ffn'"),
        },
        {"h.{layer}.ln_1": (*(f"{own}.{name}_proj" for name in "qkv"), f"{mlp}.fc_in")},
        (),
        ("n_head", "rotary_dim", "activation_function", "layer_norm_epsilon"),
        "transformer.",
        "ln_f",
    )


def opt_words(request: Request) -> tuple[dict[str, Space], Templates, tuple[Templates, Mapping[str, str]]]:
    """Spaces, templates and head of OPT's embedding.

    Where embeddings have a width of their own (OPT-350m), so has the output, in a basis of its own unless it is tied.
    """
    config, embedding = request.config, "decoder.embed_tokens.weight"
    width, free = config.word_embed_proj_dim, Orthogonal(scaled=True)
    if width == config.hidden_size:
        return {}, {embedding: "vocab resid"}, output_head(request, embedding)
    output = "word" if request.head == "ForCausalLM" and config.tie_word_embeddings else "out"
    templates = {
        embedding: "vocab word",
        "decoder.project_in.weight": "resid word'",
        "decoder.project_out.weight": f"{output}' resid",
    }
    spaces = {
        "word": Space(width, free, part="residual"),
        "out": Space(width, None if request.head == "Model" else free, part="residual"),
    }
    return spaces, templates, output_head(request, embedding, stream=output)


def opt_layer(layer: str, biased: bool) -> tuple[Templates, dict[str, tuple[str, ...]], tuple[FreeGauge, ...]]:
    """Templates of OPT's layer, its norms with the linear layers that read them, its free biases."""
    own = f"{layer}.self_attn"
    templates = {
        **separate_attention(own, "qk", "qk'", biased),
        **linear(f"{layer}.fc1", "ffn", "resid", biased),
        **linear(f"{layer}.fc2", "resid", "ffn'", biased),
    }
    reads = {
        f"{layer}.self_attn_layer_norm": tuple(f"{own}.{name}_proj" for name in "qkv"),
        f"{layer}.final_layer_norm": (f"{layer}.fc1",),
    }
    value = ValueBias(f"{own}.v_proj.bias", f"{own}.out_proj.weight", f"{own}.out_proj.bias")
    return templates, reads, (KeyBias(f"{own}.k_proj.bias"), value) if biased else ()


@declares("OPT", "opt", "Model", "ForCausalLM", "ForSequenceClassification", "ForQuestionAnswering")
def opt(request: Request) -> Spec:
    """OPT and Galactica, with LayerNorms in front of the branches or, as in OPT-350m, behind them.

    Behind, or without the last of them, the stream has permutations; where they have no gain, as in Galactica,
    rotations.
    """
    config, width, affine = request.config, request.config.hidden_size, request.config.layer_norm_elementwise_affine
    layer, reads, biases = opt_layer("decoder.layers.{layer}", config.enable_bias)
    spaces, words, head = opt_words(request)
    written = {name: words.pop(name) for name in list(words) if "project_out" in name}  # behind the layers
    rotations, readers = Orthogonal(fix_ones=True), ("decoder.project_out",) if spaces else layers_of(head[0])
    last = config.do_layer_norm_before and not config._remove_final_layer_norm
    groups = (Permutation(), rotations if last else None) if affine else (rotations, None)
    reads |= {"decoder.final_layer_norm": readers} if last else {}
    return layer_norm_decoder(
        request,
        head,
        {
            **attention(config.num_attention_heads, width // config.num_attention_heads),
            "resid": decoder_stream(width, "" if spaces else request.head, *groups),
            "ffn": Space(config.ffn_dim, neurons(config.activation_function), LAYER, part="ffn"),
            "pos": Space(config.max_position_embeddings + 2),
            **spaces,
        },
        {**words, "decoder.embed_positions.weight": "pos resid", **layer, **written},
        reads if affine else {},
        biases,
        ("num_attention_heads", "activation_function", "do_layer_norm_before", "_remove_final_layer_norm"),
        "model.",
    )


@declares("Bloom", "bloom", *ANSWERING)
def bloom(request: Request) -> Spec:
    """BLOOM. The gain of the LayerNorm behind the embeddings sits in the stream: permutations only.

    Every head has a slope of its own in ALiBi: their order is fixed.
    """
    config = request.config
    # together they skip the biases of a layer's last linear layers
    require(not (config.slow_but_exact and config.pretraining_tp > 1), "slow_but_exact with pretraining_tp")
    bases, query, key = head_bases(config.hidden_size // config.n_head, PER_HEAD)
    own, mlp = "h.{layer}.self_attention", "h.{layer}.mlp"
    layer, biases = megatron_layer(own, mlp, "head", query, key)
    norms = ("h.{layer}.input_layernorm", "h.{layer}.post_attention_layernorm")
    return layer_norm_decoder(
        request,
        output_head(request, "word_embeddings.weight", classifier="classifier"),
        bases
        | {
            "resid": decoder_stream(config.hidden_size, request.head, Permutation(), None),
            "head": Space(config.n_head),
            "ffn": Space(4 * config.hidden_size, Permutation(), LAYER, part="ffn"),
        },
        {"word_embeddings.weight": "vocab resid", **layer_norm("word_embeddings_layernorm"), **layer},
        dict.fromkeys(norms, ()),
        biases,
        ("n_head", "layer_norm_epsilon", "apply_residual_connection_post_layernorm"),
        "transformer.",
        "ln_f",
    )
