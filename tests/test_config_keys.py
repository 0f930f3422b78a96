"""Equal shapes, another function: every config key that a declaration names is refused where two models differ in it.

`KEYS` and `TIED` of the modules of `families` say what Transformers makes of every key.
"""

import shutil
from functools import cache
from itertools import cycle
from tempfile import TemporaryDirectory

import pytest
import torch

from cobasin.architectures import declare
from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.pairs import check_pair
from cobasin.checkpoints.probes import probe
from cobasin.checkpoints.running import model_class
from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from cobasin.finding.applying import transform
from cobasin.finding.match import match, match_all
from cobasin.merging.merge import merge
from cobasin.verification import CERTAINLY_DIFFERENT, FLOAT32_PARTS, change, computed, relative_change, verify
from command_line import duplicate, edit_json, near, refused, refused_by_both, run
from families import FAILS, KEEPS, LINEAR_ROPE, LINEAR_ROPES, SHAPES, UNCOVERED
from sampling import one_in
from tiny_models import CASES, MODULES, config, model

ROWS = [(case, keys, *row) for module in MODULES for case, table in module.KEYS.items() for keys, row in table.items()]
TIED = [case for module in MODULES for case in module.TIED]
# keys of config.json that Transformers keeps under another name, or that change together with another
TODAY = {
    "rope_theta": "rope_parameters",
    "rope_scaling": "rope_parameters",
    "head_dim": "num_attention_heads",
    "attention_head_dim": "num_attention_heads",
    "use_sliding_window": "sliding_window",
    "image_token_index": "image_token_id",
    "video_token_index": "video_token_id",
    "audio_token_index": "audio_token_id",
    "num_experts_per_token": "num_experts_per_tok",
    "num_expert_group": "n_group",
    "moe_renormalize": "norm_topk_prob",
}


NO_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.0}


@cache
def saved(case):
    """The folder of a model, for good: to write it takes as long as to refuse it."""
    folder = TemporaryDirectory()
    model(case, 0).save_pretrained(folder.name)
    return folder


def models(folder, case, keys, value):
    """A model, and a copy of its folder with another config."""
    shutil.copytree(saved(case).name, folder / "anchor")
    keys = keys.split(" + ")
    values = value if len(keys) > 1 else (value,)
    return duplicate(folder / "anchor", "source", **dict(zip(keys, values, strict=True))), folder / "anchor"


def running(folder):
    """The model as Transformers loads it."""
    made = load(folder)
    return model_class(made.architecture).from_pretrained(folder)


@cache
def declared_keys(case):
    """The model type of a case, and the keys that its declaration names."""
    with torch.device("meta"):  # the names of its tensors are all that is asked for
        made = model_class(case.split("/")[1])(config(case))
    return made.config.model_type, declare(made.config, type(made).__name__, made.state_dict()).function_keys


def said(case, keys):
    """What a message calls these keys."""
    _, declared = declared_keys(case)

    def today(key):
        *within, last = key.split(".")
        return ".".join([*within, TODAY.get(last, last)])

    return {key if key in declared else today(key) for key in keys.split(" + ")}


def same(a, b):
    """Whether two folders compute the same function, to rounding; another one is another beyond doubt."""
    found = verify(load(a), load(b), FLOAT32_PARTS)
    change = found.relative_float64
    assert change is None or not FLOAT32_PARTS < change <= CERTAINLY_DIFFERENT
    return found.same


@cache
def outputs(case):
    """What the model of a case puts out, and for what."""
    made = load(saved(case).name)
    inputs = probe(made.config, made.architecture)
    return inputs, computed(made, inputs)


def as_saved(case, folder):
    """Whether a copy with another config computes the same function, to rounding; another one is another beyond doubt.

    As `same` finds it, but the model itself runs once for all copies.
    """
    inputs, wanted = outputs(case)
    found = computed(load(folder), inputs)
    if found.shape != wanted.shape:
        return False
    change = relative_change(wanted, found)
    assert change <= FLOAT32_PARTS or change > CERTAINLY_DIFFERENT  # and a number
    return change <= FLOAT32_PARTS


# by one verb or the other, and with its effect shown by Transformers or without, in turn, also in every 19th row
HOW = ((match_all, True), (match_all, False), (merge, False), (merge, True))


