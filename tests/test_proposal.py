"""Drafts of declarations from names and shapes: right where cobasin knows better, honest where they guess."""

import re
import shutil
import types

import pytest
import torch
import transformers as T

import cobasin
from cobasin import architectures
from cobasin.architectures import declare, load_file
from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.fit import problems
from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from cobasin.proposal import propose
from cobasin.proposal.checking import check_declaration
from cobasin.symmetry.gauges import KeyBias
from command_line import refused, run
from families import SMALL
from own_architectures import EXAMPLE, VARIANTS, hyperclovax
from tiny_models import CASES, checkpoint, model

pytestmark = pytest.mark.usefixtures("registry")

# Of these the draft is the declaration: types, groups, norms, free biases.
AGREEING = (
    *("gpt2", "llama-", "llama3", "mistral/", "qwen2/", "bert", "roberta", "xlm-roberta/", "gptneox/", "gptj", "opt/"),
    *("falcon-7b", "falcon-40b", "phi/", "stablelm/", "starcoder2/", "mixtral/", "arcee"),
)
OTHERS = ("Model", "ForQuestionAnswering", "BertForPreTraining")  # a draft takes any two outputs for labels
OTHERS += ("ForNextSentencePrediction", "ForMultipleChoice")  # and one for none
OTHERS += ("BertGenerationDecoder",)  # whose name does not end in a head, as that of a bare model
TINY = {**SMALL, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def spec_of(source, given, monkeypatch):
    """The spec that a draft gives, also of an architecture that cobasin declares."""
    monkeypatch.setattr(architectures, "_DECLARED", {})
    exec(compile(source, "draft.py", "exec"), types.ModuleType("draft").__dict__)
    return declare(given.config, given.architecture, given.headers)


def meaning(layout):
    """What every entry of a tensor stands for, whatever the type looks like."""
    numbers = torch.arange(torch.Size(layout.shape).numel()).reshape(layout.shape)
    return {tuple(axis.space for axis in block.axes): block.view(numbers).tolist() for block in layout.blocks}


def reading(spec):
    """The norms of a declaration, whatever the order of their readers."""
    return {(norm.weight, frozenset(norm.readers), norm.bias, norm.centred, norm.stream) for norm in spec.norms}


@pytest.mark.parametrize("case", [case for case in CASES if case.startswith(AGREEING) and not case.endswith(OTHERS)])
def test_a_draft_of_a_known_family_is_its_declaration(case, monkeypatch):
    given = checkpoint(case)
    source = propose(given)
    assert f"{given.architecture} is declared already, by cobasin.architectures." in source
    declared, draft = Typed.of(given).spec, spec_of(source, given, monkeypatch)
    assert problems(draft, given.headers) == []
    assert draft.entries.keys() == declared.entries.keys()
    for name, entry in declared.entries.items():
        assert meaning(draft.entries[name].layout) == meaning(entry.layout), name
    for name in {key[0] for key in declared.sites}:
        groups = [(s.size, s.group, s.folded, s.over) for s in (spec.spaces[name] for spec in (draft, declared))]
        assert groups[0] == groups[1], name
    assert reading(draft) == reading(declared)
    assert set(draft.biases) == set(declared.biases)
    assert draft.tied == declared.tied


LATENT = {"num_key_value_heads": 4, "q_lora_rank": 10, "kv_lora_rank": 8, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4}
LATENT |= {"v_head_dim": 6}

UNKNOWN = {
    "hyperclovax": hyperclovax,
    "openai-gpt": lambda: T.OpenAIGPTLMHeadModel(
        T.OpenAIGPTConfig(n_embd=24, n_head=4, n_layer=2, n_positions=32, vocab_size=40)
    ),
    "mpt": lambda: T.MptForCausalLM(T.MptConfig(d_model=24, n_heads=4, n_layers=2, vocab_size=40, max_seq_len=32)),
    "megatron-bert": lambda: T.MegatronBertForMaskedLM(T.MegatronBertConfig(**TINY)),
    "minicpm3": lambda: T.MiniCPM3ForCausalLM(T.MiniCPM3Config(**TINY, **LATENT)),
    "layoutlm": lambda: T.LayoutLMForSequenceClassification(T.LayoutLMConfig(**TINY, max_2d_position_embeddings=64)),
    "esm": lambda: T.EsmForMaskedLM(T.EsmConfig(**TINY, mask_token_id=3, position_embedding_type="rotary")),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_drafts_of_undeclared_architectures_hold(name, tmp_path, monkeypatch):
    monkeypatch.setattr(architectures, "_DECLARED", {})  # some are declared meanwhile
    made = UNKNOWN[name]().eval()
    (tmp_path / "draft.py").write_text(propose(made))
    load_file(tmp_path / "draft.py")
    assert check_declaration(made).sound


def test_a_wrong_guess_is_found_and_was_doubted(tmp_path, monkeypatch):
    """Cohere's rotary embedding is interleaved, which no shape says."""
    monkeypatch.setattr(architectures, "_DECLARED", {})
    made = T.CohereForCausalLM(T.CohereConfig(**TINY, num_key_value_heads=2)).eval()
    source = propose(made)
    assert "the rotary embedding is taken to lay a head out as (pair freq); the other way is (freq pair)" in one_line(
        source
    )
    (tmp_path / "draft.py").write_text(source)
    load_file(tmp_path / "draft.py")
    found = check_declaration(made)
    assert found.repairs == ["every tensor: freq pair instead of pair freq"]
    (tmp_path / "draft.py").write_text(re.sub("pair('?) freq", r"freq pair\1", source))
    load_file(tmp_path / "draft.py")
    assert check_declaration(made).sound


def one_line(text):
    return " ".join(text.split())


def test_from_a_folder_to_a_match(tmp_path):
    """Propose, save, check, match: an architecture that nobody has declared."""
    for seed, name in enumerate("ab"):
        hyperclovax(seed).save_pretrained(tmp_path / name)
    drafted = run("inspect", tmp_path / "a", "--propose")
    assert drafted.code == 0
    assert not drafted.reads
    assert drafted.out.startswith('"""UNVERIFIED draft of a declaration of HyperCLOVAXForCausalLM')
    assert "inspect MODEL --spec THIS_FILE --check" in drafted.out
    report = run("inspect", tmp_path / "a", "--propose", "--json").json
    assert report == {"model": str(tmp_path / "a"), "verified": False, "declaration": drafted.out}
    draft = tmp_path / "draft.py"
    draft.write_text(drafted.out)
    assert run("inspect", tmp_path / "a", "--spec", draft, "--check").code == 0
    assert run("match", tmp_path / "b", tmp_path / "a", "--out", tmp_path / "c", "--spec", draft).code == 0


def test_a_draft_is_never_used_by_itself(tmp_path):
    hyperclovax().save_pretrained(tmp_path / "a")
    run("inspect", tmp_path / "a", "--propose")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    line = refused(tmp_path, "match", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "c")
    assert "'HyperCLOVAXForCausalLM' is not declared" in line


@pytest.mark.parametrize("options", VARIANTS)
def test_the_draft_of_the_example_is_the_example(options, monkeypatch):
    given = cobasin.load(hyperclovax(**options))
    load_file(EXAMPLE)
    declared = Typed.of(given).spec
    draft = spec_of(propose(given), given, monkeypatch)
    assert {n: s for n, s in draft.spaces.items()} == dict(declared.spaces)
    assert draft.templates == declared.templates
    assert reading(draft) == reading(declared)
    layouts = {
        "attention_bias",
        "mlp_bias",
        "use_post_norm",
    }  # the tensors tell these
    assert set(draft.function_keys) == set(declared.function_keys) | layouts | {"pad_token_id"}


@pytest.mark.parametrize("case", ["t5/T5ForConditionalGeneration", "bart/BartForConditionalGeneration"])
def test_two_stacks_are_refused(case, tmp_path):
    model(case).save_pretrained(tmp_path / "a")
    line = refused(tmp_path, "inspect", tmp_path / "a", "--propose")
    assert "only decoders and encoders with one stack of layers" in line
    assert "decoder." in line


def test_layers_with_settings_of_their_own_are_refused():
    layers = {"num_hidden_layers": 1, "layer_types": ["full_attention"], "hidden_size_per_layer_input": 0}
    given = cobasin.load(T.Gemma4ForCausalLM(T.Gemma4TextConfig(**TINY | layers, num_key_value_heads=2)))
    assert given.config.is_heterogeneous
    with pytest.raises(InputError, match="cannot be drafted: per_layer_config"):
        propose(given)


@pytest.mark.parametrize("case", ["qwen3/Qwen3ForCausalLM", "phi-qk-norm/PhiForCausalLM", "bloom/BloomForCausalLM"])
def test_what_is_not_known_to_be_free_is_left_fixed(case, monkeypatch):
    given = checkpoint(case)
    declared, draft = Typed.of(given).spec, spec_of(propose(given), given, monkeypatch)
    free = [{key[0] for key in spec.sites} for spec in (draft, declared)]
    assert free[0] <= free[1] | {"resid"}
    assert not any(isinstance(bias, KeyBias) for bias in draft.biases) or "bloom" in case
    monkeypatch.setattr("cobasin.checkpoints.typed.declare", lambda *_: draft)
    assert check_declaration(given).plain < 5e-6


def test_layers_that_lack_a_tensor():
    made = hyperclovax()
    state = {name: t for name, t in made.state_dict().items() if name != "model.layers.1.self_attn.q_proj.bias"}
    source = propose(cobasin.load(state, made.config.to_dict() | {"architectures": ["HyperCLOVAXForCausalLM"]}))
    assert r'r"layers\.(1)\.self_attn\.q_proj\.bias"' in source
    assert "not every layer has the same tensors" in source


@pytest.mark.parametrize("name", ['model.x": "1", "y', "a\nb", 'x"""y', "it's"])
def test_names_that_would_be_code_are_refused(name, tmp_path):
    made = hyperclovax(0)
    made.config.architectures = ["HyperCLOVAXForCausalLM"]
    with pytest.raises(InputError, match="no draft is made of"):
        propose(load({**made.state_dict(), name: torch.ones(2)}, made.config))
    made.config.update({name: 1})
    with pytest.raises(InputError, match="no draft is made of"):
        propose(made)
