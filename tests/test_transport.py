"""A fine-tune, or an adapter of it, carried from its base to another one."""

import json

import pytest
import torch

from adapter_folders import VIT, change, function, lora
from cobasin.adapters.folder import CONFIG_FILE
from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.typed import Typed
from cobasin.checkpoints.writer import save
from cobasin.errors import InputError
from cobasin.finding.transport import transport
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import form_of
from cobasin.symmetry.state import Lazy
from cobasin.verification import verify
from command_line import refused, run
from tiny_models import CASES, checkpoint, model, tolerance

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


@pytest.mark.parametrize("case", {case.split("/")[0]: case for case in CASES}.values())
def test_on_a_base_with_the_same_function_a_fine_tune_is_what_it_was(case):
    """Of every family: what is carried is all that was learned; added as it is, it is something else."""
    base = checkpoint(case)
    fine, new = tuned(base), scrambled(base)
    carried = transport(base, fine, new)
    assert verify(fine, carried.checkpoint, max(tolerance(case), 1e-8)).same
    ends = [Typed.of(one) for one in (new, fine, base)]
    as_it_is = ends[0].derived(Lazy(ends[0], lambda name: ends[0][name] + ends[1][name] - ends[2][name]))
    assert verify(fine, as_it_is, 1e-3).same is False


def test_nothing_learned_is_the_new_base():
    base, new = checkpoint(LLAMA, 1), checkpoint(LLAMA, 2)
    for carried in (transport(base, base, new), transport(base, tuned(base), new, scale=0.0)):
        assert all(tensor.equal(new[name]) for name, tensor in carried.checkpoint.items())
    half, whole = (transport(base, tuned(base), new, scale=scale).checkpoint for scale in (0.5, 1.0))
    for name, tensor in half.items():
        torch.testing.assert_close(2 * (tensor - new[name]), whole[name] - new[name])


def test_what_does_not_fit_is_refused():
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
    element = transport(base, base, new).element
    with pytest.raises(InputError, match="is not the model that the element leads to"):
        transport(base, base, checkpoint(LLAMA, 3), element)
    with pytest.raises(InputError, match="is not the model that the element starts from"):
        transport(checkpoint(LLAMA, 3), base, new, element)


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
    # the same by an element that was found before, in a folder or a file
    for element in (out, out / "cobasin.safetensors"):
        shown = run("transport", base, fine, new, "--element", element, "--out", folders / "again", "--overwrite")
        assert f"{base} matched to {new} (full)" in shown.out
        assert f"written to {folders / 'again'}" in shown.out
        assert all(x.equal(load(out)[name]) for name, x in load(folders / "again").items())
    half = (*command[:-1], folders / "half", "--scale", 0.5)
    assert run(*half).code == 0
    assert ", times 0.5," in (folders / "half" / "README.md").read_text()
    assert verify(fine, folders / "half").same is False
    line = refused(folders, *command[:-1], folders / "x", "--element", out, "--symmetry", "paper")
    assert "was found with its own" in line


def test_an_adapter(folders):
    base, new, out = (folders / name for name in ("base", "new", "out"))
    adapter = lora(
        base, dtype=torch.float32, target_modules=["q_proj", "o_proj", "fc1"], modules_to_save=["classifier"]
    )
    report = run("transport", base, adapter, new, "--out", out, "--json").json
    assert report["verification"]["same"]
    assert any("biases (lora_bias) were added" in note for note in report["notes"])
    assert json.loads((out / CONFIG_FILE).read_text())["base_model_name_or_path"] == str(new)
    reference = function(base, adapter)
    assert change(function(new, out), reference) < 1e-4
    assert change(function(new, adapter), reference) > 0.01
    again = (*("transport", base, adapter, new, "--out", folders / "again"), "--element", out)
    assert run(*again).code == 0
    line = refused(folders, "transport", base, adapter, new, "--out", folders / "x", "--scale", 2)
    assert "an adapter has a scale of its own, lora_alpha" in line
    save(checkpoint(VIT, 3, dtype=torch.float32), folders / "third")
    line = refused(
        folders, "transport", base, adapter, folders / "third", "--element", out, "--out", folders / "x", unread=False
    )
    assert "third is not the model that the element leads to" in line
