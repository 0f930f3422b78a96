"""Encoders of waveforms, and of mel features."""

import transformers as T

from families import CHANGES, KEEPS, SHAPES, UNCOVERED

_SPEECH = {
    "hidden_size": 24,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 20,
    "conv_dim": (6, 5, 7),
    "conv_kernel": (4, 3, 2),
    "conv_stride": (2, 2, 1),
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 3,
    "vocab_size": 9,
    "classifier_proj_size": 8,
    "num_labels": 3,
}
_DATA2VEC = {
    **{**_SPEECH, "num_conv_pos_embeddings": 2, "conv_pos_kernel_size": 3},
    # of wav2vec 2.0; nothing reads them here
    **{"feat_extract_norm": "group", "feat_proj_layer_norm": False, "do_stable_layer_norm": True},
}
_QUANTIZER = {
    "num_codevector_groups": 2,
    "num_codevectors_per_group": 5,
    "codevector_dim": 12,
    "proj_codevector_dim": 9,
}
# as the large models have it
_STABLE = {**_SPEECH, "do_stable_layer_norm": True, "feat_extract_norm": "layer", "conv_bias": True}
_SQUEEZED = {**_SPEECH, "conv_dim": (6, 5, 24)}  # the last convolution writes to the stream
_WAVLM = {"num_buckets": 12, "max_bucket_distance": 20}
_CONFORMER = {
    **{key: _SPEECH[key] for key in ("hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size")},
    **{"vocab_size": 9, "classifier_proj_size": 8, "num_labels": 3},
    "feature_projection_input_dim": 7,
    "left_max_position_embeddings": 4,
    "right_max_position_embeddings": 2,
    "conv_depthwise_kernel_size": 5,
}
_TURNED = {**_STABLE, "conv_depthwise_kernel_size": 3, "position_embeddings_type": "rotary", "hidden_act": "relu"}
_ADAPTER = {
    **{"add_adapter": True, "num_adapter_layers": 2, "output_hidden_size": 16},
    **{"adapter_kernel_size": 3, "adapter_stride": 2, "use_intermediate_ffn_before_adapter": True},
}
_SHORTENED = {key: value for key, value in _ADAPTER.items() if not key.startswith("use_")}
_HEADS = ("ForCTC", "Model", "ForSequenceClassification")
_FRAMES = (*_HEADS, "ForAudioFrameClassification")

FAMILIES = {
    "wav2vec2": ("Wav2Vec2", _FRAMES, T.Wav2Vec2Config, _SPEECH),
    "wav2vec2-pre-training": ("Wav2Vec2", ("ForPreTraining", "Model"), T.Wav2Vec2Config, {**_SPEECH, **_QUANTIZER}),
    "wav2vec2-weighted": ("Wav2Vec2", _FRAMES[2:], T.Wav2Vec2Config, {**_SPEECH, "use_weighted_layer_sum": True}),
    "wav2vec2-stable": ("Wav2Vec2", ("ForCTC",), T.Wav2Vec2Config, {**_STABLE, "hidden_act": "relu"}),
    "wav2vec2-adapter": (
        "Wav2Vec2",
        ("ForCTC", "Model"),
        T.Wav2Vec2Config,
        {**_STABLE, **_SHORTENED, "adapter_attn_dim": 5},
    ),
    "hubert": ("Hubert", _HEADS, T.HubertConfig, {**_SPEECH, "feat_proj_layer_norm": False}),
    "unispeech": ("UniSpeech", _HEADS, T.UniSpeechConfig, _SPEECH),
    "unispeech-sat": ("UniSpeechSat", _FRAMES, T.UniSpeechSatConfig, _STABLE),
    "data2vec-audio": ("Data2VecAudio", _FRAMES, T.Data2VecAudioConfig, _DATA2VEC),
    "hubert-stable": ("Hubert", ("ForCTC",), T.HubertConfig, {**_STABLE, "mask_time_prob": 0.0}),
    "wavlm": ("WavLM", _FRAMES, T.WavLMConfig, {**_SPEECH, **_WAVLM}),
    "hubert-weighted": ("Hubert", _HEADS[2:], T.HubertConfig, {**_STABLE, "use_weighted_layer_sum": True}),
    "wavlm-weighted": ("WavLM", _FRAMES[2:], T.WavLMConfig, {**_SPEECH, **_WAVLM, "use_weighted_layer_sum": True}),
    "wavlm-stable": ("WavLM", ("ForCTC",), T.WavLMConfig, {**_STABLE, **_WAVLM}),
    "sew": ("SEW", _HEADS, T.SEWConfig, {**_SPEECH, "squeeze_factor": 3}),
    "sew-weighted": ("SEW", _HEADS[2:], T.SEWConfig, {**_SQUEEZED, "use_weighted_layer_sum": True}),
    "wav2vec2-bert": ("Wav2Vec2Bert", _FRAMES, T.Wav2Vec2BertConfig, _CONFORMER),
    "wav2vec2-bert-relative": (
        "Wav2Vec2Bert",
        ("ForSequenceClassification",),
        T.Wav2Vec2BertConfig,
        {**_CONFORMER, "position_embeddings_type": "relative", "use_weighted_layer_sum": True},
    ),
    "wav2vec2-bert-rotary": (
        "Wav2Vec2Bert",
        ("ForCTC",),
        T.Wav2Vec2BertConfig,
        {**_CONFORMER, "position_embeddings_type": "rotary", "hidden_act": "relu"},
    ),
    "wav2vec2-conformer": (
        "Wav2Vec2Conformer",
        ("ForCTC", "ForPreTraining", *_FRAMES[1:]),
        T.Wav2Vec2ConformerConfig,
        {**_SPEECH, **_QUANTIZER, "conv_depthwise_kernel_size": 5},
    ),
    "wav2vec2-conformer-rotary": (
        "Wav2Vec2Conformer",
        ("ForAudioFrameClassification",),
        T.Wav2Vec2ConformerConfig,
        {**_TURNED, "use_weighted_layer_sum": True},
    ),
    "wav2vec2-conformer-adapter": (
        "Wav2Vec2Conformer",
        ("Model",),
        T.Wav2Vec2ConformerConfig,
        {**_SPEECH, **_SHORTENED, "conv_depthwise_kernel_size": 3, "position_embeddings_type": None},
    ),
    "wav2vec2-bert-adapter": (
        "Wav2Vec2Bert",
        ("ForCTC", "Model"),
        T.Wav2Vec2BertConfig,
        {**_CONFORMER, **_ADAPTER},
    ),
}
FLOAT32_PARTS: tuple[str, ...] = (  # their code books
    "wav2vec2-pre-training",
    "wav2vec2-conformer/Wav2Vec2ConformerForPreTraining",
)

