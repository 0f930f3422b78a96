"""An element acts on models of other classes with the same layers, such as a classifier made from a language model."""

import re

import pytest
import torch

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.typed import Typed
from cobasin.checkpoints.writer import save
from cobasin.errors import InputError
from cobasin.finding.acting import acting_on
from cobasin.finding.applying import transform
from cobasin.finding.match import match
from cobasin.finding.transport import transport
from cobasin.proposal.checking import change
from cobasin.proposal.checking import run as outputs
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import form_of
from cobasin.symmetry.state import Lazy
from cobasin.verification import verify
from command_line import refused, run
from sampling import one_in
from tiny_models import CASES, checkpoint, model, tolerance

# no other head on the same layers: without the decoder, with other sizes, another group of the embeddings, a stream
# that is the output
APART = {"t5", "mt5", "umt5", "whisper", "siglip", "electra", "electra-wide-leaky-relu", "albert", "clip-text", "luke"}
APART |= {"clip-vision", "vit-mae", "videomae", "dpr", "mobilebert"}
LLAMA = "llama-gqa/LlamaForCausalLM"
BERT, CLASSIFIER = "bert/BertForMaskedLM", "bert/BertForSequenceClassification"


def pairs():
    """Of every family with several heads the first one, and the last."""
    headed = {}
    for case in CASES:
        if not case.endswith(("Model", "AudioFrameClassification")):
            headed.setdefault(case.split("/")[0], []).append(case)
    return [(cases[0], cases[-1]) for family, cases in headed.items() if len(cases) > 1 and family not in APART]


def with_layers_of(base, case, seed=7, noise=0.0):
    """A model of another class whose layers are a base's, and a little trained."""
    own, layers = Typed.of(checkpoint(case, seed)), Typed.of(base)

    def tensor(name):
        generator = torch.Generator().manual_seed(len(name))
        found = layers[name] if name in layers and name not in own.task_heads else own[name]
        return found + noise * torch.randn(found.shape, generator=generator, dtype=torch.float64)

    return own.derived(Lazy(own, lambda name: tensor(own.spec.tied.get(name, name))))


def random_element(case, seed=3):
    typed = Typed.of(checkpoint(case))
    typed = typed.untied() if typed.spec.unties else typed
    return Element.sample(form_of(typed.spec, folded=True, free_biases=True, balanced=True), seed)


@pytest.mark.parametrize(("case", "other"), one_in(4, pairs()[::2]))
def test_it_keeps_the_function_of_another_head(case, other):
    element, source = random_element(case), checkpoint(other, 2)
    moved, expected = transform(element, source), outputs(source)
    assert change(moved, expected) < 10 * tolerance(other)
    # control: the head is left where it was
    acting, typed = acting_on(element, source)
    there = acting.apply(typed)
    left = Lazy(typed, lambda name: (typed if name in typed.task_heads else there)[name])
    heads = [name for name in typed.task_heads if not torch.equal(moved[typed.disk_names[name]], typed[name])]
    assert (change(typed.derived(left), expected) > 1e-4) is bool(heads)


@pytest.mark.parametrize(("case", "other"), one_in(4, pairs()[1::4]))
def test_a_head_is_carried_to_a_base_with_the_same_function(case, other):
    """What was learned arrives as a whole, with the head that neither base has."""
    base = checkpoint(case)
    typed = Typed.of(base)
    scramble = Element.sample(form_of(typed.spec, folded=not typed.spec.unties), 5)
    new, fine = typed.derived(scramble.apply(typed)), with_layers_of(base, other, noise=0.1)
    carried = transport(base, fine, new)
    assert verify(fine, carried.checkpoint, max(tolerance(other), 1e-8)).same
    assert carried.checkpoint.architecture == fine.architecture
    head = Typed.of(carried.checkpoint).spec.entries.keys() - typed.spec.entries.keys()
    assert all(f"{name}" in " ".join(carried.notes) for name in head)


def test_what_only_one_class_has_is_carried_as_a_whole():
    base, new = checkpoint(BERT, 1), checkpoint(BERT, 2)
    fine = with_layers_of(base, CLASSIFIER, noise=0.1)
    none, half = (transport(base, fine, new, scale=scale).checkpoint for scale in (0.0, 0.5))
    name = "bert.encoder.layer.0.output.dense.weight"
    assert torch.equal(none[name], new[name])
    assert not torch.equal(half[name], new[name])
    assert torch.equal(none["classifier.weight"], half["classifier.weight"])
    assert torch.equal(none["classifier.bias"], fine["classifier.bias"])


