"""The verdict on models that are the same function, nearly so, and not; probes for every kind."""

import json
import re
from dataclasses import replace

import pytest
import torch
import transformers
from torch import Tensor

from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.checkpoints.probes import probe, row_weights
from cobasin.checkpoints.running import instantiate, outputs
from cobasin.errors import InputError, NotProbed
from cobasin.verification import Rerun, computed, judge, verify
from sampling import one_in
from tiny_models import checkpoint, config

SMALL = {"hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 20}

TEXT = {**SMALL, "vocab_size": 40, "max_position_embeddings": 32}
IMAGE = {**SMALL, "image_size": 8, "patch_size": 2, "num_channels": 1}
WIDER = {**IMAGE, "image_size": 10}
GPT2 = {"n_embd": 24, "n_head": 4, "n_layer": 2, "vocab_size": 40, "n_positions": 32}
GPT2 |= {"bos_token_id": 1, "eos_token_id": 1}
LLAMA = {**TEXT, "num_key_value_heads": 2}
T5 = {"d_model": 24, "d_ff": 20, "d_kv": 6, "num_heads": 4, "num_layers": 2, "vocab_size": 40}
BART = {"d_model": 24, "vocab_size": 40, "max_position_embeddings": 32}
TOWERS = {"text_config": {**TEXT, "eos_token_id": 2}, "vision_config": IMAGE}
CLIP_TEXT = {**TOWERS["text_config"], "projection_dim": 16}
WHISPER = {"vocab_size": 40, "d_model": 24, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 24}
WHISPER |= {"decoder_start_token_id": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BART |= {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads", "ffn_dim")}

# class, config class, settings, number of output values
KINDS = [
    ("BertModel", "BertConfig", TEXT, (28 + 19 + 2) * 24),
    ("BertForSequenceClassification", "BertConfig", TEXT, 4),
    ("BertForTokenClassification", "BertConfig", TEXT, (28 + 19) * 2),
    ("BertForQuestionAnswering", "BertConfig", TEXT, (28 + 19) * 2),
    ("BertForMultipleChoice", "BertConfig", TEXT, 2),
    ("RobertaForMaskedLM", "RobertaConfig", {**TEXT, "pad_token_id": 1}, (26 + 18) * 40),
    ("ViTModel", "ViTConfig", IMAGE, 2 * (17 + 1) * 24),
    ("ViTForImageClassification", "ViTConfig", IMAGE, 4),
    ("GPT2Model", "GPT2Config", GPT2, (28 + 19) * 24),
    ("GPT2LMHeadModel", "GPT2Config", GPT2, (28 + 19) * 40),
    ("GPT2ForSequenceClassification", "GPT2Config", GPT2, 2),
    ("GPT2ForSequenceClassification", "GPT2Config", {**GPT2, "pad_token_id": 0}, 4),
    ("LlamaModel", "LlamaConfig", LLAMA, (28 + 19) * 24),
    ("LlamaForCausalLM", "LlamaConfig", LLAMA, (28 + 19) * 40),
    ("LlamaForSequenceClassification", "LlamaConfig", LLAMA, 2),
    (
        "LlamaForCausalLM",
        "LlamaConfig",
        {**LLAMA, "eos_token_id": [2, 6], "pad_token_id": -1},
        (28 + 19) * 40,
    ),
    ("MixtralForCausalLM", "MixtralConfig", {**LLAMA, "num_local_experts": 4}, (28 + 19) * 40),
    ("T5ForConditionalGeneration", "T5Config", T5, 2 * 32 * 40),
    ("T5EncoderModel", "T5Config", T5, (32 + 22) * 24),
    ("BartForSequenceClassification", "BartConfig", BART, 6),
    ("BartForQuestionAnswering", "BartConfig", BART, (28 + 19) * 2),
    ("WhisperForConditionalGeneration", "WhisperConfig", WHISPER, 2 * 20 * 40),
    ("WhisperForAudioClassification", "WhisperConfig", WHISPER, 4),
    ("CLIPModel", "CLIPConfig", {**TOWERS, "projection_dim": 16}, 4),
    ("CLIPTextModel", "CLIPTextConfig", CLIP_TEXT, (28 + 19 + 2) * 24),
    ("CLIPTextModelWithProjection", "CLIPTextConfig", CLIP_TEXT, 2 * 16 + (28 + 19) * 24),
    (
        "CLIPVisionModelWithProjection",
        "CLIPVisionConfig",
        {**IMAGE, "projection_dim": 16},
        2 * 16 + 2 * 17 * 24,
    ),
    ("SiglipModel", "SiglipConfig", TOWERS, 4),
    ("DeiTForImageClassificationWithTeacher", "DeiTConfig", IMAGE, 3 * 4),
    ("Dinov2Model", "Dinov2Config", IMAGE, 2 * (17 + 1) * 24),
]


def make(architecture: str, config: str, settings: dict) -> Checkpoint:
    torch.manual_seed(0)
    return load(getattr(transformers, architecture)(getattr(transformers, config)(**settings)))


def bert(**overrides) -> Checkpoint:
    return make("BertForSequenceClassification", "BertConfig", {**TEXT, **overrides})


def changed(checkpoint: Checkpoint, dtype: torch.dtype = torch.float32, **tensors: Tensor) -> Checkpoint:
    """A copy in `dtype`; keywords name tensors with dots written as double underscores."""
    new = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    assert set(new) <= set(checkpoint)
    state = {name: new.get(name, tensor) for name, tensor in checkpoint.items()}
    state = {name: t.to(dtype) if t.is_floating_point() else t for name, t in state.items()}
    return of(checkpoint, state)


def of(checkpoint: Checkpoint, state: dict[str, Tensor]) -> Checkpoint:
    checkpoint.config.architectures = [checkpoint.architecture]
    return load(state, checkpoint.config)


def permuted(checkpoint: Checkpoint, dtype: torch.dtype = torch.float32, rows: int = 20) -> Checkpoint:
    """The neurons of the second feed-forward block in reverse order; only `rows` rows of its input follow."""
    layer = "bert__encoder__layer__1__"
    first, bias, second = (
        f"{layer}{n}" for n in ("intermediate__dense__weight", "intermediate__dense__bias", "output__dense__weight")
    )
    read = {key: checkpoint[key.replace("__", ".")] for key in (first, bias, second)}
    moved = read[first].flip(0)
    moved[rows:] = read[first][rows:]
    return changed(checkpoint, dtype, **{first: moved, bias: read[bias].flip(0), second: read[second].flip(1)})


@pytest.mark.parametrize(("architecture", "config", "settings", "values"), KINDS)
def test_every_kind_of_model(architecture, config, settings, values):
    checkpoint = make(architecture, config, settings)
    inputs = probe(checkpoint.config, architecture)
    assert all(torch.equal(value, probe(checkpoint.config, architecture)[key]) for key, value in inputs.items())
    assert outputs(instantiate(checkpoint, torch.float64), inputs).shape == (values,)
    verdict = verify(checkpoint, checkpoint)
    assert verdict.same is True
    assert verdict.relative_float64 == verdict.absolute_float64 == verdict.relative_native == 0
    assert verdict.noise_float64 is not None
    assert 0 < verdict.noise_float64 < 1e-6


@pytest.mark.parametrize("pad", [40, 4000, -1])
def test_a_padding_token_that_the_vocabulary_has_not(pad):
    """Many configs of GPT-2 name the id behind the last one."""
    model = make("GPT2LMHeadModel", "GPT2Config", GPT2)
    model.config.pad_token_id = pad
    assert verify(model, model).same is True


@pytest.mark.parametrize("runs", [0, 2])
def test_what_does_not_run_is_refused(monkeypatch, runs):
    """Neither of the two models, which run twice each: a traceback would end with the exit code of another function."""
    model, sound = bert(), iter([outputs] * runs)

    def fails(*given):
        for run in sound:
            return run(*given)
        raise IndexError("index out of range in self")

    monkeypatch.setattr("cobasin.verification.outputs", fails)
    with pytest.raises(NotProbed, match="does not run on made-up inputs in float64: index out of"):
        verify(model, model)


def test_clips_that_are_shorter_than_a_tubelet_do_not_run():
    sizes = {"image_size": 8, "num_frames": 4, "tubelet_size": [8, 4, 4], "hidden_size": 8, "num_hidden_layers": 1}
    model = make("VivitForVideoClassification", "VivitConfig", {**sizes, "num_attention_heads": 2})
    with pytest.raises(NotProbed, match="VivitForVideoClassification does not run on made-up inputs"):
        verify(model, model)


def test_what_no_probe_fits_is_told_from_bad_input():
    """A match of such a model is written all the same."""

    class Silent:
        dtype = torch.float64

        def __call__(self, **inputs):
            return {}

    with pytest.raises(NotProbed, match="SpeechT5ForSpeechToText: reads input_values; probes are text"):
        probe(transformers.BertConfig(), "SpeechT5ForSpeechToText")
    with pytest.raises(NotProbed, match="Silent returns none of logits"):
        outputs(Silent(), {})


def test_the_dtype_decides_how_much_rounding_is_forgiven():
    model = bert()
    exact, rounded = verify(model, permuted(model)), verify(*(changed(model, torch.bfloat16),) * 2)
    assert exact.same is True
    assert exact.relative_float64 < 1e-12
    assert rounded.noise_float64 > 1e4 * exact.noise_float64


def test_the_arithmetic_of_the_file_is_measured_where_it_is_another():
    model = bert()
    for dtype, like_float64 in ((torch.float32, False), (torch.float64, True)):
        stored = changed(model, dtype)
        verdict = verify(stored, permuted(stored, dtype, rows=19))
        assert verdict.relative_native == pytest.approx(verdict.relative_float64, rel=1e-3)
        assert (verdict.relative_native == verdict.relative_float64) is like_float64


def test_matched_in_float32_and_stored_in_bfloat16_is_the_same():
    model = bert()
    short = changed(model, torch.bfloat16)
    assert verify(short, permuted(short, torch.bfloat16)).same is True
    # The coarser dtype counts, whichever of the two has it.
    for a, b in ((model, permuted(model, torch.bfloat16)), (permuted(model, torch.bfloat16), model)):
        verdict = verify(a, b)
        assert verdict.same is True
        assert verdict.relative_float64 > 1e-4


def test_the_coarser_dtype_counts_whatever_files_call_a_tensor():
    """Older files of GPT-2, as on the hub, lack the beginning of the names that Transformers writes."""
    model = make("GPT2LMHeadModel", "GPT2Config", GPT2)
    short = changed(model, torch.bfloat16)
    old = of(short, {name.removeprefix("transformer."): tensor for name, tensor in short.items()})
    for a, b in ((model, old), (old, model)):
        verdict = verify(a, b)
        assert verdict.same is True
        assert verdict.relative_float64 > 1e-4


def test_one_row_left_in_place_is_different():
    model = bert()
    verdict = verify(model, permuted(model, rows=19))
    assert verdict.same is False
    assert verdict.relative_float64 > 1e-4
    json.dumps(verdict.to_dict(), allow_nan=False)


OPT = {"hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 2, "ffn_dim": 20, "word_embed_proj_dim": 24}


@pytest.mark.parametrize(
    ("architecture", "config", "settings", "name", "row"),
    [
        ("BertModel", "BertConfig", {**TEXT, "cls_token_id": 37}, "embeddings.word_embeddings.weight", 37),
        ("BertModel", "BertConfig", TEXT, "embeddings.token_type_embeddings.weight", 1),
        ("RobertaModel", "RobertaConfig", TEXT, "embeddings.word_embeddings.weight", 2),
        ("OPTModel", "OPTConfig", {**OPT, "max_position_embeddings": 32}, "decoder.embed_tokens.weight", 2),
        ("GPT2Model", "GPT2Config", GPT2, "wte.weight", 1),
        ("T5Model", "T5Config", {**T5, "decoder_start_token_id": 39}, "shared.weight", 39),
    ],
)
def test_what_texts_have_is_probed(architecture, config, settings, name, row):
    """Special tokens, in a vocabulary of which few rows are seen, and second segments."""
    model = make(architecture, config, {**settings, "vocab_size": 5000})
    other = with_row(model, name, row)
    assert verify(model, other).same is False
    assert not same_on_probes(model, other)


def with_row(model: Checkpoint, name: str, row: int) -> Checkpoint:
    """A copy with another row of a table."""
    moved = model[name].clone()
    moved[row] = torch.randn(24, generator=torch.Generator().manual_seed(0))
    return of(model, dict(model) | {name: moved})


def same_on_probes(*models: Checkpoint) -> bool:
    """Whether they compute the same, bit by bit, of the probes as they are."""
    inputs = probe(models[0].config, models[0].architecture)
    one, other = (outputs(instantiate(model, torch.float64), inputs) for model in models)
    return one.equal(other)


@pytest.mark.parametrize(
    ("architecture", "config", "settings", "name"),
    [
        ("BertModel", "BertConfig", TEXT, "embeddings.word_embeddings.weight"),
        ("GPT2ForSequenceClassification", "GPT2Config", GPT2, "transformer.wte.weight"),
        ("LlamaForCausalLM", "LlamaConfig", {**LLAMA, "tie_word_embeddings": False}, "model.embed_tokens.weight"),
        ("T5Model", "T5Config", T5, "shared.weight"),
        ("BartForSequenceClassification", "BartConfig", BART, "model.shared.weight"),
        ("CLIPModel", "CLIPConfig", {"projection_dim": 16}, "text_model.embeddings.token_embedding.weight"),
    ],
)
def test_a_row_of_the_vocabulary_that_no_probe_reads_is_seen(architecture, config, settings, name):
    size = {"vocab_size": 30_000}
    towers = {"text_config": {**TOWERS["text_config"], **size}, "vision_config": IMAGE}
    model = make(architecture, config, settings | (towers if config == "CLIPConfig" else size))
    inputs = probe(model.config, model.architecture)
    read = torch.cat([value.flatten() for key, value in inputs.items() if key.endswith("input_ids")])
    order = row_weights(30_000).abs().argsort().tolist()  # from the row on that counts the least
    row = next(row for row in order if row not in read)
    other = with_row(model, name, row)
    assert same_on_probes(model, other)
    assert verify(model, other).same is False


MOE = {**LLAMA, "moe_intermediate_size": 8}


@pytest.mark.parametrize(
    ("architecture", "config", "settings"),
    one_in(
        3,
        [
            ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", {**MOE, "num_experts": 48, "num_experts_per_tok": 1}),
            ("MixtralForCausalLM", "MixtralConfig", {**LLAMA, "num_local_experts": 48, "num_experts_per_tok": 1}),
            ("GptOssForCausalLM", "GptOssConfig", {**LLAMA, "num_local_experts": 48, "num_experts_per_tok": 1}),
            (
                "DeepseekV3ForCausalLM",
                "DeepseekV3Config",
                {
                    **MOE,
                    **{"num_key_value_heads": 4, "q_lora_rank": None, "kv_lora_rank": 8, "qk_rope_head_dim": 4},
                    **{"qk_nope_head_dim": 4, "v_head_dim": 4, "first_k_dense_replace": 0, "n_routed_experts": 96},
                    **{"num_experts_per_tok": 2, "n_group": 8, "topk_group": 1},
                },
            ),
        ],
    ),
)
def test_an_expert_that_no_token_is_sent_to_is_seen(architecture, config, settings):
    a = make(architecture, config, settings)
    name = next(name for name in a if re.search(r"experts\.(0\.)?(down_proj|w2)", name))
    stacked = a[name].ndim == 3
    unseen = []
    for i in (0, 24):
        one = re.sub(r"experts\.0", f"experts.{i}", name)
        tensor = a[one].clone()
        (tensor[i] if stacked else tensor).neg_()
        other = of(a, dict(a) | {one: tensor})
        assert verify(a, other).same is False
        unseen.append(same_on_probes(a, other))
    assert any(unseen)  # control: by the tokens alone


def test_a_vector_that_moves_from_one_table_to_another_changes_nothing():
    model = make("BertForMaskedLM", "BertConfig", {**TEXT, "tie_word_embeddings": False})
    words, places = (f"bert.embeddings.{name}_embeddings.weight" for name in ("word", "position"))
    vector = torch.randn(24, generator=torch.Generator().manual_seed(0))
    assert verify(model, of(model, dict(model) | {words: model[words] + vector})).same is False
    moved = {words: model[words] + vector, places: model[places] - vector}
    assert verify(model, of(model, dict(model) | moved)).same is True


def test_other_kinds_of_cells_of_tables_are_other_inputs():
    sizes = [[3, 7, 9], [3, 7, 8]]
    ends = [
        load(transformers.TapasForMaskedLM(config("tapas/TapasForMaskedLM", type_vocab_sizes=one))) for one in sizes
    ]
    for a, b in (ends, ends[::-1]):
        assert "type_vocab_sizes [3, 7, 8]" in verify(a, b).reason


@pytest.mark.parametrize(
    ("case", "key"),
    [
        ("xlm-languages-untied-relu/XLMWithLMHeadModel", "n_langs"),
        ("roc-bert/RoCBertForMaskedLM", "shape_vocab_size"),
        ("roc-bert/RoCBertForMaskedLM", "pronunciation_vocab_size"),
        ("luke/LukeForMaskedLM", "entity_vocab_size"),
        ("markuplm/MarkupLMModel", "max_depth"),
        ("markuplm/MarkupLMModel", "max_xpath_subs_unit_embeddings"),
    ],
)
def test_other_numbers_of_what_is_read_beside_ids_are_other_inputs(case, key):
    cls, kinds = getattr(transformers, case.split("/")[1]), getattr(config(case), key)
    ends = [load(cls(config(case, **{key: count}))) for count in (kinds, kinds - 1)]
    for a, b in (ends, ends[::-1]):
        assert f"{key} {kinds - 1}" in verify(a, b).reason


@pytest.mark.parametrize("kinds", [(1, 2), (2, 1)])
def test_other_numbers_of_segments_are_other_inputs(kinds):
    verdict = verify(*(bert(type_vocab_size=count) for count in kinds))
    assert verdict.same is False
    assert "take different inputs" in verdict.reason


def test_between_rounding_and_another_function_it_cannot_tell():
    model = bert()
    nudged = changed(model, classifier__weight=model["classifier.weight"] * (1 + 2e-5))
    verdict = verify(model, nudged)
    assert verdict.same is None
    assert "too far for rounding" in verdict.reason


def test_rounding_that_drowns_the_outputs_cannot_tell():
    model = bert()
    # The pooled state is 1 throughout, and the head's large weights cancel: what is left is the head's bias.
    cancelling = torch.tensor([1000.0, -1000.0] * 12).expand(2, 24)
    pooled = torch.full((24,), 30.0)
    a, b = (
        changed(
            model,
            torch.bfloat16,
            bert__pooler__dense__bias=pooled,
            classifier__weight=cancelling,
            classifier__bias=torch.tensor(bias),
        )
        for bias in ([1.0, 2.0], [2.0, 1.0])
    )
    verdict = verify(a, b)
    assert verdict.same is None
    assert verdict.relative_float64 == pytest.approx(0.5)
    assert "too much to tell" in verdict.reason
    assert verify(a, a).same is True


def test_rounding_that_overflows_cannot_tell_either():
    same, _, reason = judge(1e-3, None)
    assert same is None
    assert "not finite, too much to tell" in reason
    assert judge(1e-9, None)[0] is True


@pytest.mark.parametrize("tolerance", [-1e-9, float("nan"), float("inf")])
def test_a_tolerance_that_is_none(tolerance):
    with pytest.raises(InputError, match="expected a finite number that is not negative"):
        verify(bert(), bert(), tolerance)


def test_tolerance_is_strict():
    model = bert()
    nudged = changed(model, classifier__weight=model["classifier.weight"] * (1 + 2e-5))
    assert verify(model, nudged, tolerance=1e-3).same is True
    verdict = verify(model, nudged, tolerance=1e-6)
    assert verdict.same is False
    assert (verdict.tolerance, verdict.noise_float64) == (1e-6, None)


def test_other_inputs_or_outputs_are_different_functions():
    model = bert()
    assert "different inputs" in verify(model, bert(vocab_size=50)).reason
    assert "numbers of values" in verify(model, bert(num_labels=3)).reason
    assert "numbers of values" in verify(model, make("BertModel", "BertConfig", TEXT)).reason
    assert verify(model, bert(num_labels=3)).same is False
    towers = [make("SiglipModel", "SiglipConfig", {**TOWERS, **other}) for other in ({}, {"vision_config": WIDER})]
    assert "image_size (8, 8)" in verify(*towers).reason


def test_a_longer_position_table_is_no_other_function():
    short, long = bert(max_position_embeddings=16), bert(max_position_embeddings=64)
    name = "bert.embeddings.position_embeddings.weight"
    state = {key: short[key] for key in short} | {name: torch.cat([short[name], long[name][16:]])}
    same = of(long, state)
    assert verify(short, same).same is True
    assert verify(same, short).same is True


def test_settings_that_no_probe_meets_are_named():
    short, long = (make("MistralForCausalLM", "MistralConfig", LLAMA | {"sliding_window": n}) for n in (40, 50))
    verdict = verify(short, long)
    assert verdict.same is True
    assert "on inputs that are not probed they may differ: sliding_window is 40 in" in verdict.reason
    assert "may differ" not in verify(short, short).reason


def test_the_first_of_several_ends_is_where_a_text_ends():
    config = transformers.LlamaConfig(**LLAMA, eos_token_id=[7, 9], pad_token_id=0)
    assert probe(config, "LlamaForSequenceClassification")["input_ids"][0, -1] == 7


def test_outputs_that_are_all_alike_say_nothing():
    model = bert()
    flat = changed(model, classifier__weight=torch.zeros(2, 24), classifier__bias=torch.ones(2))
    verdict = verify(flat, flat)
    assert verdict.same is None
    assert verdict.reason.endswith("are all 1")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_tensor_that_is_not_finite_is_refused_wherever_it_is(value):
    """Also in the position table beyond all probes, where the outputs are the same."""
    model, name = bert(max_position_embeddings=64), "bert.embeddings.position_embeddings.weight"
    state = {key: model[key].clone() for key in model}
    state[name][60] = value
    with pytest.raises(InputError, match=f"{name} has NaN or infinite values"):
        verify(model, of(model, state))


def test_outputs_that_are_not_finite_cannot_tell():
    model = bert()
    state = {key: model[key].double() for key in model}
    state["bert.encoder.layer.0.output.dense.weight"] *= 1e300  # what a norm squares next
    verdict = verify(model, of(model, state))
    assert verdict.same is None
    assert "not finite" in verdict.reason


def test_a_model_that_puts_out_nothing_cannot_tell():
    model = bert(num_labels=0)
    verdict = verify(model, model)
    assert verdict.same is None
    assert verdict.reason.endswith("puts out no values, so there is nothing to compare")


def test_constant_outputs_cannot_tell():
    model = bert()
    silent = changed(model, classifier__weight=torch.zeros_like(model["classifier.weight"]))
    assert verify(silent, silent).same is None


def test_names_without_the_prefix_and_integer_buffers():
    model = make("GPT2LMHeadModel", "GPT2Config", GPT2)
    state = {name.removeprefix("transformer."): tensor for name, tensor in model.items()}
    state["h.0.attn.bias"] = torch.ones(1, 1, 32, 32, dtype=torch.uint8)
    bare = of(model, state)
    assert "lm_head.weight" not in bare
    assert verify(model, bare, tolerance=0.0).same is True
    as_numbers = of(model, state | {"h.0.attn.bias": torch.ones(1, 1, 32, 32)})
    assert verify(as_numbers, bare).same is True
    assert verify(bare, as_numbers).same is True
    encoder = bert()
    positions = {"bert.embeddings.position_ids": torch.arange(32)[None]}
    assert verify(encoder, of(encoder, dict(encoder) | positions), tolerance=0.0).same is True


def test_a_model_on_disk(tmp_path):
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA, tie_word_embeddings=True))
    model.save_pretrained(tmp_path)
    assert verify(tmp_path, model, tolerance=0.0).same is True


def test_heads_that_the_class_does_not_have_are_left_unread():
    whole = make("BertForPreTraining", "BertConfig", TEXT)
    config = transformers.BertConfig(**TEXT, architectures=["BertForMaskedLM"])
    model = instantiate(load(dict(whole), config), torch.float32)
    assert torch.equal(model.bert.embeddings.word_embeddings.weight, whole["bert.embeddings.word_embeddings.weight"])


def test_a_model_owns_its_tensors():
    checkpoint = bert()
    before = checkpoint["classifier.weight"].clone()
    model = instantiate(checkpoint, torch.float32)
    assert not model.training
    torch.nn.init.zeros_(model.classifier.weight)
    assert torch.equal(checkpoint["classifier.weight"], before)


def test_tensors_that_do_not_fill_the_class():
    model = bert()
    lacking = {name: model[name] for name in model if name != "classifier.bias"}
    with pytest.raises(InputError, match=r"lacks: classifier\.bias"):
        verify(model, of(model, lacking))
    wide = dict(model) | {"classifier.bias": torch.zeros(7)}
    with pytest.raises(InputError, match=r"classifier\.bias of shape \[2\], the checkpoint has \[7\]"):
        verify(model, of(model, wide))
    deep = dict(bert(num_hidden_layers=3))
    with pytest.raises(InputError, match=r"no place .* bert\.encoder\.layer\.2\.\S+ and 15 more"):
        verify(model, of(model, deep))
    for dtype in (torch.int8, torch.bool, torch.complex64):
        short = dict(model) | {"classifier.weight": model["classifier.weight"].to(dtype)}
        with pytest.raises(InputError, match=rf"computes in floats, .* classifier\.weight in {dtype}"):
            verify(model, of(model, short))
    gain = "bert.embeddings.LayerNorm"
    old = {name.replace(f"{gain}.weight", f"{gain}.gamma"): tensor for name, tensor in model.items()}
    with pytest.raises(InputError, match=r"computes in floats, .*gamma in torch\.int8"):
        verify(model, of(model, old | {f"{gain}.gamma": old[f"{gain}.gamma"].to(torch.int8)}))


@pytest.mark.parametrize("setting", [{"hidden_size": -24}, {"num_attention_heads": 0}])
def test_a_config_of_impossible_sizes(setting):
    model = bert()
    model.config.update(setting)
    with pytest.raises(InputError, match="cannot be built by transformers from this config: "):
        verify(model, model)


@pytest.mark.parametrize("theta", ["10000", None])
def test_a_config_with_a_text_in_place_of_a_number(theta):
    model = make("LlamaForCausalLM", "LlamaConfig", LLAMA)
    model.config.rope_parameters["rope_theta"] = theta
    with pytest.raises(InputError, match="cannot be built by transformers from this config: unsupported operand"):
        verify(model, model)


def test_an_expert_that_is_missing():
    model = make("MixtralForCausalLM", "MixtralConfig", {**LLAMA, "num_local_experts": 4})
    lacking = {name: model[name] for name in model if ".1.block_sparse_moe.experts.3.w1." not in name}
    assert len(lacking) == len(model) - 1
    with pytest.raises(InputError, match="joining tensors"):
        verify(model, of(model, lacking))
    name = next(name for name in model if ".1.block_sparse_moe.experts.3.w1." in name)
    with pytest.raises(InputError, match=r"computes in floats, .*w1\.weight in torch\.int8"):
        verify(model, of(model, dict(model) | {name: model[name].to(torch.int8)}))


def test_classes_and_inputs_that_are_not_known():
    config = transformers.BertConfig(**TEXT, architectures=["NoSuchModel"])
    with pytest.raises(InputError, match=r"no model class NoSuchModel; name one that it has under architectures"):
        verify(*(load(dict(bert()), config),) * 2)
    with pytest.raises(InputError, match="VideoLlavaForConditionalGeneration"):
        probe(transformers.VideoLlavaConfig(), "VideoLlavaForConditionalGeneration")
    with pytest.raises(InputError, match="input_values"):
        probe(config, "SpeechT5ForSpeechToText")


def test_eight_bits_are_compared_in_float64_only():
    model = make("LlamaForCausalLM", "LlamaConfig", LLAMA)
    small = changed(model, torch.float8_e4m3fn)
    verdict = verify(small, small)
    assert verdict.same is True
    assert verdict.relative_native is None


@pytest.mark.parametrize(
    "case",
    one_in(
        2,
        [
            "clip/CLIPModel",
            "bert/BertForMaskedLM",
            "gemma4-pictures/Gemma4ForConditionalGeneration",
            "mixtral/MixtralForCausalLM",
        ],
        1,
    ),
)
def test_a_model_that_is_built_once_runs_as_if_built_anew(case):
    """Whether a tensor is the model's own or, as an expert of a file, a part of one; and nothing is left of a run."""
    own, other = checkpoint(case, 1), checkpoint(case, 2)
    inputs = probe(own.config, own.architecture)
    reference, rerun, others = computed(own, inputs), Rerun(own, inputs), 0
    for name in own:
        one = replace(own, read=lambda asked, name=name: (other if asked == name else own)[asked])
        found = rerun(one, [name])
        assert torch.equal(found, computed(one, inputs)), name
        others += not torch.equal(found, reference)
    assert others > 0.8 * len(own)
    assert torch.equal(rerun(own, ()), reference)


@pytest.mark.parametrize("case", ["bert/BertForMaskedLM", "roberta/RobertaForMaskedLM"])
def test_the_bias_of_a_tied_head_is_changed_in_place(case):
    """Transformers makes a copy of it as it ties the head; with that every change would build a model."""
    own = checkpoint(case)
    rerun = Rerun(own, probe(own.config, own.architecture))
    assert rerun._held == {*own}
