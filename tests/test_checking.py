"""What `cobasin inspect --check` says of a wrong declaration: the space, the tensor, the change that mends it."""

from dataclasses import replace

import pytest
import torch
import transformers

from cobasin.architectures import declare, load_file
from cobasin.checkpoints import typed
from cobasin.checkpoints.checkpoint import load
from cobasin.errors import InputError
from cobasin.proposal import checking
from cobasin.proposal.checking import check_declaration
from cobasin.symmetry.groups import Orthogonal
from cobasin.verification import FLOAT32_PARTS
from command_line import refused, run
from own_architectures import EXAMPLE, changed, hyperclovax
from tiny_models import checkpoint, config, model

pytestmark = pytest.mark.usefixtures("registry")


def check(tmp_path, *replacements):
    load_file(changed(tmp_path, *replacements))
    return check_declaration(hyperclovax())


def broken(found):
    return {name for name, change in found.pieces.items() if change > 5e-6}


@pytest.mark.parametrize(
    ("old", "new", "spaces", "repair"),
    [
        ("(kv pair' freq)", "(kv pair freq)", {"pair"}, "layers.{layer}.self_attn.k_proj: pair' instead of pair"),
        ('_proj", "ffn~"', '_proj", "ffn"', {"ffn"}, "gate_proj: ffn~ instead of ffn"),
        ("Rotation2(scaled=True)", "Orthogonal(scaled=True)", {"pair"}, "space pair: the group Rotation2("),
        ("(kv rep vo')", "(rep kv vo')", {"kv", "rep", "vo"}, "every tensor: kv rep instead of rep kv"),
        ('"(kv rep pair freq)"', '"(rep kv pair freq)"', {"kv", "rep", "pair"}, "kv rep instead of rep kv"),
        (
            '"vocab resid",\n            **',
            '"vocab width",\n            **',
            {"resid"},
            "embed_tokens: resid instead of width",
        ),
    ],
)
def test_the_space_and_the_change_that_mends_it(tmp_path, old, new, spaces, repair):
    found = check(tmp_path, (old, new), ('"vocab": Space', '"width": Space(config.hidden_size), "vocab": Space'))
    assert not found.sound
    assert broken(found) == spaces
    assert any(repair in line for line in found.repairs), found.repairs


def test_a_layout_of_the_rotary_embedding(tmp_path):
    found = check(tmp_path, ("pair freq)", "freq pair)"), ("pair' freq)", "freq pair')"))
    assert broken(found) == {"pair"}
    assert found.repairs == ["every tensor: pair freq instead of freq pair"]


def test_two_types_exchanged(tmp_path):
    load_file(changed(tmp_path))
    name = "layers.{layer}.self_attn.%s_proj"
    old = [f'linear(f"{{ATTENTION}}.{n}_proj", "{t}"' for n, t in (("k", "(kv pair' freq)"), ("v", "(kv vo)"))]
    new = [f'linear(f"{{ATTENTION}}.{n}_proj", "{t}"' for n, t in (("k", "(kv vo)"), ("v", "(kv pair' freq)"))]
    found = check(tmp_path, *zip(old, new, strict=True), ("        if biased\n", "        if False\n"))
    assert broken(found) == {"pair", "vo"}
    assert f"{name % 'k'} and {name % 'v'}: each other's types" in found.repairs


def changed_norm(spec, place, **changes):
    return {"norms": (*spec.norms[:place], replace(spec.norms[place], **changes), *spec.norms[place + 1 :])}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (lambda spec: changed_norm(spec, 0, readers=spec.norms[0].readers[:2]), "layers.*.input_layernorm.weight"),
        (lambda spec: changed_norm(spec, 1, bias=None), "layers.*.post_attention_layernorm.bias"),
        (lambda spec: {"norms": spec.norms[:2]}, "norm.weight"),
        (lambda spec: {"spaces": spec.spaces | {"resid": replace(spec.spaces["resid"], folded=Orthogonal())}}, "resid"),
    ],
)
def test_what_cannot_be_folded_is_named(monkeypatch, changes, named):
    def wrong(*arguments):
        spec = declare(*arguments)
        return replace(spec, **changes(spec))

    monkeypatch.setattr(typed, "declare", wrong)
    found = check_declaration(checkpoint("starcoder2/Starcoder2ForCausalLM"))
    assert found.plain < 1e-9
    assert found.canonical > 1e-3
    assert named in broken(found)
    assert ("space resid: folded, the group Orthogonal(scaled=False, fix_ones=True)" in found.repairs) == (
        named == "resid"
    )


def test_the_entry_that_makes_no_difference(monkeypatch):
    """Without the key biases in the declaration, they are found: they do not matter."""
    declare = typed.declare
    monkeypatch.setattr(typed, "declare", lambda *arguments: replace(declare(*arguments), biases=()))
    assert check_declaration(checkpoint("bert/BertForMaskedLM")).idle == ["encoder.layer.0.attention.self.key.bias"]
    found = check_declaration(checkpoint("gpt2/GPT2LMHeadModel"))
    assert found.idle == ['h.0.attn.c_attn.bias, block 1 of "(head qk + head qk\' + head vo)"']
    assert not found.sound


