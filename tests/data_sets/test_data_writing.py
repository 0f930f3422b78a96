"""Inputs that are made up: texts that models write themselves, and images."""

from types import SimpleNamespace

import pytest
import torch
import transformers
from data_models import bert

import tiny_models
from cobasin.checkpoints.limits import first_written, special_token
from cobasin.checkpoints.running import instantiate
from cobasin.data.writing import Blank, blank_of, exchanged, filled, texts, written
from cobasin.errors import InputError
from cobasin.learning.descent import hold_out
from cobasin.learning.inputs import Inputs
from real_models import minilm
from sampling import one_in

TOKENIZER = transformers.AutoTokenizer.from_pretrained(minilm(), local_files_only=True)
CLS, SEP, MASK = TOKENIZER.convert_tokens_to_ids(["[CLS]", "[SEP]", "[MASK]"])
BLANK = Blank([1, *[0] * 21, 2], mask=0, special=[0, 1, 2])


class Follows:
    """A model of 60 tokens that takes for certain, but for special tokens, what is twice a token's place."""

    device = torch.device("cpu")

    def __init__(self):
        self.read = []

    def __call__(self, input_ids):
        self.read.append(input_ids)
        logits = torch.zeros(*input_ids.shape, 60)
        logits[..., BLANK.special] = 1000
        places = 2 * torch.arange(input_ids.shape[1])[None, :, None].expand(len(input_ids), -1, 1)
        return SimpleNamespace(logits=logits.scatter(2, places, 500))


def test_every_place_of_a_blank_is_drawn_from_what_the_model_says_there(monkeypatch):
    monkeypatch.setattr("cobasin.data.writing.DRAWN", 2)
    model = Follows()
    ids = filled(model, 40, BLANK, torch.Generator().manual_seed(0))
    # at its first place it would have a special token
    assert ids[:, 2:-1].equal(torch.arange(4, 44, 2).expand(40, -1))
    assert (ids[:, 0] == 1).all()
    assert (ids[:, -1] == 2).all()
    masks = torch.stack([(torch.cat(model.read[i : i + 3]) == 0) for i in range(0, len(model.read), 3)])
    assert masks.sum(-1).tolist() == [[count] * 40 for count in (21, 18, 15, 12, 9, 6, 3, *[3] * 7)]
    assert masks[7:, :, 1:-1].sum(0).eq(1).all()  # one at a time, and each once
    assert not masks[7, 0].equal(masks[7, 1])


def test_what_is_drawn_is_given_the_rest_and_as_likely_as_the_model_says():
    """Of a model that says ten more than the token before, or, once in five, twenty more."""

    class Counts(Follows):
        def __call__(self, input_ids):
            logits = torch.full((*input_ids.shape, 60), -1000.0)
            for more, chance in ((10, 0.8), (20, 0.2)):
                logits.scatter_(
                    2, (input_ids.roll(1, 1) + more).clamp(max=59)[..., None], torch.tensor(chance).log().item()
                )
            return SimpleNamespace(logits=logits)

    ids = filled(Counts(), 4000, Blank([7, 0, 30, 0, 2], mask=0, special=[0]), torch.Generator().manual_seed(0))
    for place, before in ((1, 7), (3, 30)):
        assert set(ids[:, place].tolist()) == {before + 10, before + 20}
        assert float((ids[:, place] == before + 10).double().mean()) == pytest.approx(0.8, abs=0.03)


def test_a_blank_is_as_long_as_the_model_reads():
    model = bert("ForMaskedLM")
    limit = model.config.max_position_embeddings
    assert blank_of(model) == Blank([CLS, *[MASK] * (limit - 2), SEP], MASK, TOKENIZER.all_special_ids)
    assert blank_of(bert()) is None
    model.folder = None
    assert blank_of(model) is None
    assert blank_of(tiny_models.checkpoint("bert/BertForMaskedLM")) is None


def test_a_tokenizer_that_does_not_fit_is_left_alone():
    model = bert("ForMaskedLM")
    model.config.vocab_size = len(TOKENIZER) - 1
    assert blank_of(model) is None


