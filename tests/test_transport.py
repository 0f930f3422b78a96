"""A fine-tune, or an adapter of it, carried from its base to another one."""

import json
from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from adapter_folders import VIT, change, function, lora
from adapter_folders import base as base_folder
from cobasin.adapters.folder import ADAPTER_FILE
from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.typed import Typed
from cobasin.checkpoints.writer import save
from cobasin.errors import InputError
from cobasin.finding.match import match
from cobasin.finding.transport import _origin, transport, transport_adapter
from cobasin.proposal.checking import change as moved_by
from cobasin.proposal.checking import run as outputs
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import form_of
from cobasin.symmetry.state import Lazy
from cobasin.verification import verify
from command_line import near, refused, run
from sampling import one_in
from tiny_models import ONE_A_DECLARATION, checkpoint, model, tolerance

GPT2, LLAMA = "gpt2/GPT2LMHeadModel", "llama-gqa/LlamaForCausalLM"


def tuned(base, seed=0, size=0.1):
    """A model near another one, all of whose tensors were trained."""
    typed = Typed.of(base)

    def trained(name):
        generator = torch.Generator().manual_seed(seed + len(name))
        return typed[name] + size * torch.randn(typed[name].shape, generator=generator, dtype=torch.float64)

    own = {name: trained(name) for name in typed if name not in typed.spec.tied}
    return typed.derived(Lazy(typed, lambda name: own[typed.spec.tied.get(name, name)]))


def scrambled(base, seed=5):
    """The same function in other weights."""
    typed = Typed.of(base)
    return typed.derived(Element.sample(form_of(typed.spec, folded=not typed.spec.unties), seed).apply(typed))


@pytest.mark.parametrize("case", one_in(6, ONE_A_DECLARATION[::6]))
def test_on_a_base_with_the_same_function_a_fine_tune_is_what_it_was(case):
    """Of families of all kinds: what is carried is all that was learned; added as it is, it is something else."""
    base = checkpoint(case)
    fine, new = tuned(base), scrambled(base)
    carried, expected = transport(base, fine, new), outputs(fine)
    assert moved_by(carried.checkpoint, expected) < max(tolerance(case), 1e-8)
    ends = [Typed.of(one) for one in (new, fine, base)]
    as_it_is = ends[0].derived(Lazy(ends[0], lambda name: ends[0][name] + ends[1][name] - ends[2][name]))
    assert moved_by(as_it_is, expected) > 1e-3


@pytest.mark.usefixtures("few_rounds")
def test_a_head_of_another_shape_is_the_fine_tunes():
    """For another task, with other labels, under the name that the bases' head has."""
    base, new = (checkpoint("bert/BertForTokenClassification", seed) for seed in (1, 2))
    fine = load(near(model("bert/BertForSequenceClassification", 3), num_labels=4))
    carried = transport(base, fine, new).checkpoint
    assert carried["classifier.weight"].shape == (4, 24) != base["classifier.weight"].shape
    assert carried["classifier.bias"].equal(fine["classifier.bias"])


@pytest.mark.usefixtures("few_rounds")
def test_nothing_learned_is_the_new_base():
    base, new = checkpoint(LLAMA, 1), checkpoint(LLAMA, 2)
    for carried in (transport(base, base, new), transport(base, tuned(base), new, scale=0.0)):
        assert all(tensor.equal(new[name]) for name, tensor in carried.checkpoint.items())
    half, whole = (transport(base, tuned(base), new, scale=scale).checkpoint for scale in (Fraction(1, 2), 1.0))
    for name, tensor in half.items():
        torch.testing.assert_close(2 * (tensor - new[name]), whole[name] - new[name])


def test_rounding_is_no_sign_of_another_pair():
    base = checkpoint(LLAMA, 1)
    element = transport(base, base, base).element
    element.report["distance_after"] += 1e-7
    transport(base, base, base, element)
    element.report["distance_after"] += 1e-3
    with pytest.raises(InputError, match="the element was not found between"):
        transport(base, base, base, element)


