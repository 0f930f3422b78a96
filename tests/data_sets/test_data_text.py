"""Text, tokens and their tags, and documents, as models of every task read them."""

from __future__ import annotations

import numpy as np
import pytest
import sentencepiece
import torch
import transformers as T
from data_models import SMALL, bert, jsonl, named, refusal
from tokenizers import ByteLevelBPETokenizer

import tiny_models
from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.checkpoints.limits import length_limit
from cobasin.checkpoints.running import instantiate
from cobasin.data import Batch, DataConfig, batches
from cobasin.data.writing import texts
from cobasin.errors import InputError
from cobasin.evaluation.tasks import evaluate
from cobasin.learning.inputs import Inputs
from real_models import minilm

TEXTS = ["A man is dancing.", "Two", "Is it?"]
LABELLED = [{"text": text, "label": label} for text, label in zip(TEXTS, (1, 0, 1), strict=True)]
TOKENIZER = T.AutoTokenizer.from_pretrained(minilm(), local_files_only=True)


def first(checkpoint, data, **options):
    """The first batch, of all rows in order."""
    options = {"samples": None, "batch_size": 10, "seed": 0, **options}
    return next(iter(batches(checkpoint, data, **options)))


def forward(checkpoint: Checkpoint, batch, **options):
    with torch.no_grad():
        return instantiate(checkpoint, torch.float64)(**batch.inputs, **options)


def test_texts_are_padded_on_the_right_and_padding_does_not_count():
    model = bert()
    batch = first(model, LABELLED)
    assert batch.inputs.keys() == {"input_ids", "attention_mask", "token_type_ids"}
    assert batch.inputs["input_ids"].tolist()[1] == [
        101,
        *TOKENIZER.encode("two", add_special_tokens=False),
        102,
        0,
        0,
        0,
        0,
    ]
    assert batch.inputs["attention_mask"].sum(1).tolist() == [7, 3, 5]
    assert batch.labels.tolist() == [1, 0, 1]
    together = forward(model, batch).logits
    alone = torch.cat([forward(model, first(model, [row])).logits for row in LABELLED])
    assert torch.allclose(together, alone, atol=1e-9)
    batch.inputs["attention_mask"][:] = 1
    assert not torch.allclose(forward(model, batch).logits, alone, atol=1e-9)


def test_pairs():
    row = {"text": "one two", "text_b": "three", "label": 2.5}
    batch = first(bert(num_labels=1), [row])
    assert batch.inputs["input_ids"].tolist() == [TOKENIZER("one two", "three")["input_ids"]]
    assert batch.inputs["token_type_ids"].tolist() == [[0, 0, 0, 0, 1, 1]]
    assert batch.labels.dtype == torch.float32
    assert batch.labels.tolist() == [2.5]


def test_texts_are_cut_to_the_models_limit(tmp_path):
    long = {"text": "word " * 100, "label": 0}
    assert first(bert(), [long]).inputs["input_ids"].shape == (1, 64)
    path = jsonl(tmp_path / "a.jsonl", long)
    assert first(bert(), DataConfig(path=path, max_length=9)).inputs["input_ids"].shape == (1, 9)
    message = refusal(first, bert(), DataConfig(path=path, max_length=65))
    assert message.startswith("max_length 65: ")
    assert message.endswith(" reads 64 tokens at most")


