"""Input Grams against the definition, row by row and without padding."""

import pytest
import torch
from plain_batches import PlainBatches, batch, text_rows

import tiny_models
from cobasin.checkpoints.running import instantiate
from cobasin.checkpoints.typed import Typed
from cobasin.statistics.collect import collector
from cobasin.statistics.grams import add_tokens
from cobasin.statistics.rows import unpadded

CPU = torch.device("cpu")


def grams(typed, batches):
    sums = collector("grams", typed, CPU)
    row = 0
    for one in batches:
        sums.add(one.inputs, one.labels, row)
        row += len(one.inputs[next(iter(one.inputs))])
    return sums.result(row)


def second_moment(xs):
    """Mean of x̃ x̃ᵀ over a list of inputs [..., n], written out."""
    x = torch.cat([x.reshape(-1, x.shape[-1]) for x in xs])
    x = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], dim=1)
    return torch.stack([torch.outer(one, one) for one in x]).mean(0)


def test_a_sum_of_parts_is_the_mean_over_all():
    x = torch.randn(11, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    total = torch.zeros(5, 5, dtype=torch.float64)
    for part in x.split(3):
        add_tokens(total, part)
    assert total[-1, -1] == 11
    assert torch.allclose(total / 11, second_moment([x]), rtol=1e-12)
    assert torch.allclose(total[:-1, -1] / 11, x.mean(0))
    assert not torch.allclose(total / 11, second_moment([x[:9]]), rtol=1e-3)


@pytest.mark.parametrize(
    ("case", "read"),
    [
        (
            "bert/BertForSequenceClassification",
            {
                "encoder.layer.1.attention.self.key.weight": lambda r: r.hidden_states[1],
                "encoder.layer.0.attention.self.value.weight": lambda r: r.hidden_states[0],
                "pooler.dense.weight": lambda r: r.hidden_states[-1][:, 0],
            },
        ),
        ("llama-gqa/LlamaForCausalLM", {"lm_head.weight": lambda r: r.hidden_states[-1]}),
        ("gpt2-untied/GPT2LMHeadModel", {"lm_head.weight": lambda r: r.hidden_states[-1]}),
        ("vit/ViTForImageClassification", {"classifier.weight": lambda r: r.last_hidden_state[:, 0]}),
    ],
)
def test_inputs_that_the_model_returns(case, read):
    typed = Typed.of(tiny_models.checkpoint(case))
    rows = rows_for(case, 7)
    found = grams(typed, PlainBatches(rows, 3))
    model = instantiate(typed.checkpoint, torch.float64)
    model = model.base_model if case.startswith("vit") else model
    with torch.no_grad():
        runs = [model(**batch([row]).inputs, output_hidden_states=True) for row in rows]
    for name, what in read.items():
        expected = second_moment([what(run) for run in runs])
        assert torch.allclose(found[name].matrix, expected, rtol=1e-6, atol=1e-8), name
        assert found[name].axis == 1
        less = second_moment([what(run) for run in runs[:-1]])
        assert not torch.allclose(found[name].matrix, less, rtol=1e-3)


def test_a_map_laid_out_the_other_way():
    """GPT-2's Conv1D has its inputs along the first axis; it reads the normed stream."""
    typed = Typed.of(tiny_models.checkpoint("gpt2/GPT2LMHeadModel"))
    rows = text_rows(5, 40)
    found = grams(typed, PlainBatches(rows, 2))["h.1.attn.c_attn.weight"]
    model = instantiate(typed.checkpoint, torch.float64)
    with torch.no_grad():
        streams = [model(**batch([row]).inputs, output_hidden_states=True).hidden_states[1] for row in rows]
        expected = second_moment([model.transformer.h[1].ln_1(stream) for stream in streams])
    assert torch.allclose(found.matrix, expected, rtol=1e-6, atol=1e-8)
    assert not torch.allclose(found.matrix, second_moment(streams), rtol=1e-2)
    assert typed["h.1.attn.c_attn.weight"].shape[found.axis] + 1 == len(found.matrix)
    assert found.axis == 0


CASES = [
    "bert/BertForTokenClassification",
    "deberta-v2-shared/DebertaV2ForSequenceClassification",
    "albert/AlbertForMaskedLM",
    "roberta/RobertaForSequenceClassification",
    "gpt2/GPT2LMHeadModel",
    "opt/OPTForCausalLM",
    "gptneox/GPTNeoXForTokenClassification",
    "llama-gqa/LlamaForCausalLM",
    "modernbert/ModernBertForSequenceClassification",
    "t5/T5ForConditionalGeneration",
    "bart/BartForConditionalGeneration",
    "t5/T5ForSequenceClassification",
    "mixtral/MixtralForCausalLM",
    "vit/ViTForImageClassification",
]


def rows_for(case, count=6):
    """Rows of different lengths that the model of a case reads, on both sides where it has two."""
    if case.startswith("vit"):
        generator = torch.Generator().manual_seed(0)
        return [{"pixel_values": torch.randn(3, 8, 8, generator=generator).double()} for _ in range(count)]
    rows = text_rows(count, 40)
    if case.startswith(("t5/T5ForSeq", "bart/BartForSeq")):
        for row in rows:
            row["input_ids"][-1] = 1
    elif case.startswith(("t5", "bart")):
        for row, other in zip(rows, text_rows(count, 40, seed=1), strict=True):
            row["decoder_input_ids"] = torch.cat([other["input_ids"], torch.tensor([6] * 9)])
            row["decoder_attention_mask"] = torch.ones_like(row["decoder_input_ids"])
    return rows


@pytest.mark.parametrize("case", CASES)
def test_padding_does_not_count(case):
    typed = Typed.of(tiny_models.checkpoint(case))
    rows = rows_for(case)
    padded, single = grams(typed, PlainBatches(rows, 4)), grams(typed, PlainBatches(rows, 1))
    assert padded.keys() == single.keys()
    assert len(padded) >= 8
    for name, gram in padded.items():
        assert torch.allclose(gram.matrix, single[name].matrix, rtol=1e-5, atol=1e-6), name
        assert gram.matrix.shape == (typed[name].shape[gram.axis] + 1,) * 2
        assert gram.matrix.dtype == torch.float64
    if case.startswith("vit"):
        return
    blind = [dict(one, **{"attention_mask": torch.ones_like(one["input_ids"])}) for one in [batch(rows).inputs]]
    counted = grams(typed, [type("Batch", (), {"inputs": blind[0], "labels": None})])
    name = next(iter(padded))
    assert not torch.allclose(counted[name].matrix, padded[name].matrix, rtol=1e-3)


def test_the_sides_of_an_encoder_decoder():
    """Cross-attention reads its keys from the encoder and its queries from the decoder."""
    case = "t5/T5ForConditionalGeneration"
    typed = Typed.of(tiny_models.checkpoint(case))
    rows = rows_for(case, 3)
    found = grams(typed, PlainBatches(rows, 3))
    model = instantiate(typed.checkpoint, torch.float64)
    with torch.no_grad():
        runs = [model(**batch([row]).inputs, output_hidden_states=True) for row in rows]
    encoded = second_moment([run.encoder_last_hidden_state for run in runs])
    for layer in range(2):
        matrix = found[f"decoder.block.{layer}.layer.1.EncDecAttention.v.weight"].matrix
        assert torch.allclose(matrix, encoded, rtol=1e-5, atol=1e-6)
    query = found["decoder.block.0.layer.1.EncDecAttention.q.weight"].matrix
    assert not torch.allclose(query, encoded, rtol=1e-2)


@pytest.mark.parametrize(
    ("case", "together", "apart"),
    [
        (
            "bert/BertForSequenceClassification",
            [f"encoder.layer.0.attention.self.{part}.weight" for part in ("query", "key", "value")],
            "encoder.layer.0.attention.output.dense.weight",
        ),
        (
            "llama-gqa/LlamaForCausalLM",
            ["layers.1.mlp.gate_proj.weight", "layers.1.mlp.up_proj.weight"],
            "layers.1.self_attn.q_proj.weight",
        ),
        (
            "t5/T5ForConditionalGeneration",
            [f"decoder.block.{i}.layer.1.EncDecAttention.{part}.weight" for i in range(2) for part in "kv"],
            "decoder.block.0.layer.1.EncDecAttention.q.weight",
        ),
    ],
)
def test_maps_that_read_one_tensor_share_a_gram(case, together, apart):
    found = grams(Typed.of(tiny_models.checkpoint(case)), PlainBatches(rows_for(case), 4))
    assert len({id(found[name].matrix) for name in together}) == 1
    assert found[apart].matrix is not found[together[0]].matrix


def test_what_has_no_gram_of_its_own():
    """Tied heads and the experts that are one tensor in memory are left out, their router is not a map."""
    typed = Typed.of(tiny_models.checkpoint("mixtral/MixtralForCausalLM"))
    found = grams(typed, PlainBatches(text_rows(4, 40), 2))
    assert "lm_head.weight" in found
    assert not [name for name in found if "experts" in name]
    tied = Typed.of(tiny_models.checkpoint("gpt2/GPT2LMHeadModel"))
    found = grams(tied, PlainBatches(text_rows(4, 40), 2))
    assert not found.keys() & {"lm_head.weight", "wte.weight"}
    assert found["h.0.attn.c_attn.weight"].axis == 0


def test_relative_positions_are_no_tokens():
    """Of DeBERTa, the projections that read the table of relative positions alone have no Gram."""
    typed = Typed.of(tiny_models.checkpoint("deberta-v2-separate/DebertaV2ForMaskedLM"))
    found = grams(typed, PlainBatches(text_rows(4, 40), 2))
    assert [name for name in typed if "pos_" in name and name.endswith("weight")]
    assert not [name for name in found if "pos_" in name]
    assert "encoder.layer.0.attention.self.query_proj.weight" in found


def test_relative_positions_as_long_as_a_text():
    """Queries are made of tokens, and of the table: a text of its length, alone in its batch, looks like it."""
    typed = Typed.of(tiny_models.checkpoint("deberta-v2-shared/DebertaV2Model"))
    length = len(typed["encoder.rel_embeddings.weight"])
    ids = torch.randint(5, 40, (2, length), generator=torch.Generator().manual_seed(0))
    rows = [{"input_ids": one, "attention_mask": torch.ones_like(one)} for one in ids]
    together, apart = grams(typed, PlainBatches(rows, 2)), grams(typed, PlainBatches(rows, 1))
    name = "encoder.layer.0.attention.self.query_proj.weight"
    assert torch.allclose(together[name].matrix, apart[name].matrix, atol=1e-8)
    read = []
    model = instantiate(typed.checkpoint, torch.float64)
    model.encoder.layer[0].attention.self.query_proj.register_forward_pre_hook(lambda _, x: read.append(x[0]))
    with torch.no_grad():
        model(**batch(rows[:1]).inputs)
    assert len(read) == 2
    assert read[0].shape == read[1].shape
    assert not torch.allclose(second_moment(read), together[name].matrix, rtol=1e-2)


@pytest.mark.parametrize("kind", ["grams", "activations"])
def test_a_classifier_without_padding_is_read_row_by_row(kind):
    given = tiny_models.checkpoint("mistral/MistralForSequenceClassification")
    found = []
    for pad in (None, 0):  # no row is padded
        given.config.pad_token_id = pad
        sums = collector(kind, Typed.of(given), CPU)
        for row in range(2):
            sums.add({"input_ids": torch.tensor([[5 + row, 6, 7]])}, None, row)
        found.append(sums.result(2))
    for name, value in found[0].items():
        same = found[1][name]
        assert torch.equal(value, same) if torch.is_tensor(value) else torch.equal(value.matrix, same.matrix)


def test_a_model_has_no_padding_afterwards():
    model = instantiate(tiny_models.checkpoint("mistral/MistralForSequenceClassification"), torch.float32)
    model.config.pad_token_id = None
    with pytest.raises(ZeroDivisionError), unpadded(model):
        print(1 / (1 + model.config.pad_token_id))
    assert model.config.pad_token_id is None
