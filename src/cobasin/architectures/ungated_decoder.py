"""Decoders like Llama whose FFN has no gate: Arcee, Apertus, NanoChat, Nemotron, Jais 2.

Neurons behind a square of ReLU have scales (up by c, down by its square) for which there is no group here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cobasin.architectures import Request, declares
from cobasin.architectures.parallel_decoder import grouped_decoder
from cobasin.architectures.parts import (
    LAYER,
    Parts,
    decoder_stream,
    linear,
    neurons,
)
from cobasin.architectures.qk_norm_decoder import normed
from cobasin.architectures.rmsnorm_decoder import (
    ANSWERING,
    MLP,
    head_width,
    partly_rotated,
    rmsnorm_decoder,
    rotary_attention,
    turned_attention,
)
from cobasin.symmetry.gauges import FreeGauge
from cobasin.symmetry.groups import Orthogonal, Rotation2
from cobasin.symmetry.spec import Space, Spec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def plain_ffn(name: str, space: str, bias: bool) -> dict[str, str]:
    """An FFN without a gate."""
    return linear(f"{name}.up_proj", space, "resid", bias) | linear(f"{name}.down_proj", "resid", f"{space}'", bias)


def ungated(config: PreTrainedConfig, bias: bool) -> Parts:
    """Neurons of an FFN without a gate, and its templates."""
    spaces = {"ffn": Space(config.intermediate_size, neurons(config.hidden_act), LAYER, part="ffn")}
    return spaces, plain_ffn(MLP, "ffn", bias)


@declares("Arcee", "arcee", *ANSWERING)
def arcee(request: Request) -> Spec:
    """Arcee."""
    basis, attention = rotary_attention(request.config)
    spaces, mlp = ungated(request.config, request.config.mlp_bias)
    return rmsnorm_decoder(request, basis | spaces, attention, mlp)


@declares("Apertus", "apertus", "Model", "ForCausalLM", "ForTokenClassification")
def apertus(request: Request) -> Spec:
    """Apertus: norms on queries and keys; an activation with trained numbers and constants, which no scale passes."""
    config = request.config
    spaces, mlp = ungated(config, bias=False)
    if config.hidden_act == "xielu":
        mlp |= {f"{MLP}.act_fn.alpha_p": "1", f"{MLP}.act_fn.alpha_n": "1"}
        mlp |= {f"{MLP}.act_fn.beta": "scalar", f"{MLP}.act_fn.eps": "scalar"}
    basis, attention = normed(config)
    return rmsnorm_decoder(request, basis | spaces, attention, mlp, ("attention_layernorm", "feedforward_layernorm"))


@declares("NanoChat", "nanochat", "Model", "ForCausalLM")
def nanochat(request: Request) -> Spec:
    """NanoChat: its RMSNorms have no gains, so that its stream turns as it is.

    One stands behind the rotary embedding of queries and keys, which turn with it, too, without a scale.
    """
    config = request.config
    basis, attention = rotary_attention(config)
    spaces = basis | ungated(config, bias=False)[0]
    spaces["pair"] = replace(spaces["pair"], group=Rotation2())
    spaces["resid"] = decoder_stream(config.hidden_size, request.head, Orthogonal())
    mlp = linear(f"{MLP}.fc1", "ffn", "resid", bias=False) | linear(f"{MLP}.fc2", "resid", "ffn'", bias=False)
    keys = ("rms_norm_eps", "final_logit_softcapping")
    return grouped_decoder(request, spaces, attention, mlp, keys=keys, last="")


@declares("Nemotron", "nemotron", *ANSWERING)
def nemotron(request: Request) -> Spec:
    """Nemotron and Minitron: LayerNorms, whose gains are stored minus one; a part of every head is rotated."""
    config, biased = request.config, request.config.attention_bias
    attention = turned_attention(head_width(config), partly_rotated(config), biased, biased)
    spec = _with_layer_norms(request, "norm_eps", *attention)
    return replace(spec, plus_one=tuple(name for name in spec.templates if name.endswith("norm.weight")))


@declares("Jais2", "jais2", "Model", "ForCausalLM")
def jais2(request: Request) -> Spec:
    """Jais 2: LayerNorms."""
    return _with_layer_norms(request, "layer_norm_eps", *rotary_attention(request.config))


def _with_layer_norms(
    request: Request, eps: str, bases: dict[str, Space], attention: dict[str, str], biases: tuple[FreeGauge, ...] = ()
) -> Spec:
    spaces, mlp = ungated(request.config, request.config.mlp_bias)
    return grouped_decoder(request, bases | spaces, attention, mlp, biases, (eps,))