def test_multi_label(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", {"text": "x", "labels": ["joy", "rage"]}, {"text": "y", "labels": []})
    model = bert(problem_type="multi_label_classification", **named("joy", "anger", "love"))
    data = DataConfig(path=path, labels={"rage": "anger"}, annotated=["joy", "rage"])
    labels = first(model, data).labels
    assert labels.dtype == torch.float32
    assert labels.nan_to_num(-1).tolist() == [[1, 1, -1], [0, 0, -1]]
    assert "'annotated': label 'fear' is none" in refusal(first, model, data.model_copy(update={"annotated": ["fear"]}))


def test_rows_without_labels_have_none():
    assert first(bert(), [{"text": "x"}]).labels is None
    batch = first(bert("Model"), LABELLED)
    assert batch.labels is None
    assert forward(bert("Model"), batch).last_hidden_state.shape[:2] == (3, 7)


@pytest.mark.parametrize("role", ["text_b", "label"])
def test_what_the_first_row_has_not_no_row_may_have(role):
    rows = [{"text": "x", "label": 0}, {"text": "y", "label": 1, "text_b": "z"}]
    if role == "label":
        rows = [{"text": "x"}, {"text": "y", "label": None}, {"text": "y", "label": 1}]
    assert f"has {role}, which the first row has not" in refusal(first, bert(), rows)


TAGS = named("O", "B-PER", "I-PER")


def test_a_tag_is_that_of_a_words_first_token():
    rows = [{"tokens": ["Hello", "Wworldly", "x"], "tags": ["O", "B-PER", "I-PER"]}, {"tokens": ["a"], "tags": ["O"]}]
    batch = first(bert("ForTokenClassification", **TAGS), rows)
    assert batch.inputs["input_ids"].shape == batch.labels.shape == (2, 7)
    assert batch.labels.tolist() == [[-100, 0, 1, -100, -100, 2, -100], [-100, 0, -100, -100, -100, -100, -100]]
    assert forward(bert("ForTokenClassification", **TAGS), batch, labels=batch.labels).loss.isfinite()
    # words that are cut off lose their tags, models of other tasks read the words
    cut = first(bert("ForTokenClassification", max_position_embeddings=4, **TAGS), rows)
    assert cut.labels.tolist() == [[-100, 0, 1, -100], [-100, 0, -100, -100]]
    assert torch.equal(first(bert("Model"), rows).inputs["input_ids"], batch.inputs["input_ids"])
    assert first(bert("ForTokenClassification", **TAGS), [{"text": "x", "tags": ["O"]}]).labels is None


def test_tags_of_given_ids():
    rows = [{"input_ids": [5, 6, 7], "tags": [-100, "B-PER", 0]}]
    assert first(bert("ForTokenClassification", **TAGS), rows).labels.tolist() == [[-100, 1, 0]]


def test_tags_of_padded_ids():
    row = {"input_ids": [5, 6, 7, 0, 0], "attention_mask": [1, 1, 1, 0, 0]}
    rows = [
        {**row, "tags": [0, 1, 2, -100, -100]},
        {**row, "tags": [0, 1, 2]},
        {"input_ids": [0, 5, 6, 7], "attention_mask": [0, 1, 1, 1], "tags": np.array([-100, 0, 1, 2])},
    ]
    batch = first(bert("ForTokenClassification", **TAGS), rows)
    assert batch.inputs["input_ids"].tolist() == [[5, 6, 7]] * 3
    assert batch.labels.tolist() == [[0, 1, 2]] * 3
    message = refusal(first, bert("ForTokenClassification", **TAGS), [{**row, "tags": [0, 1, 2, -100]}])
    assert message == "rows[0]: has 3 tokens and 4 tags; expected a tag a token"


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory):
    """A folder with a byte-level tokenizer, as RoBERTa's."""
    folder = tmp_path_factory.mktemp("roberta")
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(["hello world"] * 9, vocab_size=300, special_tokens=special, show_progress=False)
    trained.save_model(str(folder))
    T.RobertaTokenizer.from_pretrained(folder).save_pretrained(folder)
    return folder


def roberta(folder, head, **options):
    config = T.RobertaConfig(**SMALL, vocab_size=300, max_position_embeddings=20, pad_token_id=1, **options)
    config.save_pretrained(folder)
    model = load(getattr(T, f"Roberta{head}")(config))
    model.folder = folder
    return model


def test_byte_level_words_and_positions_behind_the_padding(byte_level):
    model = roberta(byte_level, "ForTokenClassification", **TAGS)
    batch = first(model, [{"tokens": ["hello", "world"], "tags": ["O", "B-PER"]}, {"tokens": ["x"], "tags": ["O"]}])
    assert batch.labels[0, 1] == 0
    assert (batch.labels == 1).sum() == 1
    assert batch.inputs["input_ids"][1, -1] == 1
    long = first(model, [{"tokens": ["hello"] * 40, "tags": ["O"] * 40}])
    assert long.inputs["input_ids"].shape == (1, 18)
    forward(model, long)
    with pytest.raises((IndexError, RuntimeError)):  # one more has no position
        forward(model, type(long)({"input_ids": torch.full((1, 19), 5)}, None))