def test_a_tensor_that_makes_a_small_difference():
    """Factors like those of published Falcon-H1 leave little of the lengths of steps, but far more than rounding."""
    made = config("falcon-h1/FalconH1ForCausalLM")
    factors = {
        "embedding_multiplier": 30.0,
        "ssm_multipliers": [0.35, 0.25, 0.35, 0.5, 0.35],
        "ssm_out_multiplier": 0.24,
    }
    made.update({**factors, "mamba_rms_norm": False})
    torch.manual_seed(0)
    assert check_declaration(transformers.FalconH1ForCausalLM(made)).sound


def test_float32_models_are_checked_in_float64():
    assert check_declaration(model("gpt2/GPT2LMHeadModel").to(torch.bfloat16)).plain < 1e-9


def test_a_missing_tensor_is_named_at_once(tmp_path):
    with pytest.raises(InputError, match=r"unexpected tensor model\.norm\.weight"):
        check(
            tmp_path,
            (', *behind, "norm")', ", *behind)"),
            ('Norm("norm.weight", ("lm_head.weight",), centred=False),', ""),
        )


def test_on_the_command_line(tmp_path):
    hyperclovax().save_pretrained(tmp_path / "model")
    finished = run("inspect", tmp_path / "model", "--spec", EXAMPLE, "--check")
    assert finished.code == 0
    assert "the declaration of HyperCLOVAXForCausalLM holds" in finished.out
    assert run("inspect", tmp_path / "model", "--spec", EXAMPLE, "--check", "--json").json["sound"]


def test_a_wrong_declaration_on_the_command_line(tmp_path):
    hyperclovax().save_pretrained(tmp_path / "model")
    spec = changed(tmp_path, ("(kv pair' freq)", "(kv pair freq)"))
    finished = run("inspect", tmp_path / "model", "--spec", spec, "--check")
    assert finished.code == 1
    assert "the declaration of HyperCLOVAXForCausalLM is wrong" in finished.out
    assert "layers.{layer}.self_attn.k_proj: pair' instead of pair" in finished.out
    report = run("inspect", tmp_path / "model", "--spec", spec, "--check", "--json").json
    assert not report["sound"]
    assert report["pieces"]["pair"] > 1e-3


@pytest.mark.parametrize("options", [("--check", "--propose"), ("--list", "--check")])
def test_one_question_at_a_time(tmp_path, options):
    model = () if "--list" in options else (tmp_path,)
    assert "one at a time" in refused(tmp_path, "inspect", *model, *options)


def test_a_model_without_outputs_that_could_be_compared(monkeypatch):
    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12}
    config = transformers.BertConfig(**sizes, vocab_size=20, max_position_embeddings=16, num_labels=0)
    with pytest.raises(InputError, match="has no outputs in float64"):
        check_declaration(load(transformers.BertForSequenceClassification(config)))
    monkeypatch.setattr(checking, "run", lambda model: torch.full((2, 3), torch.nan))
    with pytest.raises(
        InputError, match="outputs that are not finite in float64, so its declaration cannot be checked"
    ):
        check_declaration(checkpoint("clip/CLIPModel"))


def test_a_tensor_without_axes_is_checked_too():
    assert check_declaration(checkpoint("clip/CLIPModel")).sound  # its logit_scale


def test_a_file_with_all_copies_of_a_tied_tensor():
    """Transformers may read any of them."""
    made = model("pegasus/PegasusForConditionalGeneration")
    config = made.config.to_dict() | {"architectures": [type(made).__name__]}
    assert check_declaration(load(dict(made.state_dict()), config)).sound


def test_gains_that_a_bare_model_leaves_alone_and_stores_minus_one():
    assert check_declaration(checkpoint("gemma3/Gemma3TextModel")).sound


@pytest.mark.parametrize("family", ["deberta-v2-shared", "deberta-v2-separate"])
def test_relative_positions_that_are_read_as_keys_alone(family):
    """The offset of their norm adds the same to all scores of a query."""
    torch.manual_seed(0)
    made = transformers.DebertaV2ForMaskedLM(config(f"{family}/DebertaV2ForMaskedLM", pos_att_type=["c2p"]))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    assert check_declaration(made).sound


def test_a_model_that_amplifies_the_float32_of_its_parts(monkeypatch):
    sharp = model("llama-gqa/LlamaForCausalLM")
    with torch.no_grad():
        for name, parameter in sharp.named_parameters():
            if name.endswith(("q_proj.weight", "up_proj.weight")):
                parameter.mul_(30)
    found = check_declaration(sharp)
    assert found.limit > FLOAT32_PARTS
    assert found.sound
    monkeypatch.setattr(checking, "BLURRED", found.limit / 2)
    with pytest.raises(InputError, match="its declaration cannot be checked so; take another seed"):
        check_declaration(sharp)
