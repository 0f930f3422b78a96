"""RegMean++ against a direct computation: one layer after the other, each run from the start."""

import re

import pytest
import torch

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.running import cast_floats, instantiate
from cobasin.checkpoints.typed import Typed
from cobasin.data import Batch
from cobasin.errors import InputError
from cobasin.fusion.registry import find
from cobasin.statistics.collect import collector
from cobasin.statistics.grams import InputGram
from cobasin.statistics.in_turn import collect_in_turn
from cobasin.symmetry.state import Lazy
from direct_grams import inputs_of, read
from sampling import one_in
from tiny_models import ONE_A_DECLARATION, checkpoint


class Data:
    """Batches of random inputs, with a count of how often they were read."""

    def __init__(self, typed, seeds):
        self.batches = [read(typed, seed) for seed in seeds]
        self.reads = 0

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        self.reads += 1
        return (Batch(inputs, None) for inputs in self.batches)


def candidates(case, count=2):
    """Fine-tunes of one model, and the data of each."""
    typeds = [Typed.of(checkpoint(case))]
    for seed in range(1, count):
        noise = Typed.of(checkpoint(case, seed))
        typeds.append(Typed.of(typeds[0].derived({name: 0.7 * typeds[0][name] + 0.3 * noise[name] for name in noise})))
    return typeds, [Data(typed, range(10 * i, 10 * i + 2 + i)) for i, typed in enumerate(typeds)]


def fuser(typeds, fused):
    """RegMean, the average where there are no Grams, as the pipeline would call them."""

    def fuse(name, grams):
        assert name not in fused
        tensors = [typed[name] for typed in typeds]
        given = {"tensors": tensors, "grams": grams}
        method = find("linear" if grams is None else "regmean++")
        fused[name] = method.fuse(given, {"weight": (1.0,) * len(typeds)})
        return fused[name]

    return fuse


def directly(typeds, data, groups):
    """The Grams and the merged tensors, from the definition; ``groups`` are patterns of names in order."""
    found, fused = {}, {}
    fuse = fuser(typeds, fused)
    for pattern in groups:
        own = [name for name in typeds[0] if re.fullmatch(pattern, name) and name not in typeds[0].spec.tied]
        inputs = []
        for typed, batches in zip(typeds, data, strict=True):
            # the tensors of this group are the candidate's own, and so are those that come after them
            state = {name: fused.get(typed.spec.tied.get(name, name), typed[name]) for name in typed}
            model = Typed.of(typed.derived(state))
            runs = [inputs_of(model, instantiate(model.checkpoint, torch.float64), one) for one in batches.batches]
            inputs.append({name: torch.cat([run[name][0] for run in runs]) for name in runs[0]})
            axes = {name: axis for name, (_, axis) in runs[0].items()}
        for name in own:
            if name in inputs[0] and name not in typeds[0].spec.tied.values():
                found[name] = [InputGram(one[name].T @ one[name] / len(one[name]), axes[name]) for one in inputs]
            fuse(name, found.get(name))
    assert fused.keys() == {name for name in typeds[0] if name not in typeds[0].spec.tied}
    return found, fused


def gap(a, b):
    """The largest difference of Grams, relative to the largest entry."""
    pairs = [pair for name in b for pair in zip(a[name], b[name], strict=True)]
    return max(float((x.matrix - y.matrix).abs().max() / y.matrix.abs().max()) for x, y in pairs)


GROUPS = {
    "bert/BertForSequenceClassification": [r"embeddings.*", r".*layer\.0.*", r".*layer\.1.*", "(pooler|classifier).*"],
    "gpt2/GPT2LMHeadModel": [r"w.*", r"h\.0.*", r"h\.1.*", r"ln_f.*"],
    "vit/ViTForImageClassification": [r"embed.*", r".*layer\.0\..*", r".*layer\.1\..*", "(layernorm|classifier).*"],
    "opt-350m/OPTForCausalLM": [
        r"decoder\.(embed|project_in).*",
        r".*layers\.0\..*",
        r".*layers\.1\..*",
        r"(decoder\.project_out|decoder\.final|lm_head).*",
    ],
    "albert/AlbertForMaskedLM": [r"(embeddings|encoder\.embedding).*", r"encoder\.albert.*", r"predictions.*"],
    "bart/BartForConditionalGeneration": [
        r"(shared|.*embed|final_logits).*",
        r"encoder\.layers\.0.*",
        r"encoder\.layers\.1.*",
        r"decoder\.layers\.0.*",
        r"decoder\.layers\.1.*",
        r"decoder\.layers\.2.*",
    ],
}