@pytest.mark.parametrize(
    "case",
    [
        "data2vec-text/Data2VecTextForMaskedLM",
        "mpnet/MPNetForMaskedLM",
        "longformer/LongformerForMaskedLM",
        "esm-1b/EsmForMaskedLM",
        "layoutlmv3/LayoutLMv3ForTokenClassification",
        "altclip-text/AltCLIPTextModel",
        "mpt/MptForCausalLM",
    ],
)
def test_as_many_tokens_as_there_are_positions(case):
    """In some families they begin behind the padding; MPT has as many as its ALiBi."""
    model = tiny_models.checkpoint(case)
    limit = length_limit(model.config, model.architecture)
    inputs = torch.full((1, limit + 1), 5)
    forward(model, Batch({"input_ids": inputs[:, :limit]}, None))
    with pytest.raises((IndexError, RuntimeError)):
        forward(model, Batch({"input_ids": inputs}, None))


@pytest.mark.parametrize(("head", "limit"), [("ForConditionalGeneration", 20), ("ForQuestionAnswering", 18)])
def test_tables_of_positions_that_differ(head, limit):
    """The decoder reads what the encoder reads, and has fewer; or it reads a text of its own."""
    model = tiny_models.checkpoint(f"led/LED{head}")
    assert length_limit(model.config, model.architecture) == limit
    if head == "ForConditionalGeneration":  # what it writes has 18 positions, of which one is left
        forward(model, first(model, [{"input_ids": [5] * 17, "label": [6] * 17}]))
        with pytest.raises(InputError, match="expected at most 17"):
            first(model, [{"input_ids": [5] * 20, "label": [6] * 18}])


def test_documents_are_cut_into_blocks(tmp_path):
    (tmp_path / "a.txt").write_text("one two three\n\nfour five six seven")
    data = DataConfig(path=str(tmp_path / "a.txt"), block=6)
    batch = first(bert("LMHeadModel", is_decoder=True), data)
    ids = [TOKENIZER.encode(text) for text in ("one two three four", "five six seven")]
    assert batch.inputs["input_ids"].tolist() == [ids[0], [*ids[1], 0]]
    assert batch.labels.tolist() == [ids[0], [*ids[1], -100]]
    long = refusal(first, bert("LMHeadModel", is_decoder=True), data.model_copy(update={"block": 65}))
    assert long.startswith("block 65: ")
    path = jsonl(tmp_path / "a.jsonl", {"text": "one two"}, {"text": " "}, {"text": "three"})
    assert len(first(bert("LMHeadModel", is_decoder=True), DataConfig(path=path)).labels) == 2


def test_given_ids_need_no_tokenizer():
    model = tiny_models.checkpoint("gpt2/GPT2LMHeadModel")
    document = [{"input_ids": list(range(40)) * 2}, {"input_ids": torch.arange(5), "attention_mask": [0, 1, 1, 1, 0]}]
    limit = model.config.max_position_embeddings
    batch = first(model, document)
    assert batch.inputs["input_ids"].shape[1] == limit
    assert batch.inputs["input_ids"][-1].tolist() == [1, 2, 3] + [0] * (limit - 3)
    assert batch.labels[-1].tolist() == [1, 2, 3] + [-100] * (limit - 3)
    # the model shifts the labels itself
    loss = forward(model, batch, labels=batch.labels).loss
    logits = forward(model, batch).logits[:, :-1].flatten(0, 1)
    assert torch.allclose(loss.double(), torch.nn.functional.cross_entropy(logits, batch.labels[:, 1:].flatten()))


def test_labels_beside_given_ids_say_what_is_predicted():
    """As rows for fine-tuning on answers have them, with -100 on the question."""
    model = tiny_models.checkpoint("gpt2/GPT2LMHeadModel")
    rows = [
        {"input_ids": [5, 6, 7, 8], "labels": [-100, -100, 7, 8]},
        {"input_ids": [3, 4, 0, 0], "attention_mask": [1, 1, 0, 0], "labels": np.array([3, -100, -100, -100])},
    ]
    batch = first(model, rows)
    assert batch.inputs["input_ids"].tolist()[1][:2] == [3, 4]
    assert batch.labels.tolist() == [[-100, -100, 7, 8], [3, -100, -100, -100]]
    logits = forward(model, batch).logits[0, 1:3]
    measured = evaluate(instantiate(model, torch.float64).eval(), [batch], "causal_lm").loss
    assert measured == pytest.approx(float(torch.nn.functional.cross_entropy(logits, torch.tensor([7, 8]))))
    for labels in ([-100, 7], 3, [5, 6, 7, 7], ["a"] * 4):
        line = refusal(first, model, [{**rows[0], "labels": labels}])
        assert line.startswith(f"rows[0]: labels are {labels!r}; expected input_ids again, or -100 where nothing is")


