"""Every declared architecture: the group it declares keeps the function, and nothing but the group does."""

import dataclasses
from functools import cache, lru_cache

import pytest
import torch

from cobasin.architectures import known
from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.checkpoints.probes import probe
from cobasin.checkpoints.running import build, in_float32_always, instantiate, outputs
from cobasin.checkpoints.typed import Typed
from cobasin.checkpoints.writer import save
from cobasin.finding import match as api
from cobasin.finding.applying import transform
from cobasin.proposal.checking import cancelled, change, first_names, forms, generic, idle, run, sample
from cobasin.symmetry.canonical import gauge_of
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import Form
from cobasin.symmetry.groups import Permutation
from cobasin.symmetry.wellformed import mistakes
from cobasin.verification import Rerun, relative_change
from sampling import one_in
from tiny_models import CASES, EVERY_CLASS, FLOAT32_PARTS, ONE_A_DECLARATION, ONE_A_FAMILY, checkpoint, model, tolerance

# Written and loaded: one of every declaration, and every eighth of the other classes. Of ten declarations `make test`
# writes one, matches one with another model, and has one brought back by `test_recovery`.
WRITTEN = [*ONE_A_DECLARATION, *[case for case in EVERY_CLASS if case not in ONE_A_DECLARATION][::8]]
# Of variants of a declaration, and of the heads that a family has beside its first one, `make test` looks at every
# twentieth. Tests of the same case follow each other, for what they share.
OTHERS = [case for case in CASES if case not in ONE_A_DECLARATION][::20]
ALWAYS = {*ONE_A_DECLARATION, *OTHERS}
MARKED = [case if case in ALWAYS else pytest.param(case, marks=pytest.mark.exhaustive) for case in CASES]
of_every_case = pytest.mark.parametrize("case", MARKED, scope="module")


def test_every_declared_class_has_a_case():
    assert {case.split("/")[1] for case in CASES} == set(known())


@lru_cache(maxsize=1)
def built(case):
    """The model of a case in float64 throughout, for the tests of it: typed, to be rerun, and what it puts out."""
    typed = Typed.of(checkpoint(case))
    rerun = Rerun(typed.checkpoint, probe(typed.checkpoint.config, typed.checkpoint.architecture))
    return typed, rerun, rerun(typed.checkpoint, ())


@cache
def layouts(case):
    """The types of the tensors of a case."""
    return {name: entry.layout.text for name, entry in Typed.of(checkpoint(case)).spec.entries.items()}


@pytest.mark.usefixtures("float64_throughout")
@of_every_case
def test_random_elements_keep_the_function(case):
    typed, rerun, reference = built(case)
    assert mistakes(typed.spec) == []
    others = [other for other, _ in forms(generic(typed, 9))]
    ends = list(enumerate(zip(forms(typed), others, strict=True)))
    # under another head only with all folded that can be: the layers are those that were moved as they are
    for seed, ((of, form), other) in ends if case in ONE_A_FAMILY else ends[-1:]:
        element = dataclasses.replace(sample(form, seed), target=gauge_of(form, other))
        moved = dict(element.apply(of))
        assert max(float((moved[name] - of[name]).abs().max()) for name in of) > 0.5
        given = of.derived(moved)
        found = rerun(given, set(given)) if of is typed else run(given)
        assert relative_change(reference, found) < 1e-9


@pytest.mark.usefixtures("float64_throughout")
@of_every_case
@pytest.mark.parametrize("quarter", one_in(4, range(4)))
def test_every_tensor_matters(case, quarter):
    """Leave one block out of a random element: the function changes, unless the softmax cancels that block.

    What has the same type in the first case of the family, or the first family of the class, is looked at there.
    """
    typed, _, reference = built(case)
    names, expected = first_names(typed.spec), cancelled(typed.spec)
    family, head = case.split("/")
    (one,) = (other for other in ONE_A_FAMILY if other.split("/")[0] == family)
    if case == one:
        one = next(other for other in ONE_A_FAMILY if other.split("/")[1] == head)
    if case != one:
        there = layouts(one)
        names = [name for name in names if there.get(name) != typed.spec.entries[name].layout.text]
    names = names[quarter::4]
    if names:
        assert idle(typed, reference, 1e-4, names) == {(name, block) for name, block in expected if name in names}


@pytest.mark.usefixtures("one_round")
@pytest.mark.parametrize("case", one_in(10, ONE_A_DECLARATION, 1))
def test_matched_pair_keeps_the_function(case):
    source, anchor = checkpoint(case, 1), checkpoint(case, 2)
    element = api.match(source, anchor)
    assert change(transform(element, source), run(source)) < tolerance(case)
    assert element.report["objective"][-1] < element.report["objective"][0]
    assert max(element.deviation().values()) < 1e-12


