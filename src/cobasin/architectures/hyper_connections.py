"""Decoders with several streams beside each other, each of whose branches reads and writes a mix of them: HunYuan 4.

What mixes the streams reads all of them behind a norm without a gain, so that all have one basis. They begin as equals:
any order of them will do.
"""

from __future__ import annotations

import re
from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.corrected_router import CHOICE, deepseek_decoder
from cobasin.architectures.joining import relabelled
from cobasin.architectures.latent_decoder import indexer, latent_attention
from cobasin.architectures.parts import NEURONS, PER_GROUP, linear
from cobasin.architectures.rmsnorm_decoder import OWN
from cobasin.symmetry.groups import Permutation, SignedPermutation
from cobasin.symmetry.spec import Space, Spec

# what the names of the mixes begin with: as Transformers writes them, and on the hub
PLACES = {
    "attention": ("hc_pre.hc_attn_layer.hc_", "hc_attn_layer.hc_pre.hc_"),
    "ffn": ("hc_pre.hc_mlp_layer.hc_", "hc_mlp_layer.hc_pre.hc_"),
    "head": ("hc_pre.hc_head.hc_head_", "hc_head.hc_pre.hc_head_"),
}


def _mixes(request: Request) -> dict[str, str]:
    """Templates of what mixes the streams."""
    found = {part: next((n for n in names if request.has(f"{n}fn")), names[0]) for part, names in PLACES.items()}
    head = found.pop("head")
    templates = {f"{head}fn": "stream (stream resid)", f"{head}base": "stream", f"{head}scale": "1"}
    for name in found.values():
        place = f"layers.{{layer}}.{name}"
        templates |= {
            f"{place}fn": "(way stream) (stream resid)",
            f"{place}base": "(way stream)",
            f"{place}scale": "way",
        }
    return templates


@declares("HYV4", "hy_v4", "Model", "ForCausalLM")
def hy_v4(request: Request) -> Spec:
    """HunYuan 4: DeepSeek-V3.2's attention, with sinks, and gates of what heads put out; DeepSeek's experts.

    Gates leave values signed orders with scales. Experts clamp gates from above, what these multiply on both sides.
    """
    config = request.config
    basis, attention, (latent, query) = latent_attention(config, "pair freq")
    more, chosen = indexer(config, "pair freq", last=True)
    spaces = basis | more | {"stream": Space(config.hc_mult, Permutation(), part="residual"), "way": Space(2)}
    spaces["vo"] = Space(config.v_head_dim, NEURONS, PER_GROUP, part="attention")
    gates = linear(f"{OWN}.linear_gate", "(kv vo~)", "resid", bias=False)
    attention |= chosen | gates | {f"{OWN}.learnable_sink_param": "kv"}
    keys = (*CHOICE, "index_topk", "hc_magnitude", "hc_eps", "swiglu_limit")
    spec = deepseek_decoder(request, spaces, attention, keys=keys)
    if request.has("shared_experts.linear_gate.weight"):  # Transformers writes all gates under the name of those
        spec = relabelled(spec, name=lambda name: re.sub(r"(mlp|shared_experts)\.gate_proj", r"\1.linear_gate", name))
    read = tuple(name for name, type_ in attention.items() if type_.endswith(" query"))
    ffn = replace(spec.spaces["ffn"], group=SignedPermutation)
    return replace(
        spec,
        spaces={**spec.spaces, "ffn": ffn},
        templates={**spec.templates, **_mixes(request)},
        norms=(*spec.norms, latent, replace(query, readers=read)),
        further=(*spec.further, r"mtp_layers\..*"),
    )
