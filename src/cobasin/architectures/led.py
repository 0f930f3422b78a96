"""LED: BART with the encoder of Longformer."""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.encoder_decoder import ENCODER, bart
from cobasin.architectures.joining import relabelled, without_keys
from cobasin.architectures.parts import linear
from cobasin.symmetry.gauges import KeyBias, ValueBias
from cobasin.symmetry.groups import Orthogonal
from cobasin.symmetry.spec import Space, Spec

OWN = f"{ENCODER}.self_attn"
LOOKING = f"{OWN}.longformer_self_attn"
NAMES = {
    f"{OWN}.q_proj": f"{LOOKING}.query",
    f"{OWN}.k_proj": f"{LOOKING}.key",
    f"{OWN}.v_proj": f"{LOOKING}.value",
    f"{OWN}.out_proj": f"{OWN}.output",
}


@declares("LED", "led", "ForConditionalGeneration", "Model", "ForQuestionAnswering")
def led(request: Request) -> Spec:
    """LED. Tokens that see all others have queries, keys and values of their own for it, as in Longformer."""

    def name(template: str) -> str:
        module, dot, last = template.rpartition(".")
        return f"{NAMES.get(module, module)}{dot}{last}"

    config = request.config
    spec = relabelled(without_keys(bart(request), "scale_embedding"), name=name)
    far = Space(spec.spaces["qk"].size, Orthogonal(scaled=True), ("layer", "head"), part="attention")
    rows = {"pos": config.max_encoder_position_embeddings, "decoder_pos": config.max_decoder_position_embeddings}
    biases = (one for one in spec.biases if not (isinstance(one, ValueBias) and one.bias.startswith(LOOKING)))
    return replace(
        spec,
        spaces={**spec.spaces, "far": far, **{space: Space(count) for space, count in rows.items()}},
        templates={
            **spec.templates,
            "decoder.embed_positions.weight": "decoder_pos resid",
            **linear(f"{LOOKING}.query_global", "(head far)", "resid"),
            **linear(f"{LOOKING}.key_global", "(head far')", "resid"),
            **linear(f"{LOOKING}.value_global", "(head vo)", "resid"),
        },
        prefix="led.",
        biases=(*biases, KeyBias(f"{LOOKING}.key_global.bias")),
        function_keys=(*spec.function_keys, "attention_window"),
    )
