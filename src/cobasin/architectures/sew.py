"""SEW: wav2vec 2.0 whose layers see several frames as one.

Frames are averaged in front of the layers. Behind them one linear layer makes as many of each again, in the same order
of channels.
"""

from __future__ import annotations

from dataclasses import replace

from cobasin.architectures import Request, declares
from cobasin.architectures.parts import linear, neurons
from cobasin.architectures.speech import FUNCTION_KEYS, HEADS, task_head, wav2vec2
from cobasin.symmetry.groups import Permutation
from cobasin.symmetry.spec import Space, Spec

PROJECTION = "feature_projection"


@declares("SEW", "sew", *HEADS)
def sew(request: Request) -> Spec:
    """SEW. A classifier of the streams of all layers does not read what is behind them.

    Without a projection the last convolution writes to the stream, which is fixed.
    """
    config, spec, last = request.config, wav2vec2(request), len(request.config.conv_dim) - 1
    projected = config.conv_dim[last] != config.hidden_size
    templates = {}
    for name, type_ in spec.templates.items():
        own = name.replace(f"{PROJECTION}.layer_norm", "layer_norm").replace(f"{PROJECTION}.projection", PROJECTION)
        if projected or not own.startswith(PROJECTION):
            templates[own] = type_
    behind = linear("encoder.upsample.projection", "(squeeze up)", "resid")
    weighted = config.use_weighted_layer_sum and request.head == "ForSequenceClassification"
    shown = None if request.head == "Model" else neurons(config.feat_extract_activation)
    return replace(
        spec,
        spaces={
            **spec.spaces,
            f"conv{last}": Space(config.conv_dim[last], Permutation() if projected else None, part="ffn"),
            "squeeze": Space(config.squeeze_factor),
            "up": Space(config.hidden_size, shown, part="ffn"),
        },
        templates={**templates, **behind, **task_head(request, "resid" if weighted else "up'")},
        unread=(*spec.unread, *(behind if weighted else ())),
        function_keys=tuple(key for key in FUNCTION_KEYS if key != "do_stable_layer_norm"),
    )
