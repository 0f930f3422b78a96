"""X-MOD: RoBERTa with an adapter for every language behind the FFN of every layer."""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.encoder import ANSWERING, bert_spec, roberta_head
from cobasin.architectures.joining import without_keys
from cobasin.architectures.parts import LAYER, layer_norm, linear, neurons, require
from cobasin.symmetry.spec import Space, Spec

OUTPUT = "encoder.layer.{layer}.output"


@declares("Xmod", "xmod", *ANSWERING, "ForCausalLM")
def xmod(request: Request) -> Spec:
    """X-MOD. The same norm may stand in front of the adapters and behind them."""
    config = request.config
    require(not config.pre_norm, "pre_norm")
    languages = [str(language) for language in config.languages]
    own = layer_norm(f"{OUTPUT}.adapter_layer_norm") if config.adapter_layer_norm else {}
    spec = without_keys(bert_spec(request, *roberta_head(request), "roberta."), "position_embedding_type")
    bottleneck = Space(
        config.hidden_size // config.adapter_reduction_factor, neurons(config.hidden_act), LAYER, part="ffn"
    )
    adapters = {}
    for i, language in enumerate(languages):
        name = f"{OUTPUT}.adapter_modules.{language}"
        adapters |= linear(f"{name}.dense1", f"adapter_{i}", "resid") | linear(
            f"{name}.dense2", "resid", f"adapter_{i}'"
        )
    # the adapters are told by their place among the languages
    keys = ("pad_token_id", "languages", "default_language", "adapter_reuse_layer_norm", "ln_before_adapter")
    return replace(
        spec,
        spaces={**spec.spaces, **{f"adapter_{i}": bottleneck for i in range(len(languages))}},
        templates={**spec.templates, **own, **adapters},
        function_keys=(*spec.function_keys, *keys),
    )
