"""How two models are related: the four verdicts, their evidence, and what `cobasin compare` prints and writes."""

import copy
import json
import re

import pytest
import torch

from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.checkpoints.typed import Typed
from cobasin.checkpoints.writer import save
from cobasin.comparing.agreement import OUTSIDE, Difference
from cobasin.comparing.compare import _shared, compare
from cobasin.comparing.distance import distance
from cobasin.errors import InputError, NotProbed
from cobasin.execution.jobs import torch_threads
from cobasin.finding.applying import transform
from cobasin.finding.match import match
from cobasin.presenting.console import output
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import form_of
from cobasin.verification import Verdict
from cobasin.workflows import compare as compare_workflow
from command_line import duplicate, near, refused, run, snapshot
from model_scrambles import general_scramble
from other_heads import BASES, fine_tunes
from other_heads import shared as tensors_in
from real_models import minilm, shared
from sampling import one_in
from tiny_models import checkpoint, model

BERT, GPT2, LLAMA = "bert/BertForMaskedLM", "gpt2/GPT2LMHeadModel", "llama-gqa/LlamaForCausalLM"
GPT2_TAGS = "gpt2/GPT2ForTokenClassification"
SPEECH = "wav2vec2-pre-training/Wav2Vec2ForCTC"  # whose base has books
CASES = [BERT, GPT2, LLAMA, "vit/ViTForImageClassification"]


def scrambled(checkpoint, dtype=None, seed=0):
    """An equivalent model in another basis and another order."""
    typed = Typed.of(checkpoint)
    typed = typed.untied() if typed.spec.unties else typed
    moved = Element.sample(form_of(typed.spec, folded=bool(typed.spec.norms)), seed).apply(typed)
    return typed.derived(moved, dtype)


def original(case, seed=0):
    return load(model(case, seed, torch.float32))


def tuned(case, noise=0.05):
    """What training on a little may have made of a model."""
    return load(near(model(case, 0, torch.float32), noise))


@pytest.mark.parametrize("case", CASES)
def test_a_model_and_itself(case):
    found = compare(original(case), original(case))
    assert found.verdict == "same"
    assert found.relative == {"files": 0.0, "before": 0.0, "after": 0.0, "chance": None}
    for space in found.spaces.values():
        assert space["agreement"] == pytest.approx([1.0] * 101)
        assert space["kept"] in (None, pytest.approx(1.0))


@pytest.mark.parametrize("case", CASES)
def test_the_distance_of_two_models(case):
    first, other = original(case), tuned(case)
    assert distance(first, first) == (0.0, 0.0)
    found, compared = distance(first, other), compare(first, other)
    assert found.files == pytest.approx(compared.distance["files"])
    assert found.canonical > 0
    with pytest.raises(InputError, match="only models of one architecture"):
        distance(first, original(next(one for one in CASES if one != case)))


def test_what_needs_no_matching_is_not_in_the_canonical_distance():
    first = original(LLAMA)
    state, block = {name: first[name].clone() for name in first}, "model.layers.0.self_attn."
    state["model.layers.0.input_layernorm.weight"] *= 2
    for reader in ("q_proj", "k_proj", "v_proj"):
        state[f"{block}{reader}.weight"] /= 2
    found = distance(first, Checkpoint(first.label, first.config, first.architecture, first.headers, state.__getitem__))
    assert found.files > 1
    assert found.canonical < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_a_scrambled_copy(case, dtype):
    typed = Typed.of(original(case))
    rounded = typed.derived(typed, dtype)
    found = compare(rounded, scrambled(rounded))
    assert found.verdict == "same", found.reason
    assert found.relative["files"] > 0.3
    assert found.relative["after"] < 4 * torch.finfo(dtype).eps + 1e-6
    assert found.verification is not None
    assert found.verification.same is not False
    assert found.kept < 0.3


def test_a_match_that_was_undone():
    """What rounding alone has left of the files is no fine-tuning, and the outputs say so."""
    first = original(GPT2)
    element = match(first, original(GPT2, 1))
    undone = transform(element.inverse(), transform(element, first))
    found = compare(first, undone)
    assert found.verdict == "same", found.reason
    assert found.reason.startswith("the files differ by")
    assert found.verification is not None
    assert found.verification.same
    assert 0 < found.relative["files"] < 1e-6


