"""EmbeddingGemma 2: Gemma 4's layers, of which every token sees those behind it, too, and an output of its own width.

Every layer has an input that is made of the embeddings alone, through one norm for all layers, whose gain the layers
can take over.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cobasin.architectures import Request, declares
from cobasin.architectures.gemma4 import PER_LAYER, PRE_NORMS, attention_kinds
from cobasin.architectures.gemma4_pictures import with_towers
from cobasin.architectures.joining import without_keys
from cobasin.architectures.rmsnorm_decoder import POST_NORMS, gated, rmsnorm_decoder
from cobasin.architectures.vision_language import decoder
from cobasin.symmetry.gauges import Norm
from cobasin.symmetry.groups import SignedPermutation
from cobasin.symmetry.spec import Space, Spec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

BLOCK, INPUTS = "layers.{layer}.ple_block", "ple.per_layer_projection_norm.weight"
MADE = {"ple.per_layer_model_projection.weight": "(depth input) resid", INPUTS: "input~"}
ADDED = {
    f"{BLOCK}.per_layer_input_gate.weight": "input~ resid",
    f"{BLOCK}.per_layer_projection.weight": "resid input",
    f"{BLOCK}.post_per_layer_input_norm.weight": "resid~",
    "layers.{layer}.layer_scalar": "1",
}
OUTPUT = {"embedding_projection.weight": "embedding resid"}


def _spaces(config: PreTrainedConfig) -> dict[str, Space]:
    """Spaces of the inputs of layers, and of the output."""
    return {
        "depth": Space(config.num_hidden_layers),
        "input": Space(config.hidden_size_per_layer_input, SignedPermutation, part="ffn"),
        "embedding": Space(config.embedding_dim),
    }


@declares("EmbeddingGemma2Text", "embedding_gemma2_text", "Model", per_layer=PER_LAYER)
def embedding_gemma2(request: Request) -> Spec:
    """EmbeddingGemma 2 without its towers. Its stream is not its output."""
    kinds = attention_kinds(request.config)
    one = replace(request, config=request.config.per_layer_config[0], head="ForEmbedding")  # of one width of head
    spec = rmsnorm_decoder(
        one,
        _spaces(request.config) | {name: space for spaces, _ in kinds for name, space in spaces.items()},
        {name: type_ for _, templates in kinds for name, type_ in templates.items()},
        gated(),
        PRE_NORMS,
        POST_NORMS,
        keys=("layer_types", "sliding_window"),
        own_head=(OUTPUT, {}),
    )
    unused = ("kv", "rep", "vo")  # every kind has its own
    embedding, *others = spec.templates.items()
    return replace(
        without_keys(spec, *PER_LAYER, "is_causal"),
        spaces={name: space for name, space in spec.spaces.items() if name not in unused},
        templates=dict([embedding, *MADE.items(), *others, *ADDED.items()]),
        norms=(*spec.norms, Norm(INPUTS, (f"{BLOCK}.per_layer_projection.weight",), centred=False, stream="input")),
    )


@declares("EmbeddingGemma2", "embedding_gemma2", "Model", per_layer=PER_LAYER)
def embedding_gemma2_pictures(request: Request) -> Spec:
    """EmbeddingGemma 2 with its towers, which are Gemma 4's."""
    return with_towers(request, decoder(request, embedding_gemma2))