@pytest.mark.parametrize("case", one_in(2, [*GROUPS]))
def test_grams_and_merged_tensors_are_those_of_the_definition(case):
    typeds, data = candidates(case)
    fused = {}
    # the tensors are those of the states, whatever the checkpoints hold
    grams = collect_in_turn([typeds[0]] * 2, typeds, data, fuser(typeds, fused), device="cpu")
    expected, merged = directly(typeds, data, GROUPS[case])
    assert grams.keys() == expected.keys()
    assert gap(grams, expected) < 1e-9
    assert fused.keys() == merged.keys()
    for name in merged:
        assert torch.allclose(fused[name], merged[name], rtol=0, atol=1e-6 * float(merged[name].abs().max())), name
    plain, _ = directly(typeds, data, [".*"])  # RegMean
    assert gap(plain, expected) > 1e-3


@pytest.mark.parametrize("case", one_in(4, ONE_A_DECLARATION[1::4]))
def test_of_one_model_they_are_its_grams(case):
    """In families of all kinds a run reaches all that a layer needs before it ends."""
    typed = Typed.of(checkpoint(case))
    (batch,), order = Data(typed, (0,)).batches, []
    grams = collect_in_turn([typed], [typed], [Data(typed, (0,))], lambda name, _: order.append(name) or typed[name])
    plain = collector("grams", typed, torch.device("cpu"))
    plain.add({name: cast_floats(value, torch.float64) for name, value in batch.items()}, None, 0)
    expected = {name: [gram] for name, gram in plain.result(0).items()}
    assert grams.keys() == expected.keys()
    assert gap(grams, expected) < 1e-9
    assert sorted(order) == sorted(name for name in typed if name not in typed.spec.tied)


def test_it_is_regmean_where_all_that_comes_before_is_shared():
    first, other = (Typed.of(checkpoint("gpt2-untied/GPT2LMHeadModel", seed)) for seed in (0, 1))
    typeds = [first, Typed.of(first.derived({name: (first, other)["h.1." in name][name] for name in first}))]
    data = [Data(first, (0, 1)), Data(first, (2, 3))]
    grams = collect_in_turn(typeds, typeds, data, fuser(typeds, {}), device="cpu")
    plain, _ = directly(typeds, data, [".*"])
    assert grams.keys() == plain.keys()
    before = {name: plain[name] for name in grams if name != "lm_head.weight"}
    assert len(before) == 8
    assert gap(grams, before) < 1e-9
    assert gap(grams, {"lm_head.weight": plain["lm_head.weight"]}) > 1e-2


def test_a_run_ends_with_the_layer_that_is_due():
    """What comes after it is not even read; every batch is read once a layer with linear maps."""
    typeds, data = candidates("bert/BertForSequenceClassification")
    read, steps = [], []
    state = Lazy(typeds[1], lambda name: read.append(name) or typeds[1][name])
    fuse = fuser(typeds, {})

    def fuse_and_look(name, grams):
        if name.startswith("encoder.layer.0."):
            assert not [late for late in read if late.startswith(("encoder.layer.1.", "pooler", "classifier"))]
            assert name in read
        return fuse(name, grams)

    states = [typeds[0], state]
    collect_in_turn(typeds, states, data, fuse_and_look, device="cpu", progress=lambda *step: steps.append(step))
    assert steps == [(i + 1, 15) for i in range(15)]  # 2 + 3 batches; two layers and the head


def test_heads_may_differ():
    import transformers as T

    config = {
        "hidden_size": 12,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "intermediate_size": 8,
        "vocab_size": 30,
    }
    typeds = []
    for labels in (2, 3):
        torch.manual_seed(labels)
        made = T.BertForSequenceClassification(T.BertConfig(**config, num_labels=labels))
        typeds.append(Typed.of(load(made)))
    data = [Data(typed, (0,)) for typed in typeds]

    def fuse(name, grams):
        return typeds[0][name] if name in typeds[0].heads else (typeds[0][name] + typeds[1][name]) / 2

    grams = collect_in_turn(typeds, typeds, data, fuse, device="cpu")
    assert [len(gram.matrix) for gram in grams["classifier.weight"]] == [13, 13]
    assert not torch.allclose(*(gram.matrix for gram in grams["classifier.weight"]), rtol=1e-3)


def test_a_device_that_is_not_there():
    typeds, data = candidates("gpt2/GPT2LMHeadModel")
    with pytest.raises(InputError, match="device 'cuda:77' cannot be used here"):
        collect_in_turn(typeds, typeds, data, fuser(typeds, {}), device="cuda:77")
