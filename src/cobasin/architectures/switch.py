"""Switch Transformers: T5 with experts in some layers, of which each token goes to one."""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.parts import Parts, neurons, require
from cobasin.architectures.t5 import DECODER, ENCODER, t5
from cobasin.symmetry.gauges import FreeGauge, SoftmaxShift
from cobasin.symmetry.groups import Permutation
from cobasin.symmetry.spec import Space, Spec

Absent = tuple[str, ...]


def _mlp(config, name: str, prefix: str, layers: int, step: int) -> tuple[Parts, Absent, tuple[FreeGauge, ...]]:
    """The FFNs of a stack, ``name`` in every layer: spaces, templates, what is absent, and free biases."""
    layer, expert, inner = f"{prefix}layer", f"{prefix}expert", f"{prefix}expert_ffn"
    spaces = {
        expert: Space(config.num_experts, Permutation(), (layer,), part="experts"),
        inner: Space(config.d_ff, neurons(config.dense_act_fn), (layer, expert), part="ffn"),
    }
    router = {f"{name}.router.classifier.weight": f"{expert} resid"}
    router |= {f"{name}.router.classifier.bias": expert} if config.router_bias else {}
    one = f"{name}.experts.expert_{{{expert}}}"
    templates = {
        f"{name}.wi.weight": f"{prefix}ffn resid",
        f"{name}.wo.weight": f"resid {prefix}ffn'",
        **router,
        f"{one}.wi.weight": f"{expert} {inner} resid",
        f"{one}.wo.weight": f"{expert} resid {inner}'",
    }
    sparse = "|".join(str(i) for i in range(layers) if step == 1 or (step > 0 and i % step == 1))
    stack = name.split(".")[0]
    absent = (
        rf"{stack}\.block\.({sparse})\.layer\.\d\.mlp\.w[io]\.weight",
        rf"{stack}\.block\.(?!({sparse})\.)\d+\.layer\.\d\.mlp\.(router|experts)\..*",
    )
    none = rf"{stack}\.block\.\d+\.layer\.\d\.mlp\.(router|experts)\..*"
    return (spaces, templates), absent if sparse else (none,), tuple(map(SoftmaxShift, router, [expert] * len(router)))


@declares("SwitchTransformers", "switch_transformers", "ForConditionalGeneration", "Model", "EncoderModel")
def switch(request: Request) -> Spec:
    """Switch Transformers. What is compared with the embeddings is scaled where it is tied: the head cannot be untied.

    So the last norm keeps its gain, and the stream can change its order and signs only.
    """
    config, spec = request.config, t5(request)
    require(config.tie_word_embeddings, "tie_word_embeddings = false")
    stacks = [_mlp(config, f"{ENCODER}.1.mlp", "", config.num_layers, config.encoder_sparse_step)]
    if any(name.startswith(DECODER) for name in spec.templates):
        layers, step = config.num_decoder_layers, config.decoder_sparse_step
        stacks.append(_mlp(config, f"{DECODER}.2.mlp", "decoder_", layers, step))
    spaces, templates = dict(spec.spaces), {n: t for n, t in spec.templates.items() if ".DenseReluDense." not in n}
    for (own, ffn), *_ in stacks:
        spaces, templates = spaces | own, templates | ffn
    return replace(
        spec,
        spaces={**spaces, "resid": replace(spec.spaces["resid"], folded=None)},
        templates=templates,
        absent=(*spec.absent, *(pattern for _, absent, _ in stacks for pattern in absent)),
        norms=(),
        biases=(*spec.biases, *(bias for *_, biases in stacks for bias in biases)),
        function_keys=(*(key for key in spec.function_keys if key != "scale_decoder_outputs"), "expert_capacity"),
    )