_KEYS = {
    "num_attention_heads": (2, CHANGES),
    "hidden_act": ("relu", CHANGES),
    "layer_norm_eps": (0.1, CHANGES),
    "feat_extract_activation": ("relu", CHANGES),
    "conv_stride": ([2, 1, 2], CHANGES),
    "do_stable_layer_norm": (True, CHANGES),
}
KEYS = {
    "wav2vec2/Wav2Vec2ForCTC": {**_KEYS, "add_adapter": (True, SHAPES), "adapter_attn_dim": (4, UNCOVERED)},
    "wav2vec2-pre-training/Wav2Vec2ForPreTraining": {"add_adapter": (True, UNCOVERED)},
    "wav2vec2-adapter/Wav2Vec2ForCTC": {
        "adapter_stride": (1, CHANGES),
        "adapter_kernel_size": (5, SHAPES),
        "adapter_attn_dim": (None, SHAPES),
    },
    "hubert/HubertForCTC": {**_KEYS, "conv_pos_batch_norm": (True, UNCOVERED), "add_adapter": (True, UNCOVERED)},
    "unispeech/UniSpeechForCTC": _KEYS,
    "unispeech-sat/UniSpeechSatForCTC": {**_KEYS, "do_stable_layer_norm": (False, CHANGES)},
    "wavlm/WavLMForCTC": {**_KEYS, "num_attention_heads": (2, SHAPES), "max_bucket_distance": (8, CHANGES)},
    "data2vec-audio/Data2VecAudioForCTC": {
        **{key: row for key, row in _KEYS.items() if key != "do_stable_layer_norm"},
        "add_adapter": (True, SHAPES),
    },
    "sew/SEWForCTC": {key: row for key, row in _KEYS.items() if key != "do_stable_layer_norm"},
    "wav2vec2-bert/Wav2Vec2BertForCTC": {
        **{key: _KEYS[key] for key in ("hidden_act", "layer_norm_eps")},
        "num_attention_heads": (2, SHAPES),  # of the table of positions
        "position_embeddings_type": ("rotary", SHAPES),
        "left_max_position_embeddings + right_max_position_embeddings": ((3, 3), CHANGES),
        "add_adapter": (True, SHAPES),
    },
    "wav2vec2-bert-adapter/Wav2Vec2BertForCTC": {
        "adapter_act": ("gelu", CHANGES),
        "adapter_stride": (1, CHANGES),
        "adapter_kernel_size": (5, SHAPES),
    },
    "wav2vec2-bert-rotary/Wav2Vec2BertForCTC": {
        "num_attention_heads": (2, CHANGES),
        "position_embeddings_type": (None, CHANGES),
        "rotary_embedding_base": (10, CHANGES),
    },
    "wav2vec2-conformer/Wav2Vec2ConformerForCTC": {
        **{key: row for key, row in _KEYS.items() if key != "do_stable_layer_norm"},
        "num_attention_heads": (2, SHAPES),  # of what is added to queries
        "position_embeddings_type": (None, SHAPES),
    },
    "wav2vec2-conformer-adapter/Wav2Vec2ConformerModel": {"adapter_stride": (1, CHANGES)},
    "wav2vec2-conformer/Wav2Vec2ConformerForPreTraining": {"add_adapter": (True, UNCOVERED)},
    "wav2vec2-conformer-rotary/Wav2Vec2ConformerForAudioFrameClassification": {
        "num_attention_heads": (2, SHAPES),  # of the frequencies
        "position_embeddings_type": (None, SHAPES),
        "rotary_embedding_base": (10, KEEPS),  # the file has the frequencies, of which a mean would be none of either
    },
    "wav2vec2/Wav2Vec2ForSequenceClassification": {"use_weighted_layer_sum": (True, SHAPES)},
}
TIED: tuple[str, ...] = ()