@pytest.mark.usefixtures("few_rounds")
def test_what_does_not_fit_is_refused(tmp_path):
    base, new = checkpoint(LLAMA, 1), checkpoint(LLAMA, 2)
    with pytest.raises(InputError, match="scale nan: expected a finite number"):
        transport(base, base, new, scale=float("nan"))
    with pytest.raises(InputError, match="only models of one architecture match"):
        transport(base, checkpoint("bert/BertForMaskedLM"), new)
    classifier = "bert/BertForSequenceClassification"
    other = model(classifier, 3)
    other.config.id2label = {0: "a", 1: "b"}
    with pytest.raises(InputError, match="its task head has other labels"):
        transport(checkpoint(classifier, 1), load(other), checkpoint(classifier, 2))
    lora(base_folder(tmp_path, classifier), target_modules=["query"])
    element = transport(base, base, new).element
    for ends in ((base, checkpoint(LLAMA, 3)), (checkpoint(LLAMA, 3), new)):
        with pytest.raises(InputError, match="the element was not found between"):
            transport(ends[0], base, ends[1], element)
    with pytest.raises(InputError, match="symmetry paper: the element was found with its own"):
        transport(base, base, new, element, symmetry="paper")
    with pytest.raises(InputError, match="the element has no report of how it was found"):
        transport(new, new, base, element.inverse())
    with pytest.raises(InputError, match="is not of the type that the element acts on"):
        transport(
            checkpoint("bert/BertForMaskedLM", 1),
            checkpoint("bert/BertForMaskedLM", 1),
            checkpoint("bert/BertForMaskedLM", 2),
            element,
        )
    with pytest.raises(InputError, match="its task head has other labels"):
        transport_adapter(checkpoint(classifier, 1), tmp_path / "lora", load(other))


@pytest.mark.usefixtures("few_rounds")
def test_a_report_that_is_not_as_it_was_written_is_refused():
    """It would end in a defect, once the model was written."""
    base, new = checkpoint(LLAMA, 1), checkpoint(LLAMA, 2)
    element = match(base, new)
    assert transport(base, base, new, element).element is element
    space = next(iter(element.report["spaces"]))
    for changes in (
        {"distance_before": None},
        {"distance_after": "1"},
        {"objective": []},
        {"notes": "x"},
        {"spaces": {space: {"before": 1e200, "after": 1.0}}},
        {"spaces": {space: 1.0}},
    ):
        with pytest.raises(InputError, match="the element has no report of how it was found"):
            transport(base, base, new, replace(element, report=element.report | changes))


@pytest.mark.parametrize("part", ["query", "key"])
def test_a_head_that_had_no_frame(part):
    """Under gl a fine-tune is moved in the bases of its base: what it has hardly learned stays small."""
    states = []
    for seed in (1, 2):
        made = model("bert/BertForMaskedLM", seed)
        states.append(made)
    with torch.no_grad():
        own = getattr(states[0].bert.encoder.layer[0].attention.self, part)
        own.weight[:1] = 0.0
        own.bias[:1] = 0.0
    base, new = (load(made) for made in states)
    carried = transport(base, tuned(base, size=1e-6), new, symmetry="gl").checkpoint
    for name, tensor in carried.items():
        assert (tensor - new[name]).norm() < 1e-3 * (1 + new[name].norm()), name


@pytest.fixture
def folders(tmp_path):
    """A base, the same function in other weights, and what the first has learned."""
    base = checkpoint(VIT, dtype=torch.float32)
    for name, one in (("base", base), ("new", scrambled(base)), ("tuned", tuned(base))):
        save(one, tmp_path / name)
    return tmp_path


def test_the_command(folders):
    base, fine, new, out = (folders / name for name in ("base", "tuned", "new", "out"))
    (new / "preprocessor_config.json").write_text("{}")
    command = ("transport", base, fine, new, "--out", out)
    report = run(*command, "--json").json
    assert report["verification"]["same"]
    assert report == json.loads((out / "cobasin.json").read_text())
    assert verify(fine, out, 1e-4).same
    assert (out / "preprocessor_config.json").exists()
    assert f"# {fine}, carried to {new}" in (out / "README.md").read_text()
    assert "is not empty" in refused(folders, *command)
    # what has nothing in common with the base is carried, too, and said to be no fine-tune of it
    save(checkpoint(VIT, 5, dtype=torch.float32), folders / "other")
    other = run("transport", base, folders / "other", new, "--out", folders / "moved", "--json").json
    (said,) = (note for note in other["notes"] if "no fine-tune" in note)
    assert said.startswith(f"{folders / 'other'} differs from {base} by more than they share")
    assert not any("no fine-tune" in note for note in report["notes"])
    # the same by an element that was found before, in a folder or a file
    for element in (out, out / "cobasin.safetensors"):
        shown = run("transport", base, fine, new, "--element", element, "--out", folders / "again", "--overwrite")
        assert f"{base} matched to {new} (full)" in shown.out
        assert f"written to {folders / 'again'}" in shown.out
        assert f"what {fine} has learned was moved so and added; how much" in shown.out
        assert all(x.equal(load(out)[name]) for name, x in load(folders / "again").items())
    half = (*command[:-1], folders / "half", "--scale", 0.5)
    assert "was moved so and added 0.5 times; how much" in run(*half).out
    assert ", times 0.5," in (folders / "half" / "README.md").read_text()
    assert verify(fine, folders / "half").same is False
    line = refused(folders, *command[:-1], folders / "x", "--element", out, "--symmetry", "paper")
    assert "was found with its own" in line


