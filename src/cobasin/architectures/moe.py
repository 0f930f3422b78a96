"""Decoders with a mixture of experts: Mixtral, Qwen2-MoE, Qwen3-MoE, Mellum 2, OLMoE, GPT-OSS, HunYuan, Granite.

Experts may change order together with their router rows, and neurons inside each expert. A file has the experts one by
one, or fused as Transformers 5 has them in memory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cobasin.architectures import Request, declares
from cobasin.architectures.parts import LAYER, NEURONS, Parts, linear, require
from cobasin.architectures.qk_norm_decoder import normed, turned_and_normed
from cobasin.architectures.rmsnorm_decoder import (
    ANSWERING,
    GRANITE_KEYS,
    HEADS,
    MLP,
    OWN,
    POST_NORMS,
    PRE_NORMS,
    gated,
    head_width,
    projections,
    rmsnorm_decoder,
    rotary,
    rotary_attention,
)
from cobasin.symmetry.gauges import SoftmaxShift
from cobasin.symmetry.groups import Permutation
from cobasin.symmetry.spec import Space, Spec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
SPARSE, NUMBERED = "layers.{layer}.block_sparse_moe", ("w1", "w3", "w2")  # as Mixtral has them


def experts(
    request: Request,
    block: str = MLP,
    names: tuple[str, str, str] = PROJECTIONS,
    router: str = "gate",
    fused: str = MLP,
) -> dict[str, str]:
    """Templates of a router, first, and its experts, in ``block`` or, where the file fuses them, in ``fused``."""
    if request.has("experts.gate_up_proj"):
        return {
            f"{fused}.{router}.weight": "expert resid",
            f"{fused}.experts.gate_up_proj": "expert (ffn~ + ffn) resid",
            f"{fused}.experts.down_proj": "expert resid ffn'",
        }
    gate, up, down = (f"{block}.experts.{{expert}}.{name}.weight" for name in names)
    templates = {gate: "expert ffn~ resid", up: "expert ffn resid", down: "expert resid ffn'"}
    return {f"{block}.{router}.weight": "expert resid", **templates}


def turned_experts(request: Request) -> dict[str, str]:
    """Templates of a router and fused experts, each of whose tensors may be stored transposed: its shape tells."""
    config, found = request.config, experts(request)
    if (stacked := f"{MLP}.experts.gate_up_proj") in found:
        width, stream = config.moe_intermediate_size, config.hidden_size
        down = f"{MLP}.experts.down_proj"
        for name, shape, turned in (
            (stacked, (2 * width, stream), "expert resid (ffn~ + ffn)"),
            (down, (stream, width), "expert ffn' resid"),
        ):
            stored = request.shape(name.removeprefix("layers.{layer}"))
            if stored is not None and stored[1:] != shape:
                found[name] = turned
    return found


def read_by(spec: Spec, *readers: str) -> Spec:
    """The spec of a decoder whose experts do not have the stream as the last axis of what reads it, and only there."""
    gain = "layers.{layer}.post_attention_layernorm.weight"
    return replace(spec, norms=tuple(replace(n, readers=readers) if n.weight == gain else n for n in spec.norms))


def moe_spaces(count: int, width: int) -> dict[str, Space]:
    """Spaces of ``count`` experts with ``width`` neurons each."""
    return {
        "expert": Space(count, Permutation(), LAYER, part="experts"),
        "ffn": Space(width, NEURONS, ("layer", "expert"), part="ffn"),
    }


def _moe(
    request: Request,
    spaces: dict[str, Space],
    attention: dict[str, str],
    mlp: dict[str, str],
    absent: tuple[str, ...] = (),
    keys: tuple[str, ...] = (),
    chosen: str = "num_experts_per_tok",
    norms: tuple[tuple[str, ...], tuple[str, ...]] = (PRE_NORMS, ()),
) -> Spec:
    """A decoder whose ``mlp`` begins with a router, behind which a softmax stands.

    ``norms`` are those in front of the branches, and those behind them.
    """
    biases = (SoftmaxShift(next(iter(mlp))),)
    keys = (chosen, *keys)
    return rmsnorm_decoder(request, spaces, attention, mlp, *norms, biases=biases, absent=absent, keys=keys)


def dense_layers(
    config: PreTrainedConfig, dense: list[int], bias: bool = False, width: int | None = None
) -> tuple[dict[str, Space], dict[str, str], tuple[str, ...]]:
    """Spaces, templates and what is absent where the layers ``dense`` have a plain FFN, maybe of another width."""
    if not dense:
        return {}, {}, ()
    is_dense = "|".join(map(str, dense))
    absent = (
        rf"layers\.({is_dense})\.mlp\.(gate|router|expert|shared|moe_statics|e_score)(?!_proj).*",
        rf"layers\.(?!({is_dense})\.)\d+\.mlp\.((gate|up|down)_proj|linear_gate)\..*",
    )
    spaces = {"dense": Space(width or config.intermediate_size, NEURONS, LAYER, part="ffn")}
    return spaces, gated(neurons="dense", bias=bias), absent


def qwen_layers(config: PreTrainedConfig) -> tuple[dict[str, Space], dict[str, str], tuple[str, ...]]:
    """The same of a Qwen model."""
    layers, kinds = range(config.num_hidden_layers), getattr(config, "mlp_layer_types", None)
    if kinds is None:
        dense = [i for i in layers if i in config.mlp_only_layers or (i + 1) % config.decoder_sparse_step]
    else:
        dense = [i for i in layers if kinds[i] != "sparse"]
    require(config.num_experts > 0 and len(dense) < len(layers), "a mixture of experts without experts")
    return dense_layers(config, dense)


def shared_expert(config: PreTrainedConfig) -> Parts:
    """Spaces and templates of an expert that all tokens share, behind a gate of its own."""
    spaces = {"shared": Space(config.shared_expert_intermediate_size, NEURONS, LAYER, part="ffn")}
    return spaces, gated(f"{MLP}.shared_expert", "shared") | {f"{MLP}.shared_expert_gate.weight": "1 resid"}


@declares("Mixtral", "mixtral", *ANSWERING)
def mixtral(request: Request) -> Spec:
    """Mixtral."""
    config = request.config
    spaces = rotary(head_width(config)) | moe_spaces(config.num_local_experts, config.intermediate_size)
    mlp = experts(request, SPARSE, NUMBERED)
    return _moe(request, spaces, projections(), mlp, keys=("sliding_window",))


@declares("Qwen2Moe", "qwen2_moe", *ANSWERING)
def qwen2_moe(request: Request) -> Spec:
    """Qwen2-MoE: besides the experts one that all tokens share."""
    config = request.config
    dense, plain, absent = qwen_layers(config)
    shared, beside = shared_expert(config)
    spaces = rotary(head_width(config)) | moe_spaces(config.num_experts, config.moe_intermediate_size) | dense | shared
    mlp = experts(request) | beside | plain
    keys = ("norm_topk_prob", "sliding_window", "layer_types")
    return _moe(request, spaces, projections(bias=config.qkv_bias), mlp, absent, keys)


@declares("Qwen3Moe", "qwen3_moe", *ANSWERING)
def qwen3_moe(request: Request) -> Spec:
    """Qwen3-MoE: experts, and the norms on queries and keys of Qwen3."""
    return _qwen3(request, experts(request), "norm_topk_prob", "sliding_window")


def qwen3_moe_decoder(request: Request) -> Spec:
    """The decoder of Qwen3-VL-MoE."""
    spec = _qwen3(request, turned_experts(request))
    names = ("gate.weight", "experts.gate_up_proj", "gate_proj.weight", "up_proj.weight")
    return read_by(spec, *(name for part in names if (name := f"{MLP}.{part}") in spec.templates))


def _qwen3(request: Request, mlp: dict[str, str], *keys: str) -> Spec:
    config = request.config
    dense, plain, absent = qwen_layers(config)
    basis, attention = normed(config)
    spaces = basis | moe_spaces(config.num_experts, config.moe_intermediate_size) | dense
    return _moe(request, spaces, attention, mlp | plain, absent, keys)


@declares("Mellum", "mellum", "Model", "ForCausalLM")
def mellum(request: Request) -> Spec:
    """Mellum 2: layers in which a window slides have a rotary embedding of their own."""
    spec = _qwen3(request, experts(request), "norm_topk_prob", "sliding_window", "layer_types")
    return replace(spec, further=(r"mtp\..*",))


@declares("Olmoe", "olmoe", "Model", "ForCausalLM")
@declares("FlexOlmo", "flex_olmo", "Model", "ForCausalLM")
def olmoe(request: Request) -> Spec:
    """OLMoE: experts, and norms over all queries and all keys of a layer; FlexOlmo, with norms behind the branches."""
    config = request.config
    require(getattr(config, "clip_qkv", None) is None, "clip_qkv")
    basis, attention = normed(config, shared=False)
    spaces = basis | moe_spaces(config.num_experts, config.intermediate_size)
    norms = ((), POST_NORMS) if config.model_type == "flex_olmo" else (PRE_NORMS, ())
    return _moe(request, spaces, attention, experts(request), keys=("norm_topk_prob",), norms=norms)


@declares("HunYuanMoEV1", "hunyuan_v1_moe", "Model", "ForCausalLM", "ForSequenceClassification")
def hunyuan_v1_moe(request: Request) -> Spec:
    """HunYuan with experts, and one that all tokens share."""
    config = request.config
    basis, attention = turned_and_normed(config)
    spaces = basis | moe_spaces(config.num_experts, config.intermediate_size)
    spaces["shared"] = Space(config.intermediate_size, NEURONS, LAYER, part="ffn")
    mlp = experts(request, router="gate.wg") | gated(f"{MLP}.shared_mlp", "shared")
    return _moe(request, spaces, attention, mlp, chosen="moe_topk")


def granite_ffn(request: Request) -> Parts:
    """Spaces and templates of Granite's experts, which files have fused, and of what all tokens share, if any."""
    config = request.config
    spaces, mlp = dict[str, Space](), dict[str, str]()
    if config.num_local_experts:
        names = ("router.layer.weight", "input_linear.weight", "output_linear.weight")
        if request.has("experts.gate_up_proj"):
            names = ("router.weight", "experts.gate_up_proj", "experts.down_proj")
        types = ("expert resid", "expert (ffn~ + ffn) resid", "expert resid ffn'")
        mlp = {f"{SPARSE}.{name}": type_ for name, type_ in zip(names, types, strict=True)}
        spaces = moe_spaces(config.num_local_experts, config.intermediate_size)
    if shared := getattr(config, "shared_intermediate_size", 0):
        neurons = "shared" if mlp else "ffn"
        spaces[neurons] = Space(shared, NEURONS, LAYER, part="ffn")
        mlp["layers.{layer}.shared_mlp.input_linear.weight"] = f"({neurons}~ + {neurons}) resid"
        mlp["layers.{layer}.shared_mlp.output_linear.weight"] = f"resid {neurons}'"
    return spaces, mlp