@pytest.mark.parametrize(
    ("case", "keys", "value", "effect", "verb", "runs"),
    one_in(
        19,
        [(*row, *how) for row, how in zip(ROWS, cycle(HOW), strict=False)],
        ids=[f"{row[0]}-{row[1]}" for row in ROWS],
    ),
)
def test_a_key_that_differs_is_refused(tmp_path, case, keys, value, effect, verb, runs):
    """Both verbs ask `check_pair`."""
    source, anchor = models(tmp_path, case, keys, value)
    with pytest.raises(InputError) as refusal:
        verb([source, anchor])
    line = str(refusal.value)
    if effect == SHAPES:
        assert f"{source} does not fit" in line
        return
    if effect == UNCOVERED:
        assert f"{source}: {keys}" in line
        assert "is not covered" in line
        return
    assert all(text in line for text in (str(source), str(anchor), *(f"{key} is " for key in said(case, keys)))), line
    if not runs:
        return
    if effect == FAILS:
        with pytest.raises(InputError, match=r"cannot be built by transformers|does not run on made-up inputs"):
            as_saved(case, source)
    else:  # of the token that is classified each needs inputs of its own
        found = same(anchor, source) if keys == "eos_token_id" else as_saved(case, source)
        assert found is (effect == KEEPS)


@pytest.mark.parametrize(
    ("case", "key"),
    [("gemma2/Gemma2ForCausalLM", "hidden_act"), ("gemma/GemmaForCausalLM", "hidden_activation")],
)
def test_a_key_that_nothing_reads(tmp_path, case, key):
    """Gemma 2 runs hidden_activation and Gemma 1 hidden_act, whatever a file says of the other beside it."""
    source, anchor = models(tmp_path, case, key, "relu")
    assert run("match", source, anchor, "--out", tmp_path / "out").code == 0
    assert same(anchor, source)


def test_one_window_for_all_layers(tmp_path):
    """The file has one for each, as a model of Transformers writes it that was given one for all."""
    ends = models(tmp_path, "led/LEDForConditionalGeneration", "attention_window", 4)
    check_pair(*(Typed.of(load(end)) for end in ends))


def ends_of_head(folder, case):
    """A model whose head is tied, and one near it whose head is a tensor of its own."""
    tied = model(case, 0)
    tied.save_pretrained(folder / "tied")
    near(tied, tie_word_embeddings=False).save_pretrained(folder / "untied")
    return folder / "tied", folder / "untied"


@pytest.mark.usefixtures("one_round")
@pytest.mark.parametrize(("case", "first"), one_in(3, list(zip(TIED[1::4], cycle([0, 0, 1, 1]), strict=False))))
def test_tied_against_untied_heads(tmp_path, case, first):
    """Either is brought to the other, in turn."""
    source, anchor = ends_of_head(tmp_path, case)[:: 1 - 2 * first]
    source, anchor = load(source), load(anchor)
    assert change(source, transform(match(source, anchor), source)) < FLOAT32_PARTS


@pytest.mark.parametrize("case", one_in(3, TIED[::4]))
def test_tied_and_untied_heads_averaged(tmp_path, case):
    ends = ends_of_head(tmp_path, case)
    middle = sum(0.5 * running(end).get_output_embeddings().weight for end in ends)
    assert run("merge", *ends, "--match", "none", "--out", tmp_path / "merged").code == 0
    merged = running(tmp_path / "merged")
    assert not merged.config.tie_word_embeddings
    assert torch.allclose(merged.get_output_embeddings().weight, middle, atol=1e-6)


def test_every_key_of_every_declaration_is_in_the_table():
    covered = {}
    for case, keys, *_ in [*ROWS, *((case, "tie_word_embeddings") for case in TIED)]:
        covered.setdefault(declared_keys(case)[0], set()).update(said(case, keys))
    for case in CASES:
        model_type, keys = declared_keys(case)
        assert set(keys) <= covered[model_type], case


@pytest.mark.parametrize(
    ("rope", "factor", "reads"),
    [("dynamic", 4.0, True), ("yarn", None, True), ("yarn", 4.0, False), ("longrope", None, True)],
)
def test_rotary_scaling_that_reads_the_length(tmp_path, rope, factor, reads):
    source, anchor = models(tmp_path, "llama-gqa/LlamaForCausalLM", "max_position_embeddings", 64)
    assert run("match", source, anchor, "--out", tmp_path / "matched").code == 0
    scaling = {"rope_type": rope, "rope_theta": 10000.0, "factor": factor}
    if rope != "dynamic":
        scaling["original_max_position_embeddings"] = 16
    if rope == "longrope":
        scaling |= {"short_factor": [1.0] * 3, "long_factor": [2.0] * 3}
    source, anchor = (duplicate(path, f"scaled-{path.name}", rope_parameters=scaling) for path in (source, anchor))
    if reads:
        refused_by_both(source, anchor, "max_position_embeddings is 64 in")
    else:
        assert run("match", source, anchor, "--out", tmp_path / "scaled").code == 0
        assert same(anchor, source)