def test_files_as_near_whose_outputs_differ(monkeypatch):
    first = Typed.of(original(GPT2))
    other = first.derived({name: first[name] * (1 + 2e-7) for name in first})
    monkeypatch.setattr("cobasin.comparing.compare.verify", lambda *_: Verdict(False, "they differ"))
    assert compare(first.checkpoint, other).verdict == "share a base"


def test_outputs_that_cannot_tell_are_said_not_to(monkeypatch):
    """Those of a file in bfloat16, in a basis in which rounding weighs more, neither confirm nor contradict."""
    typed = Typed.of(original(BERT))
    monkeypatch.setattr("cobasin.comparing.compare.verify", lambda *_: Verdict(None, "too far, too near"))
    found = compare(typed.checkpoint, scrambled(typed.checkpoint))
    assert found.verdict == "same"
    assert found.reason.endswith("rounding explains; their outputs cannot tell: too far, too near")


def test_weights_alone_tell_of_a_model_that_no_probe_fits(monkeypatch):
    def refuse(*_):
        raise NotProbed("it reads input_values, which no probe has")

    typed = Typed.of(original(BERT))
    monkeypatch.setattr("cobasin.verification.probe", refuse)
    found = compare(typed.checkpoint, scrambled(typed.checkpoint))
    assert found.verdict == "same"
    assert found.reason.endswith("explains; not run on probe inputs: it reads input_values, which no probe has")
    assert found.verification is None


def test_general_maps_count_as_equivalent_where_asked():
    typed = Typed.of(original(BERT))
    copy = general_scramble(typed, 10.0)
    assert compare(typed.checkpoint, copy).verdict == "same"
    assert compare(typed.checkpoint, copy, "full").verdict != "same"


@pytest.mark.parametrize("case", CASES)
def test_a_fine_tune(case):
    found = compare(original(case), tuned(case))
    assert found.verdict == "share a base", found.reason
    assert found.kept > 0.9
    assert 0 < found.relative["files"] < 0.4
    assert found.shared is None
    assert found.verification is None


@pytest.mark.parametrize("case", [BERT, GPT2])
def test_a_scrambled_fine_tune(case):
    straight, moved = compare(original(case), tuned(case)), compare(original(case), scrambled(tuned(case)))
    assert moved.verdict == "share a basin", moved.reason
    assert moved.kept < 0.3
    assert moved.shared > 0.6
    # matching undoes the scramble: what is left is what training did
    assert moved.relative["after"] == pytest.approx(straight.relative["after"], rel=0.05)
    assert moved.relative["before"] > 2 * moved.relative["after"]


def test_independent_models():
    found = compare(original(BERT), original(BERT, seed=1))
    assert found.verdict == "independent", found.reason
    assert abs(found.shared) < 0.25
    assert "-" not in found.reason  # a little less than chance gives is told as 0%
    assert found.kept < 0.3
    assert found.relative["after"] < found.relative["before"]
    assert found.relative["after"] == pytest.approx(found.relative["chance"], rel=0.1)
    for space in found.spaces.values():
        for spectrum in (space["agreement"], space["chance"]):
            assert len(spectrum) == 101
            assert spectrum == sorted(spectrum, reverse=True)
            assert -1 <= spectrum[-1] <= spectrum[0] <= 1 + 1e-6


def test_a_cast_is_the_same_and_training_in_bfloat16_is_not():
    typed = Typed.of(original(BERT))
    rounded = typed.derived(typed, torch.bfloat16)
    assert compare(typed.checkpoint, rounded).verdict == "same"
    name = "cls.predictions.bias"
    step = dict(Typed.of(rounded))
    step[name] = step[name] * torch.tensor([1.01] + [1.0] * (len(step[name]) - 1))  # a step or two, in one entry
    found = compare(rounded, typed.derived(step, torch.bfloat16))
    assert found.verdict == "share a base"
    assert found.relative["files"] < 1e-3


