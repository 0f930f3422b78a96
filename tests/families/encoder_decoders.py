"""T5 and its like, BART, LED, mBART, PLBART, Whisper, Marian, Pegasus, M2M-100 and Blenderbot."""

import transformers as T

from families import CAUSAL_KEYS, CHANGES, KEEPS, UNCOVERED

_T5 = {
    "vocab_size": 40,
    "d_model": 24,
    "d_kv": 3,
    "d_ff": 20,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
    "decoder_start_token_id": 0,
    "initializer_factor": 0.5,  # scores are not scaled: large weights blow up the float32 rounding of the norms
}
_LONG_T5 = {**_T5, "local_radius": 3, "global_block_size": 4}
_SWITCH = {**_T5, "num_experts": 3, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}
_STACKS = {
    "vocab_size": 40,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 18,
    "max_position_embeddings": 20,
}
_LED = {
    **{key: value for key, value in _STACKS.items() if key != "max_position_embeddings"},
    "max_encoder_position_embeddings": 20,
    "max_decoder_position_embeddings": 18,
    "attention_window": 4,
}
_WHISPER = {
    **_STACKS,
    "num_mel_bins": 5,
    "max_source_positions": 8,
    "max_target_positions": 16,
    "classifier_proj_size": 6,
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3},
}
_TRANSLATION = {**_STACKS, "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1}
_TWO_VOCABULARIES = {**_TRANSLATION, "share_encoder_decoder_embeddings": False, "decoder_vocab_size": 30}
_UNTIED = {"tie_word_embeddings": False}
_BIGBIRD = {**_TRANSLATION, "attention_type": "original_full", "block_size": 2, "num_random_blocks": 1}
_T5_HEADS = (
    "ForConditionalGeneration",
    "EncoderModel",
    "Model",
    "ForQuestionAnswering",
    "ForSequenceClassification",
    "ForTokenClassification",
)
_LONG_T5_HEADS = ("ForConditionalGeneration", "EncoderModel", "Model")
_LED_HEADS = ("ForConditionalGeneration", "Model", "ForQuestionAnswering")
_PLBART_HEADS = ("ForConditionalGeneration", "Model", "ForSequenceClassification")
_BART_HEADS = ("ForConditionalGeneration", "Model", "ForQuestionAnswering", "ForSequenceClassification")
_GENERATION = ("ForConditionalGeneration", "Model")

FAMILIES = {
    "t5": ("T5", _T5_HEADS, T.T5Config, _T5),
    "t5-gated": (
        "T5",
        ("ForConditionalGeneration",),
        T.T5Config,
        {**_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "mt5": ("MT5", _T5_HEADS, T.MT5Config, _T5),
    "umt5": ("UMT5", _T5_HEADS, T.UMT5Config, _T5),
    "longt5": ("LongT5", _LONG_T5_HEADS, T.LongT5Config, _LONG_T5),
    "longt5-global-gated": (
        "LongT5",
        ("ForConditionalGeneration",),
        T.LongT5Config,
        {**_LONG_T5, "encoder_attention_type": "transient-global", "feed_forward_proj": "gated-gelu"},
    ),
    "switch": ("SwitchTransformers", _LONG_T5_HEADS, T.SwitchTransformersConfig, _SWITCH),
    "switch-biased": (
        "SwitchTransformers",
        ("ForConditionalGeneration",),
        T.SwitchTransformersConfig,
        {  # gates are only in the config: its code has none
            **{**_SWITCH, "router_bias": True, "is_gated_act": True},
            **{"num_sparse_encoder_layers": 0, "num_sparse_decoder_layers": 3},
        },
    ),
    "bart": ("Bart", _BART_HEADS, T.BartConfig, _STACKS),
    "led": ("LED", _LED_HEADS, T.LEDConfig, _LED),
    "mbart": ("MBart", _BART_HEADS, T.MBartConfig, {**_STACKS, "scale_embedding": True}),
    "plbart": ("PLBart", _PLBART_HEADS, T.PLBartConfig, _STACKS),
    "blenderbot-small": ("BlenderbotSmall", _GENERATION, T.BlenderbotSmallConfig, _STACKS),
    "blenderbot": ("Blenderbot", _GENERATION, T.BlenderbotConfig, _STACKS),
    "blenderbot-untied": ("Blenderbot", _GENERATION, T.BlenderbotConfig, {**_STACKS, **_UNTIED}),
    "whisper": (
        "Whisper",
        ("ForConditionalGeneration", "Model", "ForAudioClassification"),
        T.WhisperConfig,
        _WHISPER,
    ),
    "marian": ("Marian", ("MTModel", "Model"), T.MarianConfig, _TRANSLATION),
    "marian-two-vocabularies": ("Marian", ("MTModel", "Model"), T.MarianConfig, _TWO_VOCABULARIES),
    "marian-untied": ("Marian", ("MTModel",), T.MarianConfig, {**_TWO_VOCABULARIES, **_UNTIED}),
    "pegasus": ("Pegasus", _GENERATION, T.PegasusConfig, {**_TRANSLATION, "scale_embedding": True}),
    "pegasus-untied": ("Pegasus", _GENERATION, T.PegasusConfig, {**_TRANSLATION, **_UNTIED}),
    "bigbird-pegasus": ("BigBirdPegasus", _BART_HEADS, T.BigBirdPegasusConfig, _BIGBIRD),
    "bigbird-pegasus-sparse": (
        "BigBirdPegasus",
        ("ForConditionalGeneration",),
        T.BigBirdPegasusConfig,
        {**_BIGBIRD, "attention_type": "block_sparse", "use_bias": True, "max_position_embeddings": 32, **_UNTIED},
    ),
    "m2m100": ("M2M100", _GENERATION, T.M2M100Config, _TRANSLATION),
    "m2m100-untied": ("M2M100", _GENERATION, T.M2M100Config, {**_TRANSLATION, **_UNTIED}),
}
FLOAT32_PARTS: tuple[str, ...] = ("t5", "mt5", "umt5", "longt5", "switch", "led")  # their norms

_T5_KEYS = {
    "dense_act_fn": ("gelu", CHANGES),
    "layer_norm_epsilon": (0.1, CHANGES),
    "relative_attention_max_distance": (32, CHANGES),
    "scale_decoder_outputs": (False, CHANGES),
    **CAUSAL_KEYS,
}
_MT5_KEYS = {**_T5_KEYS, "scale_decoder_outputs": (False, KEEPS)}  # of T5; nothing reads it here
# UMT5 reads it since Transformers 5.24, whose config has it
_UMT5_KEYS = _T5_KEYS if hasattr(T.UMT5Config(), "scale_decoder_outputs") else _MT5_KEYS
_TOKEN_KEYS = {
    "eos_token_id": (7, CHANGES),
    "pad_token_id": (7, KEEPS),
    "decoder_start_token_id": (7, CHANGES),
}
_ANSWER_KEYS = {"decoder_start_token_id": (7, CHANGES)}
# the decoder reads what the encoder reads, its last token in front
_SHIFTED_KEYS = {**_TOKEN_KEYS, "pad_token_id": (7, CHANGES), "decoder_start_token_id": (7, KEEPS)}
_WHISPER_KEYS = {
    **CAUSAL_KEYS,
    "encoder_attention_heads": (2, CHANGES),
    "decoder_attention_heads": (2, CHANGES),
    "activation_function": ("relu", CHANGES),
}
_BART_KEYS = {**_WHISPER_KEYS, "tie_word_embeddings": (False, UNCOVERED)}
KEYS = {
    "t5/T5ForConditionalGeneration": _T5_KEYS,
    "t5/T5ForSequenceClassification": _TOKEN_KEYS,
    "t5/T5ForQuestionAnswering": _ANSWER_KEYS,
    "mt5/MT5ForConditionalGeneration": _MT5_KEYS,
    "mt5/MT5ForSequenceClassification": _TOKEN_KEYS,
    "umt5/UMT5ForConditionalGeneration": _UMT5_KEYS,
    "umt5/UMT5ForSequenceClassification": _TOKEN_KEYS,
    "longt5/LongT5ForConditionalGeneration": {**_T5_KEYS, "local_radius": (2, CHANGES)},
    "longt5-global-gated/LongT5ForConditionalGeneration": {"global_block_size": (3, CHANGES)},
    "switch/SwitchTransformersForConditionalGeneration": {
        **{key: _T5_KEYS[key] for key in ("layer_norm_epsilon", "relative_attention_max_distance", "is_causal")},
        "dense_act_fn": ("gelu", CHANGES),
        "expert_capacity": (1, CHANGES),
        "tie_word_embeddings": (False, UNCOVERED),
    },
    "bart/BartForConditionalGeneration": {**_BART_KEYS, "scale_embedding": (True, CHANGES)},
    "bart/BartForSequenceClassification": _TOKEN_KEYS,
    "bart/BartForQuestionAnswering": _ANSWER_KEYS,
    "led/LEDForConditionalGeneration": {**_BART_KEYS, "attention_window": (8, CHANGES)},
    "led/LEDForQuestionAnswering": {**_ANSWER_KEYS, "pad_token_id": (7, KEEPS)},
    "mbart/MBartForConditionalGeneration": {**_BART_KEYS, "scale_embedding": (False, CHANGES)},
    "mbart/MBartForSequenceClassification": _SHIFTED_KEYS,
    "mbart/MBartForQuestionAnswering": {"pad_token_id": (7, CHANGES)},
    "plbart/PLBartForConditionalGeneration": {**_BART_KEYS, "scale_embedding": (False, CHANGES)},
    "plbart/PLBartForSequenceClassification": _SHIFTED_KEYS,
    "blenderbot-small/BlenderbotSmallForConditionalGeneration": {**_BART_KEYS, "scale_embedding": (True, CHANGES)},
    "blenderbot/BlenderbotForConditionalGeneration": {**_WHISPER_KEYS, "scale_embedding": (True, CHANGES)},
    "whisper/WhisperForConditionalGeneration": _WHISPER_KEYS,
    "marian/MarianMTModel": {**_WHISPER_KEYS, "scale_embedding": (True, CHANGES)},
    "pegasus/PegasusForConditionalGeneration": {**_WHISPER_KEYS, "scale_embedding": (False, CHANGES)},
    "bigbird-pegasus/BigBirdPegasusForConditionalGeneration": {
        **_WHISPER_KEYS,
        "scale_embedding": (False, CHANGES),
        "attention_type": ("block_sparse", CHANGES),
    },
    "bigbird-pegasus/BigBirdPegasusForSequenceClassification": _TOKEN_KEYS,
    "bigbird-pegasus/BigBirdPegasusForQuestionAnswering": _ANSWER_KEYS,
    "bigbird-pegasus-sparse/BigBirdPegasusForConditionalGeneration": {
        "block_size": (3, CHANGES),
        "num_random_blocks": (2, CHANGES),
    },
    "m2m100/M2M100ForConditionalGeneration": {
        **_WHISPER_KEYS,
        "activation_function": ("gelu", CHANGES),
        "scale_embedding": (False, CHANGES),
        "pad_token_id": (7, CHANGES),
    },
    "whisper/WhisperForAudioClassification": {"use_weighted_layer_sum": (True, UNCOVERED)},
}
TIED = (
    "blenderbot/BlenderbotForConditionalGeneration",
    "whisper/WhisperForConditionalGeneration",
    "marian/MarianMTModel",
    "pegasus/PegasusForConditionalGeneration",
    "m2m100/M2M100ForConditionalGeneration",
    "bigbird-pegasus/BigBirdPegasusForConditionalGeneration",
)