@declares("GraniteMoeShared", "granitemoeshared", "Model", "ForCausalLM")
@declares("GraniteMoe", "granitemoe", "Model", "ForCausalLM")
def granitemoe(request: Request) -> Spec:
    """Granite 3 with experts, and perhaps one that all tokens share."""
    (basis, attention), (spaces, mlp) = rotary_attention(request.config), granite_ffn(request)
    return _moe(request, basis | spaces, attention, mlp, keys=GRANITE_KEYS)


@declares("GptOss", "gpt_oss", *HEADS)
def gpt_oss(request: Request) -> Spec:
    """GPT-OSS: a sink for every head; experts with biases, stored transposed, gates and up-projections in turn.

    The activation clamps both and adds one to the latter, so that neurons have an order only.
    """
    config = request.config
    stacked, router = f"{MLP}.experts", f"{MLP}.router"
    basis, attention = rotary_attention(config)
    spaces = basis | moe_spaces(config.num_local_experts, config.intermediate_size)
    spaces["ffn"] = replace(spaces["ffn"], group=Permutation())
    spaces["turn"] = Space(2)
    attention |= {f"{OWN}.sinks": "(kv rep)"}
    mlp = linear(router, "expert", "resid") | {
        f"{stacked}.gate_up_proj": "expert resid (ffn turn)",
        f"{stacked}.gate_up_proj_bias": "expert (ffn turn)",
        f"{stacked}.down_proj": "expert ffn resid",
        f"{stacked}.down_proj_bias": "expert resid",
    }
    biases = (SoftmaxShift(f"{router}.weight"), SoftmaxShift(f"{router}.bias"))
    keys = ("num_experts_per_tok", "swiglu_alpha", "swiglu_limit", "sliding_window", "layer_types")
    spec = rmsnorm_decoder(request, spaces, attention, mlp, biases=biases, keys=keys)
    return read_by(spec, f"{router}.weight", f"{stacked}.gate_up_proj")