def test_a_padding_token_is_the_head_s_own():
    """A language model has none, as Llama's and GPT-2's; the classifier that was made from it needs one."""
    ends = [model(LLAMA, seed) for seed in (1, 2)]
    for end in ends:
        end.config.pad_token_id = None
    base, new = map(load, ends)
    fine = with_layers_of(base, "llama-gqa/LlamaForSequenceClassification", noise=0.1)
    assert fine.config.pad_token_id is not None
    assert transport(base, fine, new).checkpoint.config.pad_token_id == fine.config.pad_token_id


def test_a_copy_of_what_is_tied_is_carried_too():
    """Where the bases have no head at all, and the file of the fine-tune both."""
    base, new = (checkpoint("bert/BertModel", seed) for seed in (1, 2))
    fine = with_layers_of(base, BERT, noise=0.1)
    word, head = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
    fine.config.architectures = [fine.architecture]
    carried = transport(base, load({**fine, head: fine[word]}, fine.config), new, symmetry="ffn").checkpoint
    assert torch.equal(carried[head], carried[word])


@pytest.mark.parametrize("case", ["bert/BertForTokenClassification", "bert/BertForMultipleChoice"])
def test_heads_of_two_tasks_are_two_heads(case):
    """Of one name, they are no version of each other, and may have other shapes."""
    base, new = (checkpoint(CLASSIFIER, seed) for seed in (1, 2))
    other = with_layers_of(base, case, noise=0.1)
    carried = transport(base, other, new, symmetry="heads").checkpoint
    assert torch.equal(carried["classifier.weight"], other["classifier.weight"])


def test_a_model_that_shows_its_stream_is_refused():
    with pytest.raises(
        InputError,
        match=r"a BertModel, in which something else is computed once an element moves resid; leave residual",
    ):
        transform(random_element(BERT), checkpoint("bert/BertModel"))
    element = match(checkpoint(BERT, 1), checkpoint(BERT, 2), "ffn,heads")
    bare = checkpoint("bert/BertModel", 3)
    assert verify(bare, transform(element, bare)).same


def test_tokens_and_labels_may_be_more():
    """As those of a fine-tune are, which an element moves no less."""
    made = model(LLAMA)
    made.resize_token_embeddings(made.config.vocab_size + 3)
    longer = load(made)
    moved = transform(random_element(LLAMA), longer)
    assert moved["model.embed_tokens.weight"].shape == longer["model.embed_tokens.weight"].shape
    assert verify(longer, moved).same
    base = checkpoint(LLAMA)
    with pytest.raises(InputError, match="vocab has size"):
        transport(base, longer, base)


def test_other_layers_are_refused():
    made = model(CLASSIFIER)
    made.config.intermediate_size += 4
    with pytest.raises(InputError, match=r"the sizes of the two differ \(\{'ffn': \d+\} against"):
        transform(random_element(BERT), load(type(made)(made.config).double()))
    with pytest.raises(InputError, match="is not of the type that the element acts on"):
        transform(random_element(BERT), checkpoint("roberta/RobertaForSequenceClassification"))
    base, made = checkpoint(BERT), model(CLASSIFIER)
    made.config.layer_norm_eps = 0.5
    with pytest.raises(InputError, match=r"layer_norm_eps is 0\.5 in"):
        transport(base, load(made), base)


def test_on_the_command_line(tmp_path):
    base, new = checkpoint(BERT, 1), checkpoint(BERT, 2)
    for name, one in (("base", base), ("new", new), ("fine", with_layers_of(base, CLASSIFIER, noise=0.1))):
        save(one, tmp_path / name)
    matched, fine = tmp_path / "matched", tmp_path / "fine"
    assert run("match", tmp_path / "base", tmp_path / "new", "--out", matched).code == 0
    assert run("apply", matched, fine, "--out", tmp_path / "applied").code == 0
    assert run("verify", fine, tmp_path / "applied").code == 0
    done = run("transport", tmp_path / "base", fine, tmp_path / "new", "--element", matched, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    assert re.search("note: pooler.dense.weight, .*not in the bases, or of another task: carried as a whole", done.out)
    assert load(tmp_path / "out").architecture == "BertForSequenceClassification"
    layers = refused(tmp_path, "match", tmp_path / "base", fine, "--out", tmp_path / "no")
    assert "only models of one architecture match" in layers
