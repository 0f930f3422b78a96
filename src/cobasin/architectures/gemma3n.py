"""Gemma 3n's decoder: Gemma 4's attention and inputs for every layer, and several streams beside each other (AltUp).

The streams are made of the first one by a matrix each, mix coordinate by coordinate in every layer, and become one by
further matrices: so they have one order, with signs. What the norm in front of attention puts out goes on to the
stream, too (LAuReL), so that its gain stays where it is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cobasin.architectures import Request, declares
from cobasin.architectures.gemma4 import PRE_NORMS, attention_kinds, layer_inputs, reused
from cobasin.architectures.parts import LAYER, NEURONS, Parts, linear, require
from cobasin.architectures.rmsnorm_decoder import POST_NORMS, gated, rmsnorm_decoder
from cobasin.symmetry.gauges import Norm
from cobasin.symmetry.groups import Orthogonal, SignedPermutation
from cobasin.symmetry.spec import Space, Spec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

ALTUP, LAUREL = "layers.{layer}.altup", "layers.{layer}.laurel"
GATE = "layers.{layer}.per_layer_input_gate.weight"
NORMS = (
    Norm(f"{ALTUP}.router_norm.weight", (f"{ALTUP}.modality_router.weight",), centred=False),
    Norm(f"{ALTUP}.correct_output_scale", (GATE,), centred=False),  # a gain without a norm, which its reader can take
)
KEYS = (
    "layer_types",
    "sliding_window",
    "final_logit_softcapping",
    "num_kv_shared_layers",
    "activation_sparsity_pattern",
    "altup_active_idx",
)


def _streams(config: PreTrainedConfig) -> Parts:
    """Spaces and templates of the streams, and of what each layer adds to what its first norm puts out."""
    count = config.altup_num_inputs
    spaces = {
        "laurel": Space(config.laurel_rank, Orthogonal(scaled=True), LAYER, part="ffn"),
        "stream": Space(count),
        "mode": Space(count, SignedPermutation, LAYER, part="ffn"),  # behind a tanh
        "other": Space(count - 1),
        "pair_of_streams": Space(count**2),
    }
    return spaces, {
        "altup_projections.{other}.weight": "resid resid",
        "altup_unembed_projections.{other}.weight": "resid resid",
        f"{ALTUP}.correct_output_scale": "resid~",
        f"{ALTUP}.correction_coefs.weight": "stream mode",
        f"{ALTUP}.prediction_coefs.weight": "pair_of_streams mode",
        f"{ALTUP}.modality_router.weight": "mode resid",
        f"{ALTUP}.router_norm.weight": "resid~",
        **linear(f"{LAUREL}.linear_left", "laurel", "resid", bias=False),
        **linear(f"{LAUREL}.linear_right", "resid", "laurel'", bias=False),
        f"{LAUREL}.post_laurel_norm.weight": "resid~",
    }


@declares("Gemma3n", "gemma3n_text", "ForCausalLM")
@declares("Gemma3nText", "gemma3n_text", "Model")
def gemma3n(request: Request) -> Spec:
    """Gemma 3n without its towers."""
    config, absent = request.config, reused(request.config)
    width, *others = set(config.intermediate_size)
    require(not others, "intermediate_size that differs between layers")
    require(config.altup_correct_scale, "altup_correct_scale=false")
    spaces, attention = {"ffn": Space(width, NEURONS, LAYER, part="ffn")}, dict[str, str]()
    for own, projections in attention_kinds(config):
        spaces |= own
        attention |= projections
    parts = [(spaces, {}), layer_inputs(config), _streams(config)]
    spec = rmsnorm_decoder(request, {}, attention, gated(), PRE_NORMS, POST_NORMS, absent=absent, keys=KEYS)
    named = {name: space for name, space in spec.spaces.items() if name not in ("kv", "rep", "vo")}
    kept = tuple(norm for norm in spec.norms if "input_layernorm" not in norm.weight)
    return replace(
        spec,
        spaces={**named, **{name: space for more, _ in parts for name, space in more.items()}},
        templates={**spec.templates, **{name: type_ for _, more in parts for name, type_ in more.items()}},
        norms=(*kept, *NORMS) if spec.norms else (),
        aliases={"language_model.": ""},  # of files that have the towers, too
        buffers=(*spec.buffers, *absent, r"(vision_tower|audio_tower|embed_vision|embed_audio)\..*"),
    )