def test_fewer_texts_made_up_than_there_are_decoders(monkeypatch):
    monkeypatch.setattr("cobasin.data.writing.LONGEST", 12)
    models = [tiny_models.model("gpt2/GPT2LMHeadModel")] * 3
    assert [len(row["input_ids"]) for row in texts(models, 2, 0)] == [12, 12]


def test_masks_are_those_of_bert_and_the_same_every_time():
    model = bert("ForMaskedLM")
    rows = [{"text": " ".join(["word"] * 60)}] * 40
    made = batches(model, rows, samples=None, batch_size=10, seed=3)
    found = list(made)
    ids, labels = (torch.cat(parts) for parts in zip(*((b.inputs["input_ids"], b.labels) for b in found), strict=True))
    chosen = labels != -100
    word, mask = TOKENIZER.convert_tokens_to_ids(["word", "[MASK]"])
    assert (labels[chosen] == word).all()
    assert not chosen[:, [0, -1]].any()  # special tokens
    assert 0.12 < chosen[:, 1:-1].float().mean() < 0.18
    assert 0.7 < (ids[chosen] == mask).float().mean() < 0.9
    assert 0.05 < (ids[chosen] == word).float().mean() < 0.15
    assert torch.equal(next(iter(made.skip(2))).labels, found[2].labels)
    assert not torch.equal(found[1].labels, found[2].labels)
    other = first(model, rows, seed=4)
    assert not torch.equal(other.labels, found[0].labels)
    forward(model, found[0], labels=found[0].labels)


SEQ2SEQ = [{"input_ids": [5, 6, 7, 1], "label": [8, 9, 10, 1]}, {"input_ids": [5, 1], "label": [8, 1]}]


@pytest.mark.parametrize(
    "case", ["t5/T5ForConditionalGeneration", "bart/BartForConditionalGeneration", "marian/MarianMTModel"]
)
def test_a_decoder_reads_the_target_moved_by_one(case):
    model = tiny_models.checkpoint(case)
    pad, start = model.config.pad_token_id, model.config.decoder_start_token_id
    batch = first(model, SEQ2SEQ)
    assert batch.inputs["input_ids"].shape == (2, 4)
    # another length than the encoder's
    assert batch.inputs["decoder_input_ids"].tolist() == [[start, 8, 9, 10, pad], [start, 8, pad, pad, pad]]
    assert batch.inputs["decoder_attention_mask"].tolist() == [[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]]
    assert batch.labels.tolist() == [[8, 9, 10, 1, -100], [8, 1, -100, -100, -100]]
    inputs = {"input_ids": batch.inputs["input_ids"], "attention_mask": batch.inputs["attention_mask"]}
    own = forward(model, type(batch)(inputs, None), labels=batch.labels[:, :4].contiguous()).loss
    assert torch.allclose(forward(model, batch, labels=batch.labels).loss, own)
    longest = first(model, [{"input_ids": [5] * 20, "label": [6] * 19}])
    assert longest.inputs["decoder_input_ids"].shape == (1, 19)
    forward(model, longest)


def test_target_ids_that_are_padded_for_the_loss():
    model = tiny_models.checkpoint("t5/T5ForConditionalGeneration")
    padded = [{**row, "label": [*row["label"], -100, -100]} for row in SEQ2SEQ]
    batch, expected = first(model, padded), first(model, SEQ2SEQ)
    assert torch.equal(batch.labels, expected.labels)
    assert torch.equal(batch.inputs["decoder_input_ids"], expected.inputs["decoder_input_ids"])
    for label in ([-100, -100], [8, -100, 1]):
        message = refusal(first, model, [{"input_ids": [5], "label": label}])
        assert message.startswith("rows[0]: token id -100 is outside the vocabulary of ")


def test_a_target_has_the_vocabulary_that_the_model_writes():
    model = tiny_models.checkpoint("marian-two-vocabularies/MarianMTModel")
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (40, 30)
    assert first(model, [{"input_ids": [35], "label": [29]}]).labels.tolist() == [[29, -100]]
    message = refusal(first, model, [{"input_ids": [35], "label": [30]}])
    assert message == "rows[0]: token id 30 is outside the vocabulary of 30"
    model.config.decoder_vocab_size = 50
    assert first(model, [{"input_ids": [35], "label": [49]}]).labels.tolist() == [[49, -100]]