def test_distances_are_those_of_the_tensors():
    first, second = original(BERT), original(BERT, seed=1)
    found = compare(first, second)
    squared = sum(float((first[name] - second[name]).double().square().sum()) for name in first)
    size = sum(float(one[name].double().square().sum()) for one in (first, second) for name in first)
    assert found.distance["files"] == pytest.approx(squared**0.5, rel=1e-6)
    assert found.relative["files"] == pytest.approx((squared / size) ** 0.5, rel=1e-6)
    assert list(found.layers) == ["outside the layers", "layer 0", "layer 1"]
    ffn = [name for name in first if "intermediate.dense" in name or ".output.dense.weight" in name]
    ffn = [name for name in ffn if "attention" not in name]
    squared = sum(float((first[name] - second[name]).double().square().sum()) for name in ffn)
    assert found.spaces["ffn"]["before"] == pytest.approx(squared**0.5, rel=1e-6)
    assert found.spaces["ffn"]["files"] == pytest.approx(squared**0.5, rel=1e-6)
    assert found.spaces["ffn"]["after"] < found.spaces["ffn"]["before"]
    layers = found.spaces["ffn"]["layers"]
    assert list(layers) == ["layer 0", "layer 1"]
    for i, row in enumerate(layers.values()):
        own = [name for name in ffn if f"layer.{i}." in name]
        squared = sum(float((first[name] - second[name]).double().square().sum()) for name in own)
        assert row["before"] == pytest.approx(squared**0.5, rel=1e-6)
        assert row["files"] == pytest.approx(squared**0.5, rel=1e-6)
        assert len(row["agreement"]) == len(row["chance"]) == 101
    assert found.spaces["resid"]["layers"] == {}


def test_distances_of_the_files_are_of_each_layer():
    """Also of what canonical forms do not compare, gains that are folded."""
    first = original("vit/ViTForImageClassification")
    gain = "vit.encoder.layer.1.layernorm_before.weight"
    other = dict(first) | {gain: first[gain] + 1.0}
    first.config.architectures = [first.architecture]
    found = compare(first, load(other, first.config))
    size = sum(float(x.double().square().sum()) for one in (first, other) for name, x in one.items() if "r.1." in name)
    assert found.spaces["resid"]["files"] == pytest.approx(24**0.5, rel=1e-6)
    files = {place: row["files"] for place, row in found.layers.items()}
    assert files == {OUTSIDE: 0.0, "layer 0": 0.0, "layer 1": pytest.approx((24 / size) ** 0.5, rel=1e-6)}


@pytest.mark.parametrize("case", one_in(4, CASES, 1))
def test_independent_models_stay_so_when_one_was_matched_to_the_other(case):
    """Its coordinates have their places then, and that is all."""
    anchor, source = original(case), original(case, 1)
    found = compare(anchor, transform(match(source, anchor), source))
    assert found.kept > 0.5
    assert found.verdict == "independent", found.reason


def test_heads_of_different_labels_are_not_compared():
    first = original("bert/BertForSequenceClassification")
    other = model("bert/BertForSequenceClassification", 0, torch.float32)
    other.config.id2label, other.config.label2id = {0: "x", 1: "y"}, {"x": 0, "y": 1}
    with torch.no_grad():
        other.classifier.weight.add_(1.0)
    found = compare(first, load(other))
    assert found.verdict == "same"
    assert found.reason == "the files hold the same numbers, up to their dtype, but for the heads"
    assert any("label sets differ" in note for note in found.notes)
    assert compare(first, scrambled(load(other))).verdict == "same"
    other.config.id2label, other.config.label2id = first.config.id2label, first.config.label2id
    assert compare(first, load(other)).verdict == "share a base"


@pytest.mark.parametrize("zeros", one_in(2, ["input_layernorm", "o_proj"]))
def test_what_a_zero_hides_is_no_difference(zeros):
    """Under gl it has no balanced basis, so that weights that no output shows stay apart."""
    ends = [model(LLAMA, seed).float() for seed in (0, 1)]
    with torch.no_grad():
        for layer in (end.model.layers[0] for end in ends):
            (layer.input_layernorm if zeros == "input_layernorm" else layer.self_attn.o_proj).weight.zero_()
    source, anchor = ends
    found = compare(source, transform(match(source, anchor), source))
    assert found.verdict == "same"
    assert "which no output shows" in found.reason
    tuned = copy.deepcopy(source)
    with torch.no_grad():
        tuned.model.layers[1].mlp.down_proj.weight.mul_(1.0001)
    assert compare(source, transform(match(tuned, anchor), tuned)).verdict == "share a basin"


