"""What models made of two others read: the encoder texts or pictures, the decoder what is written to these."""

import numpy as np
import pytest
import torch
import transformers as T
from data_models import SMALL, refusal
from test_data_text import first, forward

import tiny_models
from cobasin.architectures.parts import sides
from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.typed import Typed
from cobasin.data import batches
from cobasin.statistics.collect import collect
from real_models import minilm

BERTS, MIXED = "bert2bert/EncoderDecoderModel", "roberta2gpt2/EncoderDecoderModel"
TEXTS = [{"input_ids": [5, 6, 7], "label": [8, 9, 10]}, {"input_ids": [5, 4], "label": [8, 9]}]


def pictures(model, *labels):
    tower = model.config.encoder
    shape = (*sides(tower.image_size), tower.num_channels)
    return [{"image": np.random.default_rng(i).random(shape), "label": ids} for i, ids in enumerate(labels)]


def same_loss_as_its_own(model, batch):
    """As of a model that is given the labels only, and moves them itself."""
    reads = {name: x for name, x in batch.inputs.items() if not name.startswith("decoder_")}
    own = forward(model, type(batch)(reads, None), labels=batch.labels).loss
    return torch.allclose(forward(model, batch, labels=batch.labels).loss, own)


@pytest.mark.filterwarnings("ignore:Version v4.12.0 introduces:FutureWarning")
@pytest.mark.parametrize("case", [BERTS, MIXED])
def test_texts_and_what_is_written_to_them(case):
    model = tiny_models.checkpoint(case)
    batch = first(model, TEXTS)
    assert batch.inputs["decoder_input_ids"].tolist() == [[3, 8, 9, 0], [3, 8, 0, 0]]
    assert batch.labels.tolist() == [[8, 9, 10, -100], [8, 9, -100, -100]]
    assert same_loss_as_its_own(model, batch)
    batch.labels[0, 0] = 11
    reads = {name: x for name, x in batch.inputs.items() if not name.startswith("decoder_")}
    own = forward(model, type(batch)(reads, None), labels=batch.labels).loss
    assert not torch.allclose(forward(model, batch, labels=batch.labels).loss, own)


@pytest.mark.parametrize(
    "case", [f"{name}/VisionEncoderDecoderModel" for name in ("trocr", "trocr-sines-untied", "vit2gpt2", "donut")]
)
def test_pictures_and_what_is_written_to_them(case):
    model = tiny_models.checkpoint(case)
    batch = first(model, pictures(model, [8, 9, 10], [8])).to(torch.device("cpu"), torch.float64)
    assert batch.inputs.keys() == {"pixel_values", "decoder_input_ids", "decoder_attention_mask"}
    assert batch.inputs["decoder_attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert same_loss_as_its_own(model, batch)


def test_answers_are_never_as_long_as_pictures():
    for case, positions in (("trocr", (4, 5)), ("trocr-sines-untied", (4, 5, 6)), ("donut", (24, 25, 6, 7))):
        model = tiny_models.checkpoint(f"{case}/VisionEncoderDecoderModel")
        for length in positions:
            found = first(model, pictures(model, [8] * length, [9])).inputs["decoder_attention_mask"]
            assert found.shape[1] == max(position for position in positions if position < length + 3) + 1
            assert found.sum(1).tolist() == [length, 1]


@pytest.mark.parametrize(("positions", "longest"), [(5, 2), (6, 5), (7, 6)])
def test_the_longest_answer_to_a_picture_has_positions(positions, longest):
    made = tiny_models.config("trocr/VisionEncoderDecoderModel")  # pictures have 4 or 5
    made.decoder.max_position_embeddings = positions
    model = load(T.VisionEncoderDecoderModel(made))
    batch = first(model, pictures(model, [8] * longest))
    assert forward(model, batch).logits.isfinite().all()
    message = refusal(first, model, pictures(model, [8] * (longest + 1)))
    assert message.endswith(f"expected at most {longest}")


def test_tokens_that_count_are_told_from_positions_of_pictures():
    model = tiny_models.checkpoint("trocr/VisionEncoderDecoderModel")
    rows = pictures(model, [8, 9, 10], [8])
    found = collect(
        "activations", Typed.of(model), batches(model, rows, samples=None, batch_size=2, seed=0), sampled=99
    )
    assert len(found["encoder.encoder.layer.0.intermediate.dense.weight"]) == 10
    assert len(found["decoder.model.decoder.layers.0.fc1.weight"]) == 4
    assert len(found["decoder.model.decoder.layers.0.encoder_attn.k_proj.weight"]) == 10


def test_the_segments_of_a_text_reach_its_encoder():
    options = {**SMALL, "vocab_size": 30522, "max_position_embeddings": 64}
    decoder = T.BertConfig(**options, is_decoder=True, add_cross_attention=True)
    config = T.EncoderDecoderConfig.from_encoder_decoder_configs(T.BertConfig(**options), decoder)
    config.decoder_start_token_id, config.pad_token_id = 101, 0
    model = load(T.EncoderDecoderModel(config))
    model.folder = minilm()
    batch = first(model, [{"text": "a small word", "text_b": "another", "label": "words"}])
    assert batch.inputs["token_type_ids"].sum() == 2
    assert batch.labels[0, 0] == 101
    told = forward(model, batch).logits
    batch.inputs["token_type_ids"].zero_()
    assert not torch.allclose(forward(model, batch).logits, told)


def test_one_tokenizer_does_not_know_two_vocabularies():
    model = tiny_models.checkpoint(BERTS)
    model.folder = minilm()
    message = refusal(first, model, [{"input_ids": [5], "label": "a word"}])
    assert "reads 37 tokens and writes others, 40" in message
    assert first(model, [{"input_ids": [36], "label": [39]}]).labels.tolist() == [[39, -100]]
    assert refusal(first, model, [{"input_ids": [37], "label": [39]}]).endswith("outside the vocabulary of 37")
    assert refusal(first, model, [{"input_ids": [36], "label": [40]}]).endswith("outside the vocabulary of 40")


def test_texts_and_answers_are_as_long_as_each_side_allows():
    model = tiny_models.checkpoint(BERTS)
    model.config.decoder.max_position_embeddings = 6
    first(model, [{"input_ids": [5] * 32, "label": [6] * 5}])
    assert "has 6 tokens in label; expected at most 5" in refusal(first, model, [{"input_ids": [5], "label": [6] * 6}])
    model.config.decoder_start_token_id = None
    assert "no decoder_start_token_id" in refusal(first, model, TEXTS)
    model.config.decoder.decoder_start_token_id = 4
    assert first(model, TEXTS).inputs["decoder_input_ids"][0].tolist() == [4, 8, 9, 0]
