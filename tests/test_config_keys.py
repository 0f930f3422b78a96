"""Equal shapes, another function: every config key that a declaration names is refused where two models differ in it.

The table says of each change what Transformers makes of it:
CHANGES: the tensors stay valid and the function becomes another;
KEEPS: the tensors stay valid and the function stays (the key is read elsewhere, or only in training);
SHAPES: the tensors are no longer those of the config, so that this model alone is refused, by its headers;
FAILS: Transformers refuses to build the model, but its headers do not tell.
"""

import pytest

from cobasin.architectures import declare
from cobasin.checkpoint import load
from cobasin.errors import InputError
from cobasin.verification import verify
from command_line import duplicate, near, refused, refused_by_both, run
from tiny_models import CASES, model

CHANGES, KEEPS, SHAPES, FAILS = "changes", "keeps", "shapes", "fails"

BERT = {
    "num_attention_heads": (2, CHANGES),
    "hidden_act": ("relu", CHANGES),
    "layer_norm_eps": (0.1, CHANGES),
    "position_embedding_type": ("relative_key", KEEPS),  # Transformers 5 has absolute positions only
    "is_decoder": (True, CHANGES),
    "add_cross_attention": (True, FAILS),  # goes with is_decoder, and then needs tensors
}
DEBERTA = {
    "num_attention_heads": (2, CHANGES),
    "hidden_act": ("relu", CHANGES),
    "layer_norm_eps": (0.1, CHANGES),
    "relative_attention": (False, SHAPES),
    "position_biased_input": (True, SHAPES),
    "is_decoder": (True, KEEPS),
    "add_cross_attention": (True, KEEPS),
}
GPT2 = {
    "n_head": (2, CHANGES),
    "activation_function": ("relu", CHANGES),
    "layer_norm_epsilon": (0.1, CHANGES),
    "scale_attn_weights": (False, CHANGES),
    "scale_attn_by_inverse_layer_idx": (True, CHANGES),
    "reorder_and_upcast_attn": (True, KEEPS),  # the same sums in another order
}
# case -> key -> (changed value, effect); "a + b" names keys that must change together to keep the shapes
TABLE = {
    "bert/BertForMaskedLM": BERT,
    "roberta/RobertaForMaskedLM": BERT | {"pad_token_id": (3, CHANGES)},
    "distilbert/DistilBertForMaskedLM": {
        "n_heads": (2, CHANGES),
        "activation": ("relu", CHANGES),
        "sinusoidal_pos_embds": (True, KEEPS),  # fills the position table before it is read from the file
        "is_decoder": (True, KEEPS),
        "add_cross_attention": (True, KEEPS),
    },
    "deberta/DebertaForSequenceClassification": DEBERTA
    | {
        "position_biased_input": (False, SHAPES),
        "pos_att_type": (["c2p"], SHAPES),
        "max_relative_positions": (4, SHAPES),
        "pooler_hidden_act": ("relu", CHANGES),
        "tie_word_embeddings": (False, KEEPS),
    },
    "deberta-v2-shared/DebertaV2ForSequenceClassification": DEBERTA
    | {
        "pos_att_type": (["c2p"], CHANGES),
        "max_relative_positions": (64, CHANGES),
        "position_buckets": (4, SHAPES),
        "share_att_key": (False, SHAPES),
        "norm_rel_ebd": ("none", SHAPES),
        "conv_act": ("relu", KEEPS),  # there is no convolution
        "pooler_hidden_act": ("relu", CHANGES),
        "tie_word_embeddings": (False, KEEPS),
    },
    "deberta-v2-separate/DebertaV2ForMaskedLM": {
        "conv_act": ("relu", CHANGES),
        "pooler_hidden_act": ("relu", KEEPS),  # there is no pooler
    },
    "vit/ViTForImageClassification": {
        "num_attention_heads": (2, CHANGES),
        "hidden_act": ("relu", CHANGES),
        "layer_norm_eps": (0.1, CHANGES),
        "image_size": (16, SHAPES),
        "patch_size": (2, SHAPES),
        "pooler_act": ("relu", KEEPS),  # there is no pooler
    },
    "vit/ViTModel": {"pooler_act": ("relu", CHANGES)},
    "gpt2/GPT2LMHeadModel": GPT2,
    "gpt2/GPT2ForSequenceClassification": {
        "pad_token_id": (7, CHANGES),
        "tie_word_embeddings": (False, KEEPS),
    },
    "llama-gqa/LlamaForCausalLM": {
        # alone, the number of key-value heads would change the shapes
        "num_attention_heads + num_key_value_heads + head_dim": ((2, 1, 12), CHANGES),
        "hidden_act": ("gelu", CHANGES),
        "rms_norm_eps": (0.1, CHANGES),
        "rope_theta + rope_parameters": ((500.0, None), CHANGES),
        "rope_parameters": ({"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}, CHANGES),
        "rope_scaling + rope_parameters": (({"type": "linear", "factor": 4.0}, None), CHANGES),
        "num_key_value_heads": (4, SHAPES),
    },
    "llama-gqa/LlamaForSequenceClassification": {
        "pad_token_id": (7, CHANGES),
        "tie_word_embeddings": (True, KEEPS),
    },
}
# keys that only old files have: the config that Transformers makes of them says it under the name of today
TODAY = {"rope_theta": "rope_parameters", "rope_scaling": "rope_parameters", "head_dim": "num_attention_heads"}
TIED = {  # the head, untied, is a tensor of its own
    "bert/BertForMaskedLM",
    "roberta/RobertaForMaskedLM",
    "distilbert/DistilBertForMaskedLM",
    "deberta/DebertaForMaskedLM",
    "deberta-v2-shared/DebertaV2ForMaskedLM",
    "gpt2/GPT2LMHeadModel",
    "llama-mqa-tied/LlamaForCausalLM",
}
ROWS = [(case, keys, *row) for case, table in TABLE.items() for keys, row in table.items()]


def models(folder, case, keys, value):
    """A model, and a copy of its folder with another config."""
    model(case, 0).float().save_pretrained(folder / "anchor")
    keys = keys.split(" + ")
    values = value if len(keys) > 1 else (value,)
    return duplicate(folder / "anchor", "source", **dict(zip(keys, values, strict=True))), folder / "anchor"


@pytest.mark.parametrize(("case", "keys", "value", "effect"), ROWS, ids=[f"{row[0]}-{row[1]}" for row in ROWS])
def test_a_key_that_differs_is_refused(tmp_path, case, keys, value, effect):
    source, anchor = models(tmp_path, case, keys, value)
    named = {TODAY.get(key, key) for key in keys.split(" + ")}
    if effect == SHAPES:
        refused_by_both(source, anchor, f"{source} does not fit")
        return
    refused_by_both(source, anchor, str(source), str(anchor), *(f"{key} is " for key in named))
    if effect == FAILS:
        with pytest.raises(InputError, match="cannot be built by transformers"):
            verify(load(anchor), load(source))
    else:
        assert verify(load(anchor), load(source)).same is (effect == KEEPS)


@pytest.mark.parametrize("case", sorted(TIED))
def test_tied_against_untied_heads(tmp_path, case):
    tied = model(case, 0).float()
    tied.save_pretrained(tmp_path / "tied")
    near(tied, tie_word_embeddings=False).save_pretrained(tmp_path / "untied")
    for source, anchor in (("tied", "untied"), ("untied", "tied")):
        texts = [f"{value} in {tmp_path / name}" for name, value in (("tied", True), ("untied", False))]
        refused_by_both(tmp_path / source, tmp_path / anchor, "tie_word_embeddings is", *texts)


def test_every_key_of_every_declaration_is_in_the_table():
    covered = {}
    for case, keys, *_ in [*ROWS, *((case, "tie_word_embeddings") for case in TIED)]:
        named = {TODAY.get(key, key) for key in keys.split(" + ")}
        covered.setdefault(model(case).config.model_type, set()).update(named)
    for case in CASES:
        made = model(case)
        keys = declare(made.config, type(made).__name__, made.state_dict()).function_keys
        assert set(keys) <= covered[made.config.model_type], case


def test_rotary_scaling_that_reads_the_length(tmp_path):
    source, anchor = models(tmp_path, "llama-gqa/LlamaForCausalLM", "max_position_embeddings", 64)
    assert run("match", source, anchor, "--out", tmp_path / "matched").code == 0
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    source, anchor = (duplicate(path, f"dynamic-{path.name}", rope_parameters=rope) for path in (source, anchor))
    refused_by_both(source, anchor, "max_position_embeddings is 64 in")


def test_one_setting_written_in_two_ways_is_accepted(tmp_path):
    rope = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    source, anchor = models(tmp_path, "llama-gqa/LlamaForCausalLM", "rope_parameters", rope)
    old = duplicate(anchor, "old", rope_parameters=None, rope_theta=10000, rope_scaling={"type": "linear", "factor": 4})
    assert run("match", source, old, "--out", tmp_path / "out").code == 0


def test_keys_that_leave_the_function_alone_are_accepted(tmp_path):
    harmless = {"attention_probs_dropout_prob": 0.3, "initializer_range": 0.5, "use_cache": False, "pad_token_id": 3}
    model("bert/BertForMaskedLM").float().save_pretrained(tmp_path / "anchor")
    source = duplicate(tmp_path / "anchor", "source", **harmless)
    assert run("match", source, tmp_path / "anchor", "--out", tmp_path / "out").code == 0
    assert run("merge", source, tmp_path / "anchor", "--out", tmp_path / "merged").code == 0


def test_all_keys_are_named_in_one_message(tmp_path):
    keys = "hidden_act + num_attention_heads + layer_norm_eps"
    source, anchor = models(tmp_path, "bert/BertForMaskedLM", keys, ("relu", 2, 0.1))
    line = refused(tmp_path, "match", source, anchor, "--out", tmp_path / "out")
    for text in ("num_attention_heads is 2 in", "hidden_act is 'relu' in", "layer_norm_eps is 0.1 in"):
        assert text in line