def test_bare_encoder_decoders_and_the_language_in_front():
    bare = first(tiny_models.checkpoint("t5/T5Model"), SEQ2SEQ)
    assert "decoder_input_ids" in bare.inputs
    assert bare.labels is None
    for case in ("mbart/MBartForConditionalGeneration", "plbart/PLBartForConditionalGeneration"):
        multilingual = first(tiny_models.checkpoint(case), SEQ2SEQ)
        assert multilingual.inputs["decoder_input_ids"][0, :4].tolist() == [1, 8, 9, 10]
    headless = tiny_models.checkpoint("t5/T5ForConditionalGeneration")
    headless.config.decoder_start_token_id = None
    assert "no decoder_start_token_id" in refusal(first, headless, SEQ2SEQ)
    assert "no column 'label'" in refusal(first, tiny_models.checkpoint("t5/T5Model"), [{"input_ids": [5]}])


@pytest.mark.parametrize("case", ["bart/BartForSequenceClassification", "t5/T5ForSequenceClassification"])
def test_a_classifier_that_decodes_looks_for_the_end_of_every_text(case):
    model = tiny_models.checkpoint(case)
    end = model.config.eos_token_id
    rows = [{"input_ids": [5, 6, end], "label": 0}, {"input_ids": [5, end, 6, end], "label": 1}]
    assert refusal(first, model, rows).startswith(
        f"rows[1]: has 2 tokens of id {end}, which ends a text; expected 1, as"
    )
    assert "rows[0]: has 0 tokens" in refusal(first, model, [{"input_ids": [5, 6], "label": 0}])
    forward(model, first(model, [rows[0], {"input_ids": [7, end], "label": 1}]))


@pytest.mark.parametrize("case", ["bart/BartForQuestionAnswering", "t5/T5ForQuestionAnswering"])
def test_a_decoder_that_looks_for_an_answer_reads_the_same_text(case):
    model = tiny_models.checkpoint(case)
    batch = first(model, [{"input_ids": [5, 6, 7]}, {"input_ids": [8]}])
    assert batch.inputs.keys() == {"input_ids", "attention_mask"}
    assert forward(model, batch).start_logits.shape == (2, 3)


def test_targets_as_text():
    torch.manual_seed(0)
    config = T.BartConfig(
        vocab_size=30522, d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=8, decoder_ffn_dim=8, max_position_embeddings=12,
    )  # fmt: skip
    model = load(T.BartForConditionalGeneration(config))
    model.folder = minilm()
    batch = first(model, [{"text": "one two", "label": "two"}, {"text": "one", "label": "word " * 50}])
    assert batch.labels[0, :3].tolist() == TOKENIZER.encode("two")
    assert batch.labels.shape == (2, 11)
    full = first(model, [{"text": "word " * 50, "label": "word " * 50}])
    assert full.inputs["input_ids"].shape == (1, 12)
    forward(model, full)
    assert "[1]: label is 3; expected a string" in refusal(
        first, model, [{"text": "x", "label": "y"}, {"text": "x", "label": 3}]
    )


def test_a_decoder_that_classifies_tells_padding_by_its_id():
    model = tiny_models.checkpoint("mistral/MistralForSequenceClassification")
    rows = [{"input_ids": [5, 6, 7], "label": 1}, {"input_ids": [8], "label": 0}]
    model.config.pad_token_id = None
    assert "no pad_token_id" in refusal(first, model, rows)
    assert first(model, rows, batch_size=1).inputs["input_ids"].tolist() == [[5, 6, 7]]
    model.config.pad_token_id = 3
    batch = first(model, rows)
    assert batch.inputs["input_ids"].tolist() == [[5, 6, 7], [8, 3, 3]]
    alone = torch.cat([forward(model, first(model, [row])).logits for row in rows])
    assert torch.allclose(forward(model, batch).logits, alone, atol=5e-6)


def test_a_text_without_tokens_is_named(byte_level, tmp_path):
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes((byte_level / name).read_bytes())
    model = load(T.GPT2Model(T.GPT2Config(vocab_size=300, n_embd=8, n_head=2, n_layer=1, n_positions=20)))
    model.config.save_pretrained(tmp_path)
    model.folder = tmp_path
    assert first(model, [{"text": "hello"}]).inputs["input_ids"].shape[1] > 0
    message = refusal(first, model, [{"text": "hello"}, {"text": ""}])
    assert message == "rows[1]: a text without tokens; leave it out"