@pytest.mark.parametrize(
    "case",
    [
        "bert/BertForTokenClassification",
        "distilbert/DistilBertForSequenceClassification",
        "albert/AlbertForSequenceClassification",
        "deberta/DebertaForSequenceClassification",
        "modernbert/ModernBertForTokenClassification",
        "gptneox/GPTNeoXForSequenceClassification",
        "llama-gqa/LlamaForTokenClassification",
        "whisper/WhisperForAudioClassification",
    ],
)
def test_a_tie_without_tied_tensors_is_no_difference(tmp_path, case):
    source, anchor = models(tmp_path, case, "tie_word_embeddings", not model(case).config.tie_word_embeddings)
    assert run("match", source, anchor, "--out", tmp_path / "matched").code == 0
    assert same(anchor, source)


@pytest.mark.parametrize("case", ["llama-gqa/LlamaForCausalLM", "gpt2/GPT2LMHeadModel"])
def test_a_decoder_is_causal_where_its_config_does_not_say(tmp_path, case):
    source, anchor = models(tmp_path, case, "is_causal", True)
    assert run("match", source, anchor, "--out", tmp_path / "matched").code == 0


@pytest.mark.parametrize(
    ("case", "key", "value"),
    [
        ("bert/BertForMaskedLM", "position_embedding_type", "absolute"),
        ("electra/ElectraForPreTraining", "position_embedding_type", "absolute"),
        ("distilbert/DistilBertForMaskedLM", "is_decoder", False),
        ("albert/AlbertForMaskedLM", "add_cross_attention", False),
        ("deberta-v2-separate/DebertaV2ForMaskedLM", "share_att_key", False),
        ("vit/ViTForImageClassification", "patch_size", [4, 4]),
    ],
)
def test_a_key_that_only_one_config_has_with_what_the_class_takes_anyway(tmp_path, case, key, value):
    """Older versions of Transformers wrote keys that newer ones do not read."""
    original = model(case)
    folders = [tmp_path / str(i) for i in range(2)]
    for i, folder in enumerate(folders):
        near(original, 0.02 * i).save_pretrained(folder)
        edit_json(folder / "config.json", lambda config: key == "patch_size" or config.pop(key, None))
    said = duplicate(folders[0], "said", **{key: value})
    assert same(said, folders[0])
    for ends in ((said, folders[1]), (folders[1], said)):
        assert run("match", *ends, "--out", tmp_path / f"out-{ends[0].name}").code == 0


def test_the_mask_of_an_encoder_counts_where_it_decodes(tmp_path):
    source, anchor = models(tmp_path, "bert/BertForMaskedLM", "is_causal", False)
    assert run("match", source, anchor, "--out", tmp_path / "matched").code == 0
    ends = (duplicate(path, f"decoder-{path.name}", is_decoder=True) for path in (source, anchor))
    refused_by_both(*ends, "is_causal is False in")


@pytest.mark.parametrize("value", [True, None])
@pytest.mark.parametrize("case", ["bert/BertForMaskedLM", "bart/BartModel", "modernbert/ModernBertModel"])
def test_a_mask_that_only_one_config_speaks_of(tmp_path, case, value):
    """Attention takes it from any config that has it, and each part of a model its own where there is none."""
    source, anchor = models(tmp_path, case, "is_causal", value)
    refused_by_both(source, anchor, f"is_causal is {value} in")


def test_a_rotary_embedding_wider_than_a_head_is_refused(tmp_path):
    source, anchor = models(tmp_path, "gptneox/GPTNeoXForCausalLM", "head_dim", 16)
    refused_by_both(source, anchor, "head_dim beyond the size of a head is not covered")


@pytest.mark.parametrize(
    ("case", "key", "value"),
    [
        ("distilbert/DistilBertForMaskedLM", "sinusoidal_pos_embds", True),
        ("gpt2/GPT2LMHeadModel", "reorder_and_upcast_attn", True),
        ("bert/BertForMaskedLM", "hidden_act", "gelu_python"),
        ("bert/BertForMaskedLM", "attention_head_size", 64),
        ("t5/T5ForConditionalGeneration", "return_dict", False),
        ("clip/CLIPModel", "return_dict", False),
    ],
)
def test_a_key_that_changes_nothing_is_no_difference(tmp_path, case, key, value):
    source, anchor = models(tmp_path, case, key, value)
    assert run("match", source, anchor, "--out", tmp_path / "out").code == 0
    assert same(anchor, source)