def test_what_is_made_up_is_masked_as_data_are():
    checkpoint = bert("ForMaskedLM")
    models = [instantiate(checkpoint, torch.float32) for _ in range(2)]
    one, two = (list(Inputs.of(checkpoint, None, 4, 0).batches(models)) for _ in range(2))
    ids, labels = one[0].inputs["input_ids"], one[0].labels
    assert (ids == MASK).any()
    assert (labels[ids == MASK] != -100).all()
    assert sum(len(batch.inputs["input_ids"]) for batch in one) == 4
    checkpoint.folder = None
    kinds = [Inputs.of(one, None, 4, 0).kind for one in (bert("ForMaskedLM"), checkpoint, bert())]
    assert kinds == ["inputs that were made up", "rows of random tokens", "inputs that were made up"]
    assert all(a.labels.equal(b.labels) for a, b in zip(one, two, strict=True))


def test_a_model_without_numbers_writes_nothing():
    model = instantiate(bert("ForMaskedLM"), torch.float32)
    torch.nn.init.constant_(model.bert.embeddings.LayerNorm.weight, float("nan"))
    with pytest.raises(InputError, match="what it writes is not finite"):
        texts([model], 2, 0, blank_of(bert("ForMaskedLM")))


CAUSAL = [
    case
    for case in tiny_models.EVERY_CLASS
    if case.endswith(("ForCausalLM", "LMHeadModel")) and not case.endswith("WithLMHeadModel")
]
# encoders that are no decoders by their config; GPT-NeoX is one, whatever that says
BOTH_SIDES = [c for c in CAUSAL if not getattr(tiny_models.config(c), "is_decoder", True) and "gptneox" not in c]