@pytest.mark.parametrize(
    "case", one_in(2, ["roberta/RobertaForSequenceClassification", "vit/ViTForImageClassification", SPEECH, GPT2_TAGS])
)
def test_a_classifier_and_the_model_that_it_was_made_from(case):
    """Of another class, or bare: their layers are compared, and no outputs."""
    base, other = model(BASES[case]), model(case, 9)
    (tuned,) = fine_tunes(base, case, 1)
    copied = copy.deepcopy(tuned)
    with torch.no_grad():
        for name, tensor in tensors_in(copied).items():
            tensor.copy_(tensors_in(base).get(name, tensor))
    moved = scrambled(load(tuned))
    for a, b, verdict in (
        (base, tuned, "share a base"),
        (tuned, base, "share a base"),
        (base, moved, "share a basin"),
        (base, copied, "same"),
        (base, other, "independent"),
    ):
        found = compare(a, b)
        assert found.verdict == verdict, found.reason
        assert found.verification is None
        assert found.notes[0].endswith(": heads are not compared")
    assert compare(base, copied).reason.endswith("but for the heads")


def test_trained_from_two_seeds():
    found = compare(*(shared("models", f"llama-shakespeare-{seed}") for seed in (0, 1)))
    assert found.verdict == "independent", found.reason
    # real models have more in common than random ones, but far from half
    assert 0.03 < found.shared < 0.3
    assert found.layers["outside the layers"]["after"] < 0.7 * found.layers["outside the layers"]["chance"]
    assert found.kept < 0.05


def test_a_trained_encoder_and_its_noisy_copy():
    typed = Typed.of(load(minilm()))
    generator = torch.Generator().manual_seed(0)
    state = {name: typed[name] * (1 + 0.1 * torch.randn(typed[name].shape, generator=generator)) for name in typed}
    noisy = Typed.of(typed.derived(state))
    found = compare(typed.checkpoint, noisy.checkpoint)
    assert found.verdict == "share a base"
    assert found.kept > 0.99
    assert found.relative["files"] == pytest.approx(0.1 / 2**0.5, rel=0.02)


@pytest.fixture
def folders(tmp_path):
    """Two models near each other."""
    for name, made in (("a", original(BERT)), ("b", tuned(BERT))):
        save(made, tmp_path / name)
    return tmp_path / "a", tmp_path / "b"


def test_the_command(folders, tmp_path):
    out = tmp_path / "out"
    report = run("compare", *folders, "--out", out, "--json").json
    assert report == json.loads((out / "compare.json").read_text())
    assert (report["verdict"], report["symmetry"]) == ("share a base", "gl")
    assert (out / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in out.iterdir()) == ["compare.json", "compare.png"]
    before = snapshot(tmp_path)
    shown = run("compare", *folders)
    assert shown.code == 0
    assert shown.out.startswith("share a base: ")
    assert "layer 1" in shown.out
    assert "by chance" not in shown.out
    assert "by chance" in run("compare", folders[0], _other(tmp_path)).out
    assert {path: digest for path, digest in snapshot(tmp_path).items() if "other" not in path} == before


def _other(root):
    save(original(BERT, seed=1), root / "other")
    return root / "other"


def test_no_figure_is_broken_in_a_terminal_of_80_columns(folders, tmp_path, monkeypatch):
    monkeypatch.setattr(output, "width", 80)
    shown = run("compare", folders[0], _other(tmp_path)).out
    layers = shown.partition("distance of the tensors")[0]
    cells = [cell.strip() for line in layers.splitlines() if line[0] == "│" for cell in line.split("│")[2:-1]]
    assert [cell for cell in cells if cell]
    assert all(re.fullmatch(r"\d\.\d{2,3}", cell) for cell in cells if cell), shown