@pytest.mark.parametrize("sizes", [{"num_hidden_layers": None}, {"hidden_size": 2}])
def test_sizes_that_no_model_has_are_refused_in_one_line(tmp_path, sizes):
    folder = tmp_path / "model"
    model("phi/PhiForCausalLM").save_pretrained(folder)
    refused_by_both(duplicate(folder, "other", **sizes), folder, "other")


@pytest.mark.parametrize(
    ("case", "key", "size"),
    [
        ("bert/BertForMaskedLM", "hidden_size", -24),
        ("gpt2/GPT2LMHeadModel", "n_head", 0),
        ("clip/CLIPModel", "vision_config.num_attention_heads", -4),
        ("deepseek3/DeepseekV3ForCausalLM", "qk_rope_head_dim", 0),
    ],
)
def test_sizes_below_one_are_named(tmp_path, case, key, size):
    source, anchor = models(tmp_path, case, key, size)
    refused_by_both(source, anchor, f"{source}: the config has {key} {size}; expected 1 or more")


def test_the_end_of_a_text_as_old_configs_of_clip_have_it(tmp_path):
    source, anchor = models(tmp_path, "clip-text/CLIPTextModel", "eos_token_id", 2)
    assert run("match", source, anchor, "--out", tmp_path / "matched").code == 0
    assert same(anchor, source)
    assert same(source, anchor)
    refused_by_both(source, duplicate(anchor, "other", eos_token_id=7), "eos_token_id is 2 in")


@pytest.mark.parametrize(
    ("case", "rope", "old"),
    [
        (
            "llama-gqa/LlamaForCausalLM",
            LINEAR_ROPE,
            {"rope_parameters": None, "rope_theta": 10000, "rope_scaling": {"type": "linear", "factor": 4}},
        ),
        (
            "gemma3/Gemma3ForCausalLM",
            LINEAR_ROPES,
            {"rope_parameters": {kind: rope | {"type": "linear"} for kind, rope in LINEAR_ROPES.items()}},
        ),
    ],
)
def test_one_setting_written_in_two_ways_is_accepted(tmp_path, case, rope, old):
    source, anchor = models(tmp_path, case, "rope_parameters", rope)
    assert run("match", source, duplicate(anchor, "old", **old), "--out", tmp_path / "out").code == 0


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


@pytest.mark.parametrize(
    ("case", "key", "values"),
    [
        ("gemma/GemmaForCausalLM", "use_bidirectional_attention", (None, False)),
        ("vit/ViTForImageClassification", "image_size", (8, [8, 8])),
        ("deberta-v2-separate/DebertaV2ForMaskedLM", "pos_att_type", (["c2p", "p2c"], ["p2c", "c2p"])),
        ("llama-gqa/LlamaForCausalLM", "hidden_act", ("silu", "swish")),
    ],
)
def test_one_value_in_two_spellings(tmp_path, case, key, values):
    made = model(case, 0).float()
    if key == "image_size":
        values = (made.config.image_size, [made.config.image_size] * 2)
    made.save_pretrained(tmp_path / "model")
    one, other = (duplicate(tmp_path / "model", f"{i}", **{key: value}) for i, value in enumerate(values))
    assert run("match", one, other, "--out", tmp_path / "out").code == 0
    assert same(one, other)


@pytest.mark.parametrize(
    ("case", "keys", "text"),
    [
        ("stablelm-12b/StableLmForCausalLM", {"rope_parameters": NO_ROPE}, "qk_layernorm = true without a rotary"),
        (
            "llama-gqa/LlamaForCausalLM",
            {"per_layer_config": {"0": {"rms_norm_eps": 0.1}}},
            "no declaration has layers with settings of their own",
        ),
        (
            "gemma4/Gemma4ForCausalLM",
            {"per_layer_config": {"1": {"head_dim": 12, "num_key_value_heads": 1, "intermediate_size": 16}}},
            "no declaration has layers with settings of their own (intermediate_size)",
        ),
        ("vit/ViTForImageClassification", {"image_size": [8]}, "the config has a size of [8]; expected one number"),
    ],
)
def test_configs_that_no_declaration_covers(tmp_path, case, keys, text):
    source, anchor = models(tmp_path, case, "pad_token_id", 3)
    assert text in refused(tmp_path, "match", duplicate(source, "odd", **keys), anchor, "--out", tmp_path / "out")