@pytest.mark.parametrize("case", one_in(10, WRITTEN, 2))
def test_files_in_every_dtype(case, tmp_path):
    """A random element written in the file's dtype, as one file and sharded, loaded by stock Transformers.

    In float32 and sharded the first head of a family, whose layers the others share.
    """
    dtype = torch.float32 if case in ONE_A_FAMILY else torch.bfloat16
    source = model(case, dtype=dtype)
    source.save_pretrained(tmp_path / "source", max_shard_size="10KB" if dtype == torch.float32 else "5GB")
    given = load(tmp_path / "source")
    typed = Typed.of(given)
    of, form = forms(typed)[-1]
    save(of.derived(Element.sample(form, 3).apply(of)), tmp_path / "moved")
    written = load(tmp_path / "moved")
    assert {h.shard for h in written.headers.values()} == {h.shard for h in given.headers.values()}
    inputs = probe(given.config, given.architecture)
    stock = type(source).from_pretrained(tmp_path / "moved", dtype=torch.float64, experts_implementation="eager")
    for parameter in stock.parameters():  # XLNet makes its own in float32; buffers may be complex
        parameter.data = parameter.data.double()
    reloaded = in_float32_always(stock).eval()
    reference = outputs(instantiate(given, torch.float64), inputs)
    # rounding to eight bits may send a token to other experts, which changes its outputs altogether
    size = torch.median if dtype == torch.bfloat16 and any("expert" in name for name in given) else torch.max

    def moved(found):
        return float(size((found - reference).abs()) / reference.abs().max())

    error = moved(outputs(reloaded, inputs))
    assert error < 300 * torch.finfo(dtype).eps
    wrong = dict(of.derived(Element.sample(form, 3).apply(of)))
    texts = {name: of.spec.entries[entry].layout.text for name, (entry, _) in of.spec.file_entries.items()}
    first = next(text for space in ("ffn", "channel") for text in texts.values() if space in text)
    for name in (of.disk_names[name] for name, text in texts.items() if text == first):  # a token meets few experts
        wrong[name] = of.checkpoint[name]
    broken = outputs(build(written, {n: t.double() for n, t in wrong.items()}, torch.float64), inputs)
    assert moved(broken) > 3 * error


@pytest.mark.parametrize("case", ["bert/BertModel", "roberta/RobertaModel", "vit/ViTModel"])
def test_bare_encoder_without_pooler(case, tmp_path):
    for seed, name in enumerate("ab"):
        model(case, seed, pooler=False).save_pretrained(tmp_path / name)
    source = load(tmp_path / "a")
    assert not any("pooler" in name for name in source)
    element = api.match(source, tmp_path / "b")
    assert change(transform(element, source), run(source)) < 1e-9


def test_positions_that_only_the_code_has_fix_the_stream():
    """Files of Pegasus may lack the sines that are added to the stream: Transformers computes them."""

    def without(seed: int) -> Checkpoint:
        found = load(model("pegasus/PegasusForConditionalGeneration", seed))
        headers = {name: header for name, header in found.headers.items() if "embed_positions" not in name}
        return Checkpoint("sines", found.config, found.architecture, headers, found.__getitem__)

    source = without(1)
    assert Typed.of(source).spec.spaces["resid"].group is None
    element = api.match(source, without(2))
    assert change(transform(element, source), run(source)) < 1e-9


def test_reflection_breaks_rope():
    """The wrong group under a rotary embedding: O(2) instead of SO(2)."""
    typed = Typed.of(checkpoint("llama-gqa/LlamaForCausalLM"))
    reference = run(typed.checkpoint)
    state = dict(typed)
    for name, pair in (("q_proj", (8, 2, 3)), ("k_proj", (4, 2, 3))):
        weight = state[f"layers.0.self_attn.{name}.weight"].clone()
        weight.view(pair[0] // 2 if name == "q_proj" else 2, -1, 2, 3, 24)[:, :, 1] *= -1
        state[f"layers.0.self_attn.{name}.weight"] = weight
    assert change(typed.derived(state), reference) > 1e-3


def test_separate_position_projections_left_alone_break_deberta():
    case = "deberta-v2-separate/DebertaV2ForMaskedLM"
    typed = Typed.of(checkpoint(case))
    moved = Element.sample(Form(typed.spec), 0, part="attention").apply(typed)
    state = {name: typed[name] if "pos_" in name else moved[name] for name in typed}
    reference = run(typed.checkpoint)
    assert change(typed.derived(dict(moved)), reference) < 1e-9
    assert change(typed.derived(state), reference) > 1e-2


@pytest.mark.parametrize("tower", ["text", "vision"])
def test_a_projection_does_not_hide_the_stream(tower):
    """CLIP's towers put out both, and others read the stream: in another order it is another function."""
    typed = Typed.of(checkpoint(f"clip-{tower}/CLIP{tower.title()}ModelWithProjection"))
    resid = dataclasses.replace(typed.spec.spaces["resid"], group=Permutation())
    spec = dataclasses.replace(typed.spec, spaces={**typed.spec.spaces, "resid": resid})
    element = Element.sample(Form(spec), 0, part="residual")
    assert {key[0] for key in element.values} == {"resid"}
    moved = element.apply(Typed(typed.checkpoint, spec))
    assert change(typed.derived(moved), run(typed.checkpoint)) > 1e-2


def test_float32_parts_are_known():
    assert all(any(case.startswith(part) for case in CASES) for part in FLOAT32_PARTS)


@pytest.mark.parametrize(
    "case", ["llava-onevision/LlavaOnevisionForConditionalGeneration", "esm-untied/EsmForMaskedLM"]
)
def test_a_mean_that_counts_is_kept(case):
    """By a projector that reads the stream itself, and behind an activation: there writers must not lose theirs."""
    typed = Typed.of(checkpoint(case))
    norms = tuple(dataclasses.replace(norm, keeps_mean=False) for norm in typed.spec.norms)
    assert norms != typed.spec.norms
    wrong = dataclasses.replace(typed, spec=dataclasses.replace(typed.spec, norms=norms))
    for given, kept in ((typed, True), (wrong, False)):
        of, form = forms(given)[-1]
        moved = sample(form, 1).apply(of)
        assert (change(of.derived(moved), run(typed.checkpoint)) < 1e-3) is kept