@pytest.mark.parametrize("case", one_in(3, [case for case in CAUSAL if case not in BOTH_SIDES]))
def test_every_token_is_drawn_from_what_the_model_says_of_all_before_it(case):
    """What a decoder keeps of a text in memory, it need not read again."""
    model = tiny_models.model(case, dtype=torch.float32)
    ids = written(model, 2, 12, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(model.config.vocab_size, (2, 1), generator=generator)
    with torch.no_grad():
        while text.shape[1] < 12:
            chances = model(input_ids=text).logits[:, -1].double().softmax(-1)
            text = torch.cat([text, torch.multinomial(chances, 1, generator=generator)], 1)
    assert ids.equal(text)


@pytest.mark.parametrize("causal", [False, True])
def test_an_xlm_writes_where_it_looks_back_only(causal):
    end = tiny_models.model("xlm/XLMWithLMHeadModel", dtype=torch.float32)
    end.config.causal = end.transformer.causal = causal
    said = []
    end.register_forward_hook(lambda _, args, kwargs, found: said.append(kwargs["input_ids"]), with_kwargs=True)
    rows = texts([end], 2, 0)
    assert len(said) == causal * (end.config.max_position_embeddings - 1)
    assert all(ids.shape == (2, i + 1) for i, ids in enumerate(said))
    assert len({tuple(row["input_ids"]) for row in rows}) == 2


def test_what_reads_both_sides_writes_nothing():
    with pytest.raises(InputError, match="RobertaForCausalLM reads texts from both sides, and so writes none"):
        texts([tiny_models.model("roberta/RobertaForCausalLM", dtype=torch.float32)], 2, 0, None)
    assert len(BOTH_SIDES) > 5


OTHER_INPUTS = ("mbart", "plbart", "whisper", "speech-to-text", "moonshine")  # languages, or sounds
ANSWERING = [
    case
    for case in tiny_models.EVERY_CLASS
    if case.endswith(("ForConditionalGeneration", "MTModel")) and not case.startswith(OTHER_INPUTS)
    if tiny_models.config(case).is_encoder_decoder
]


def taken(logits):
    """Any token of a vocabulary but one that is barred, always the same for the same logits."""
    return (50 * logits).sin().nan_to_num(-2).argmax(-1)


def own_answer(model, source, longest):
    """What a model answers to one text, reading all anew for every token, to its end."""
    ids = [first_written(model.config)]
    # of a text no token is padding, whatever its id; T5Gemma would say so
    read = {"input_ids": torch.tensor([source]), "attention_mask": torch.ones(1, len(source), dtype=torch.int64)}
    end, padding = (special_token(model.config, kind) for kind in ("eos", "pad"))
    while len(ids) <= longest and end not in ids[1:]:
        with torch.no_grad():
            logits = model(**read, decoder_input_ids=torch.tensor([ids])).logits
        if padding != end:
            logits[..., padding] = -torch.inf
        ids.append(int(taken(logits[0, -1])))
    return ids[1:]


@pytest.mark.parametrize("case", [*one_in(2, ANSWERING[::2]), "roberta2gpt2/EncoderDecoderModel"])
def test_an_encoder_decoder_answers_to_random_tokens_and_to_its_answers(case, monkeypatch):
    monkeypatch.setattr("cobasin.data.writing._drawn", lambda model, logits, generator: taken(logits))
    model = tiny_models.model(case)
    rows = exchanged(model, 24, 12, torch.Generator().manual_seed(0))
    first, second = rows[:12], rows[12:]
    assert {len(row["input_ids"]) for row in first} == {12}
    reads_what_it_writes = getattr(model.config, "share_encoder_decoder_embeddings", True)
    assert ([row["input_ids"] for row in second] == [row["label"] for row in first]) == reads_what_it_writes
    assert min(len(row["label"]) for row in rows) < 11
    assert [row["label"] for row in rows] == [own_answer(model, row["input_ids"], 11) for row in rows]


def test_a_decoder_with_other_tokens_answers_to_random_ones_only():
    model = tiny_models.model("bert2bert/EncoderDecoderModel", dtype=torch.float32)
    assert (model.config.encoder.vocab_size, model.config.decoder.vocab_size) == (37, 40)
    rows = texts([model], 40, 0)
    assert {len(row["input_ids"]) for row in rows} == {32}
    assert max(max(row["input_ids"]) for row in rows) < 37 <= max(max(row["label"]) for row in rows)


@pytest.mark.parametrize(("ends", "answer"), [([7, 8], [5, 8]), (None, [5, 7, 8, 9]), (7, [7]), (0, [5, 0])])
def test_an_answer_has_its_end_and_nothing_behind_it(ends, answer, monkeypatch):
    model = tiny_models.model("t5/T5ForConditionalGeneration")
    assert model.config.pad_token_id == 0
    model.config.eos_token_id = ends
    told = iter(answer)  # and no more is drawn

    def drawn(model, logits, generator):
        assert logits[:, 0].isinf().all() == (ends != 0)
        return torch.tensor([next(told)])

    monkeypatch.setattr("cobasin.data.writing._drawn", drawn)
    (row,) = exchanged(model, 1, 5, torch.Generator())
    assert row["label"] == answer


def test_images_are_made_up_when_they_are_asked_for():
    checkpoint = tiny_models.checkpoint("vit/ViTForImageClassification")
    models = [instantiate(checkpoint, torch.float32)]
    found = Inputs.of(checkpoint, None, 36, 0).batches(models)
    sizes = [len(batch.inputs["pixel_values"]) for batch in found]
    assert sizes == [4] * 9
    first, rest = hold_out(found)
    assert [len(first), len(rest)] == [1, 8]
    assert rest[0].inputs["pixel_values"].equal(found[1].inputs["pixel_values"])
    assert not found[0].inputs["pixel_values"].equal(found[1].inputs["pixel_values"])
    other = Inputs.of(checkpoint, None, 36, 1).batches(models)
    assert not found[0].inputs["pixel_values"].equal(other[0].inputs["pixel_values"])
    last = Inputs.of(checkpoint, None, 34, 0).batches(models)[-1]
    assert len(last.inputs["pixel_values"]) == 2


def test_how_many_texts_are_written_is_said():
    checkpoint = tiny_models.checkpoint("gpt2/GPT2LMHeadModel")
    models = [instantiate(checkpoint, torch.float32) for _ in range(2)]
    said = []
    Inputs.of(checkpoint, None, 140, 0).batches(models, lambda *one: said.append(one))
    assert said == [("writing texts", done, 140) for done in (64, 70, 134, 140)]
