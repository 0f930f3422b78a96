"""Activations at sampled tokens."""

import pytest
import torch
import transformers
from plain_batches import PlainBatches, batch, text_rows

import cobasin
import tiny_models
from cobasin.checkpoints.running import instantiate
from cobasin.checkpoints.typed import Typed
from cobasin.statistics.activations import Activations
from cobasin.statistics.collect import collect
from cobasin.statistics.modules import holders_of
from cobasin.statistics.rows import Tokens

QUERY = "encoder.layer.1.attention.self.query.weight"


def collect_activations(model, batches, rows, seed=0):
    return collect("activations", Typed.of(model), batches, seed=seed, sampled=rows)


def counted(rows):
    return sum(len(row["input_ids"]) for row in rows)


@pytest.fixture(scope="module")
def bert():
    return tiny_models.checkpoint("bert/BertForTokenClassification")


def test_all_tokens_where_there_is_room(bert):
    """The outputs of the layers, as the model returns them, without padding and in the order of the data."""
    rows = text_rows(6, 40)
    found = collect_activations(bert, PlainBatches(rows, 4), 1000)
    model = instantiate(bert, torch.float64)
    with torch.no_grad():
        runs = [model(**batch([row]).inputs, output_hidden_states=True) for row in rows]
    for name, layer in (("embeddings.LayerNorm.weight", 0), ("encoder.layer.1.output.LayerNorm.weight", 2)):
        expected = torch.cat([run.hidden_states[layer][0] for run in runs])
        assert found[name].dtype == torch.float32
        assert torch.allclose(found[name].double(), expected, atol=1e-5)
        assert not torch.allclose(found[name].double(), expected.flip(0), atol=1e-2)
    logits = torch.cat([run.logits[0] for run in runs])
    assert torch.allclose(found["classifier.weight"].double(), logits, atol=1e-5)
    assert found.keys() == {name for name in Typed.of(bert) if name.endswith("weight") and "position" not in name}


def test_a_sample_is_of_the_same_tokens_everywhere(bert):
    rows = text_rows(8, 40)
    everything = collect_activations(bert, PlainBatches(rows, 4), 1000)
    found = collect_activations(bert, PlainBatches(rows, 4), 7)
    at = [int((everything[QUERY] == one).all(1).nonzero()) for one in found[QUERY]]
    assert len(set(at)) == 7
    assert at == sorted(at)
    for name, values in found.items():
        assert torch.equal(values, everything[name][at]), name

    again = collect_activations(bert, PlainBatches(rows, 3), 7)  # the size of the batches plays no part
    other = collect_activations(bert, PlainBatches(rows, 4), 7, seed=1)
    assert torch.allclose(again[QUERY], found[QUERY], atol=1e-6)
    assert not torch.allclose(other[QUERY], found[QUERY], atol=1e-2)
    embedding, twin = "embeddings.word_embeddings.weight", tiny_models.checkpoint("bert/BertForTokenClassification", 1)
    ids = torch.cat([row["input_ids"] for row in rows])[at]
    assert torch.equal(
        collect_activations(twin, PlainBatches(rows, 4), 7)[embedding], Typed.of(twin)[embedding][ids].float()
    )