def test_what_is_no_fine_tune_is_told_from_one_by_most_of_its_matrices():
    """Whisper's tables of positions are the same in all models, and larger than all else."""
    base, other, zeros = (model("whisper/WhisperForConditionalGeneration", seed) for seed in (1, 2, 3))
    with torch.no_grad():
        for made in (base, other):
            made.model.encoder.embed_positions.weight.fill_(100.0)
        for parameter in zeros.parameters():
            parameter.zero_()
    base, other, zeros = (Typed.of(load(made)) for made in (base, other, zeros))
    assert _origin(base, other, ())
    assert not _origin(base, base, ())
    assert not _origin(zeros, zeros, ())


@pytest.mark.usefixtures("few_rounds")
def test_a_tied_head_is_untied(tmp_path):
    """A base whose stream is turned has a head of its own, and so has what is carried there, but for adapters."""
    for name, seed in (("base", 1), ("new", 2)):
        save(checkpoint(GPT2, seed, dtype=torch.float32), tmp_path / name)
    save(tuned(load(tmp_path / "base")), tmp_path / "tuned")
    adapter = lora(tmp_path / "base", dtype=torch.float32, target_modules=["c_attn"])
    for what, note in ((tmp_path / "tuned", True), (adapter, False)):
        ends = ("transport", tmp_path / "base", what, tmp_path / "new", "--out", tmp_path / "out", "--overwrite")
        report = run(*ends, "--json").json
        assert ("the output head is untied from the embedding" in report["notes"]) is note
        assert (load_config(tmp_path / "out").get("tie_word_embeddings") is False) is note


@pytest.mark.parametrize(
    "case",
    one_in(2, [GPT2, "llama-mqa-tied/LlamaForCausalLM", "opt/OPTForCausalLM", "t5/T5ForConditionalGeneration"], 1),
)
def test_a_head_that_was_untied_before(case):
    """The new base has been matched itself, or the fine-tune has: the functions are the same, tied or not."""
    base = checkpoint(case)
    assert Typed.of(base).spec.unties
    own = Typed.of(base).untied()
    new = own.derived(Element.sample(form_of(own.spec, folded=True), 5).apply(own))
    fine = tuned(base)
    there = transport(base, fine, new)
    for carried in (there, transport(base, fine, new, there.element), transport(new, there.checkpoint, base)):
        assert verify(fine, carried.checkpoint, max(tolerance(case), 1e-8)).same
    assert verify(base, there.checkpoint).same is False


def load_config(folder):
    path = folder / "config.json"
    return json.loads(path.read_text()) if path.exists() else {}


def test_an_adapter(folders):
    base, new, out = (folders / name for name in ("base", "new", "out"))
    adapter = lora(base, dtype=torch.float32, target_modules=["q_proj", "o_proj", "fc1"])
    finished = run("transport", base, adapter, new, "--out", out)
    assert "was moved so; how much of it" in finished.out
    assert "note: " in finished.out
    report = json.loads((out / "cobasin.json").read_text())
    assert report["verification"]["same"]
    assert any("biases (lora_bias) were added" in note for note in report["notes"])
    assert not any("as its base, not" in note for note in report["notes"])
    assert json.loads((out / ADAPTER_FILE).read_text())["base_model_name_or_path"] == str(new)
    assert f"The adapter `{adapter}` of `{base}`, for `{new}`" in (out / "README.md").read_text()
    reference = function(base, adapter)
    assert change(function(new, out), reference) < 1e-4
    assert change(function(new, adapter), reference) > 0.01
    other = run("transport", new, adapter, base, "--out", folders / "other", "--json").json["notes"]
    assert f"{adapter} names {base} as its base, not {new}: to other weights it adds what says nothing" in other
    command = ("transport", base, adapter, new, "--out", folders / "x")
    assert run(*command[:-1], folders / "again", "--element", out).code == 0
    assert "an adapter has a scale of its own, lora_alpha" in refused(folders, *command, "--scale", 2)
    line = refused(folders, *command[:-1], out, "--element", out, "--overwrite")
    assert "lies in the input folder" in line
    save(checkpoint(VIT, 3, dtype=torch.float32), folders / "third")
    line = refused(folders, *command[:3], folders / "third", *command[4:], "--element", out, unread=False)
    assert "the element was not found between" in line


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"modules_to_save": ["classifier"]}, "classifier"),
        ({"bias": "all"}, "bias"),
        ({"use_dora": True}, "lora_magnitude_vector"),
    ],
)
def test_an_adapter_of_more_than_factors_is_refused(folders, options, name):
    """What stands in the place of its base's tensors would stand in that of others."""
    adapter = lora(folders / "base", dtype=torch.float32, target_modules=["q_proj"], **options)
    line = refused(folders, "transport", folders / "base", adapter, folders / "new", "--out", folders / "x")
    assert name in line
    assert "adds nothing to others; merge the adapter into its base" in line