def test_long_models_are_cut_in_the_table(folders, monkeypatch):
    monkeypatch.setattr("cobasin.presenting.measuring.SHOWN", 1)
    assert "and 2 more layers (--json has them all)" in run("compare", *folders).out


def test_a_picture_with_chance(folders, tmp_path):
    report = compare_workflow.compare_models(str(folders[0]), str(_other(tmp_path)), "full", tmp_path / "out")
    assert report["verdict"] == "independent"
    assert (tmp_path / "out" / "compare.png").stat().st_size > 10_000


def test_what_cannot_be_compared(folders, tmp_path):
    a, b = folders
    wide = duplicate(b, "wide", hidden_act="relu")
    assert "hidden_act is 'gelu' in" in refused(tmp_path, "compare", a, wide)
    save(original(GPT2), tmp_path / "gpt2")
    assert "only models of one architecture match" in refused(tmp_path, "compare", a, tmp_path / "gpt2")
    assert "nowhere: no such folder" in refused(tmp_path, "compare", a, "nowhere")
    assert "'none' is unknown" in refused(tmp_path, "compare", a, b, "--symmetry", "none")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("x")
    assert "is not empty" in refused(tmp_path, "compare", a, b, "--out", tmp_path / "out")
    assert "none is named" in refused(tmp_path, "compare", a, b, "--overwrite")
    assert "lies in the input folder" in refused(tmp_path, "compare", a, b, "--out", a / "out")
    assert run("compare", a, b, "--out", tmp_path / "out", "--overwrite").code == 0


def test_a_bare_model_whose_stream_cannot_move(tmp_path):
    save(original("bert/BertModel"), tmp_path / "bare")
    line = refused(tmp_path, "compare", tmp_path / "bare", tmp_path / "bare", "--symmetry", "residual", unread=False)
    assert "leaves nothing free" in line


def test_a_tied_tensor_counts_once():
    first, second = original(GPT2), original(GPT2, seed=1)
    assert "lm_head.weight" not in first
    squared = sum(float((first[name] - second[name]).double().square().sum()) for name in first)
    assert compare(first, second).distance["files"] == pytest.approx(squared**0.5, rel=1e-6)


def test_the_median_is_that_of_the_layers():
    """Embeddings agree between models that share nothing but their vocabulary."""
    matched = {OUTSIDE: Difference(0.2, 2.0), "layer 0": Difference(1.4, 2.0), "layer 1": Difference(0.9, 2.0)}
    chance = dict.fromkeys(matched, Difference(2.0, 2.0))
    assert _shared(matched, chance) == pytest.approx((0.3 + 0.55) / 2)
    outside = {OUTSIDE: matched[OUTSIDE]}
    assert _shared(outside, {OUTSIDE: chance[OUTSIDE]}) == pytest.approx(0.9)
    # a constant layer agrees with itself by chance, which says nothing
    chance["layer 0"] = Difference(0.0, 2.0)
    assert _shared(matched, chance) == pytest.approx(0.55)
    chance["layer 1"] = chance["layer 0"]
    assert _shared(matched, chance) == pytest.approx(0.9)
    assert _shared(matched, dict.fromkeys(matched, chance["layer 0"])) == 0


@pytest.mark.parametrize("symmetry", ["gl", "residual", "ffn,heads"])
def test_layers_that_are_all_the_same_say_nothing(symmetry):
    models = [copy.deepcopy(model(LLAMA, seed, torch.float32)) for seed in (0, 1)]
    for one in models:
        for parameter in one.model.layers.parameters():
            parameter.data.zero_()
    assert compare(*models, symmetry=symmetry).verdict == "independent"


@pytest.mark.parametrize("verb", [compare, match])
def test_small_models_take_one_thread(verb):
    threads = set()
    models = checkpoint("vit/ViTForImageClassification", 1), checkpoint("vit/ViTForImageClassification", 2)
    with torch_threads(4):
        verb(*models, progress=lambda *_: threads.add(torch.get_num_threads()))
        assert torch.get_num_threads() == 4
    assert threads == {1}