def test_every_token_is_as_likely():
    """Over seeds, first and last tokens are sampled alike, though they come in other batches."""
    checkpoint, rows = tiny_models.checkpoint("bert/BertModel"), text_rows(6, 40)
    typed, total = Typed.of(checkpoint), counted(rows)
    model = instantiate(checkpoint, torch.float64)
    holders = {QUERY: holders_of(model, typed)[QUERY]}

    def sample(seed, size):
        one, row = Activations(model, holders, size, seed), 0
        for part in PlainBatches(rows, 2):
            one.add(part.inputs, None, row)
            row += 2
        return one.result(row)[QUERY]

    everything, hits = sample(0, 1000), torch.zeros(total)
    for seed in range(40):
        for value in sample(seed, 10):
            hits[(everything == value).all(1)] += 1
    share = hits / 40
    assert abs(share[: total // 2].mean() - share[total // 2 :].mean()) < 0.1
    assert share.min() > 0
    assert share.max() < 0.8


@pytest.mark.parametrize(
    ("case", "patches"), [("vit/ViTForImageClassification", True), ("gpt2/GPT2LMHeadModel", False)]
)
def test_images_and_tied_heads(case, patches):
    checkpoint = tiny_models.checkpoint(case)
    images = [{"pixel_values": torch.randn(3, 8, 8).double()} for _ in range(4)]
    rows = images if patches else text_rows(4, 40)
    found = collect_activations(checkpoint, PlainBatches(rows, 3), 1000)
    if patches:
        typed = Typed.of(checkpoint)
        name = "embeddings.patch_embeddings.projection.weight"
        assert found[name].shape == (4 * 4, typed[name].shape[0])
        assert found["classifier.weight"].shape == (4, 3)
    else:
        typed = Typed.of(checkpoint)
        ids = torch.cat([row["input_ids"] for row in rows])
        assert torch.equal(found["wte.weight"], typed["wte.weight"][ids].float())
        assert "lm_head.weight" not in found


def test_tables_that_are_not_about_tokens():
    """T5's position biases are [length, length, heads]: where a batch has as many rows, they look like outputs."""
    checkpoint, texts = tiny_models.checkpoint("t5/T5EncoderModel"), text_rows(30, 40)
    square = [{name: value[:4] for name, value in row.items()} for row in texts if len(row["input_ids"]) > 3][:4]
    name = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    assert name in Typed.of(checkpoint)
    assert name not in collect_activations(checkpoint, PlainBatches(square, 4), 100)
    assert Tokens(batch(square).inputs).split(torch.ones(4, 4, 2)) is not None
    pair = [{name: value[:2] for name, value in row.items()} for row in square[:2]]
    assert name not in collect_activations(checkpoint, PlainBatches(pair, 2), 100)


def test_a_table_as_long_as_two_texts():
    """DeBERTa's norm of its 16 relative positions, beside two texts of 8 tokens."""
    checkpoint, texts = (
        tiny_models.checkpoint("deberta-v2-shared/DebertaV2ForSequenceClassification"),
        text_rows(30, 40),
    )
    rows = [{name: value[:8] for name, value in row.items()} for row in texts if len(row["input_ids"]) > 7][:2]
    assert Typed.of(checkpoint)["encoder.rel_embeddings.weight"].shape[0] == 2 * 8
    assert Tokens(batch(rows).inputs).split(torch.ones(16, 24)) is not None
    found = collect_activations(checkpoint, PlainBatches(rows, 2), 100)
    assert "encoder.layer.0.output.LayerNorm.weight" in found
    assert not {"encoder.LayerNorm.weight", "encoder.rel_embeddings.weight"} & found.keys()


def test_a_head_without_labels_puts_out_nothing_for_every_row():
    """`torch` cannot tell how many positions there are where there is nothing in any of them."""
    tokens = Tokens({"input_ids": torch.ones(2, 3, dtype=torch.int64)})
    assert tokens.counted(torch.empty(2, 0)).shape == (2, 0)
    assert tokens.counted(torch.empty(2, 3, 0)).shape == (6, 0)
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(**sizes, vocab_size=9, num_labels=0)
    models = [transformers.BertForSequenceClassification(config) for _ in range(2)]
    assert cobasin.match(*models, method="activations", samples=2).report["inputs"]["count"] == 2


@pytest.mark.parametrize("count", [4, 5])
def test_layers_that_have_the_length_first(count):
    """Those of XLNet, whose head has the rows first: of texts of 2, and of as many tokens as there are texts."""
    model = tiny_models.checkpoint("xlnet/XLNetForTokenClassification")
    rows = [{"input_ids": torch.arange(5, 5 + 2 + i % (count - 1))} for i in range(count)]
    rows = [row | {"attention_mask": torch.ones_like(row["input_ids"])} for row in rows]
    found = collect_activations(model, PlainBatches(rows, count), 1000)
    with torch.no_grad():
        runs = [instantiate(model, torch.float64)(**batch([row]).inputs, output_hidden_states=True) for row in rows]
    expected = torch.cat([run.hidden_states[1][0] for run in runs])
    assert torch.allclose(found["layer.0.ff.layer_norm.weight"].double(), expected, atol=1e-5)
    logits = torch.cat([run.logits[0] for run in runs])
    assert torch.allclose(found["classifier.weight"].double(), logits, atol=1e-5)
    grams = collect("grams", Typed.of(model), PlainBatches(rows, count))
    alone = collect("grams", Typed.of(model), PlainBatches(rows, 1))
    assert "layer.1.ff.layer_1.weight" in grams
    for name, gram in grams.items():
        assert torch.allclose(gram.matrix, alone[name].matrix, atol=1e-5)