@pytest.mark.parametrize(
    ("head", "rows", "what"),
    [
        ("ForSequenceClassification", [{"text": "cut \ud83d"}], "text"),
        ("ForSequenceClassification", [{"text": "a", "text_b": "cut \ud83d"}], "text_b"),
        ("ForTokenClassification", [{"tokens": ["a", "cut\ud83d"]}], r"token 'cut\ud83d'"),
        ("ForMaskedLM", [{"text": "cut \ud83d"}], "text"),
    ],
)
def test_half_of_a_character_is_named(head, rows, what):
    message = refusal(first, bert(head), rows)
    assert message == f"rows[0]: {what} has half of a character ('\\ud83d'); repair it, or leave it out"


def test_a_tokenizer_of_sentencepiece_alone(tmp_path):
    """As DeBERTa-v3's folders have it, without tokenizer.json."""
    special = {"pad": "[PAD]", "bos": "[CLS]", "eos": "[SEP]", "unk": "[UNK]"}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the quick brown fox jumps over the lazy dog", "hello there, fox"] * 20),
        model_prefix=str(tmp_path / "spm"),
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
        user_defined_symbols=["[MASK]"],
        **{f"{name}_piece": piece for name, piece in special.items()},
        **{f"{name}_id": number for number, name in enumerate(special)},
    )
    config = T.DebertaV2Config(**SMALL, vocab_size=80, num_labels=2)
    model = load(T.DebertaV2ForSequenceClassification(config))
    config.save_pretrained(tmp_path)
    model.folder = tmp_path
    ids = first(model, [{"text": "lazy fox"}, {"text": "hello"}]).inputs["input_ids"]
    assert ids[:, 0].tolist() == [1, 1]
    assert 2 < int((ids[0] != 0).sum()) < 12


def test_a_tokenizer_that_cannot_tell_words(tmp_path):
    T.ByT5Tokenizer().save_pretrained(tmp_path)
    message = "does not tell which token is of which word or block"
    for head, row in (("ForTokenClassification", {"tokens": ["a"]}), ("LMHeadModel", {"text": "a"})):
        assert message in refusal(first, bert(head, folder=tmp_path), [row])
    assert first(bert("Model", folder=tmp_path), [{"text": "ab"}]).inputs["input_ids"].tolist() == [[100, 101, 1]]


@pytest.mark.parametrize("kind", ["last", "cls_index", "first"])
def test_a_text_that_is_summed_up_at_one_end_is_padded_at_the_other(kind):
    model = tiny_models.checkpoint("xlnet/XLNetForSequenceClassification")
    model.config.summary_type = kind
    rows = [{"input_ids": [5, 6, 7], "label": 1}, {"input_ids": [8], "label": 0}]
    batch = first(model, rows)
    assert batch.inputs["input_ids"][1].tolist() == ([8, 5, 5] if kind == "first" else [5, 5, 8])
    assert batch.inputs["attention_mask"].sum(1).tolist() == [3, 1]
    alone = torch.cat([forward(model, first(model, [row])).logits for row in rows])
    assert torch.allclose(forward(model, batch).logits, alone, atol=5e-6)


@pytest.mark.parametrize(
    ("family", "kind"), [("xlm/XLM", "last"), ("flaubert/Flaubert", "mean"), ("xlnet/XLNet", "mean")]
)
def test_a_summary_that_takes_padding_for_text_is_of_one_row(family, kind):
    model = tiny_models.checkpoint(f"{family}ForSequenceClassification")
    rows = [{"input_ids": [5, 6, 7], "label": 1}, {"input_ids": [8], "label": 0}]
    if family != "xlnet/XLNet":
        assert first(model, rows).inputs["input_ids"].shape == (2, 3)  # sums up at the first token
    model.config.summary_type = kind
    assert f"(summary_type: {kind})" in refusal(first, model, rows)
    assert first(model, rows, batch_size=1).inputs["input_ids"].tolist() == [[5, 6, 7]]
    learned_from = Inputs.of(model, 9 * rows, None, 0)  # where nobody says how many are read at a time
    assert (learned_from.size, len(learned_from.batches([]))) == (1, 18)
