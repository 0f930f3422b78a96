"""Files of pre-training: tensors that their class does not read stay right for the classes that do."""

import re

import pytest
import torch
import transformers

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.pairs import check_pair
from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from cobasin.proposal.checking import check_declaration
from command_line import duplicate, edit_json, edit_tensors, run, tensors_of
from sampling import one_in
from tiny_models import model

pytestmark = pytest.mark.usefixtures("few_rounds")

POOLER = {"pooler.dense.weight": (24, 24), "pooler.dense.bias": (24,)}
# the tensors, and what other classes compute from them
FILES = {
    "bert/BertForMaskedLM": (
        {f"bert.{name}": shape for name, shape in POOLER.items()}
        | {"cls.seq_relationship.weight": (2, 24), "cls.seq_relationship.bias": (2,)},
        {"BertModel": "pooler_output", "BertForPreTraining": "seq_relationship_logits"},
    ),
    "roberta/RobertaForMaskedLM": (
        {f"roberta.{name}": shape for name, shape in POOLER.items()},
        {"RobertaModel": "pooler_output"},
    ),
    "albert/AlbertForMaskedLM": (
        {
            "albert.pooler.weight": (24, 24),
            "albert.pooler.bias": (24,),
            "sop_classifier.classifier.weight": (2, 24),
            "sop_classifier.classifier.bias": (2,),
        },
        {"AlbertModel": "pooler_output", "AlbertForPreTraining": "sop_logits"},
    ),
}

# of bare models, whose outputs are all that they read: they stay as they are
PRE_TRAINING = {
    "wav2vec2-pre-training": "Wav2Vec2",
    "unispeech": "UniSpeech",
    "unispeech-sat": "UniSpeechSat",
    "vit-mae": "ViTMAE",
    "videomae": "VideoMAE",
}


def folders(folder, case):
    """Two models far from each other, with the tensors that their class does not read."""
    for seed, name in enumerate(("source", "anchor"), start=1):
        model(case, seed).float().save_pretrained(folder / name)
        extras = {extra: torch.randn(shape) for extra, shape in FILES[case][0].items()}
        edit_tensors(folder / name, lambda tensors, extras=extras: tensors.update(extras))
    return folder / "source", folder / "anchor"


def computed(folder, architecture):
    loaded, info = getattr(transformers, architecture).from_pretrained(
        folder, dtype=torch.float64, output_loading_info=True
    )
    assert not info["missing_keys"]
    with torch.no_grad():
        return loaded.eval()(torch.arange(5, 25)[None])


@pytest.mark.parametrize("case", FILES)
def test_they_move_with_the_model(tmp_path, case):
    source, anchor = folders(tmp_path, case)
    assert check_declaration(source).sound
    assert run("match", source, anchor, "--out", tmp_path / "out").code == 0
    assert run("verify", source, tmp_path / "out").code == 0
    for architecture, name in FILES[case][1].items():
        before, after = computed(source, architecture), computed(tmp_path / "out", architecture)
        torch.testing.assert_close(after[name], before[name], rtol=1e-4, atol=1e-5)
        if "last_hidden_state" in before:
            assert (after.last_hidden_state - before.last_hidden_state).abs().max() > 0.5


@pytest.mark.parametrize("case", one_in(3, [*FILES]))
def test_one_file_has_them(tmp_path, case):
    """As the file of a pre-trained model has and that of its fine-tune has not: they are left out, and that is told."""
    source, anchor = folders(tmp_path, case)
    edit_tensors(anchor, lambda tensors: [tensors.pop(name) for name in FILES[case][0]])
    for first, second in ((source, anchor), (anchor, source)):
        finished = run("match", first, second, "--out", tmp_path / "out", "--overwrite")
        assert finished.code == 0, finished.err
        assert re.search(rf"note: {source}: .*pooler.*weight.* left out: not read by its class", finished.out)
        assert not tensors_of(tmp_path / "out").keys() & FILES[case][0].keys()
        assert run("verify", first, tmp_path / "out").code == 0
        assert run("apply", tmp_path / "out", first, "--out", tmp_path / "again", "--overwrite").code == 0
        assert run("verify", first, tmp_path / "again").code == 0
        merged = run("merge", first, second, "--match", "none", "--out", tmp_path / "merged", "--overwrite")
        assert f"note: {source}: " in merged.out
        one, other, mean = map(tensors_of, (first, second, tmp_path / "merged"))
        assert mean.keys() == one.keys() & other.keys()
        assert all(torch.allclose(mean[name], (one[name] + other[name]) / 2, atol=1e-6) for name in mean)
        assert run("compare", first, second).code == 0


def test_a_fine_tune_has_them_not(tmp_path):
    base, new = folders(tmp_path, "bert/BertForMaskedLM")
    tuned = duplicate(base, "tuned")
    edit_tensors(tuned, lambda tensors: [tensors.pop(name) for name in FILES["bert/BertForMaskedLM"][0]])
    finished = run("transport", base, tuned, new, "--out", tmp_path / "out")
    assert finished.code == 0, finished.err
    assert f"note: {new}: " in finished.out
    assert run("verify", new, tmp_path / "out").code == 0  # nothing was learned


@pytest.mark.parametrize("family", one_in(3, [*PRE_TRAINING]))
def test_pre_training_beside_a_bare_model(tmp_path, family):
    for seed, name in enumerate(("source", "anchor"), start=1):
        bare = model(f"{family}/{PRE_TRAINING[family]}Model", seed).float()
        torch.manual_seed(seed)
        whole = getattr(transformers, f"{PRE_TRAINING[family]}ForPreTraining")(bare.config)
        getattr(whole, whole.base_model_prefix).load_state_dict(bare.state_dict())
        whole.save_pretrained(tmp_path / name)
        named = {"architectures": [type(bare).__name__]}
        edit_json(tmp_path / name / "config.json", lambda config, named=named: config.update(named))
    source, out = tmp_path / "source", tmp_path / "out"
    assert run("match", source, tmp_path / "anchor", "--out", out).code == 0
    assert run("verify", source, out).code == 0
    before, after = tensors_of(source), tensors_of(out)
    kept = [name for name in before if not name.startswith(f"{whole.base_model_prefix}.")]
    assert kept
    assert all(torch.equal(before[name], after[name]) for name in kept)
    assert not all(torch.equal(before[name], after[name]) for name in before)
    assert run("merge", source, tmp_path / "anchor", "--out", tmp_path / "merged").code == 0


@pytest.mark.parametrize("family", ["llava", "llava-siglip-tied"])
def test_layers_of_a_tower_behind_the_one_that_is_read(tmp_path, family):
    """They go on to fit it: read at a later place, the model that was matched still computes what it did."""
    case = f"{family}/LlavaForConditionalGeneration"
    for seed, name in enumerate(("source", "anchor")):
        model(case, seed, torch.float32).save_pretrained(tmp_path / name)
    assert run("match", tmp_path / "source", tmp_path / "anchor", "--out", tmp_path / "out").code == 0
    later = [duplicate(tmp_path / name, f"{name}-later", vision_feature_layer=-1) for name in ("source", "out")]
    assert run("verify", *later).code == 0
    assert run("verify", tmp_path / "source", later[0]).code != 0


@pytest.mark.parametrize(
    ("case", "pattern"),
    one_in(
        4,
        [
            ("bert/BertModel", "pooler"),
            ("vit/ViTModel", "pooler"),
            ("bart/BartForConditionalGeneration", "final_logits_bias"),
            ("pegasus/PegasusForConditionalGeneration", "embed_positions"),
        ],
    ),
)
def test_one_file_has_what_nothing_moves(tmp_path, case, pattern):
    """It stays where it is, and is told: it is a part of what this model computes, and the other has none."""
    for seed, name in enumerate(("source", "anchor")):
        model(case, seed, torch.float32).save_pretrained(tmp_path / name)
    source, anchor, out, again = (tmp_path / name for name in ("source", "anchor", "out", "again"))
    own = {name: tensor for name, tensor in tensors_of(source).items() if pattern in name}
    edit_tensors(anchor, lambda tensors: [tensors.pop(name) for name in own])
    matched = run("match", source, anchor, "--out", out)
    assert re.search(rf"note: {source}: .*{pattern}.* neither compared nor merged", " ".join(matched.out.split()))
    assert run("match", anchor, source, "--out", tmp_path / "other").code == 0
    assert run("verify", source, out).code == run("verify", anchor, tmp_path / "other").code == 0
    before, after = tensors_of(source), tensors_of(out)
    assert all(torch.equal(after[name], tensor) for name, tensor in own.items())
    assert not all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert run("apply", out, source, "--out", again).code == 0
    assert run("verify", out, again).code == 0
    carried = run("transport", source, source, anchor, "--out", tmp_path / "carried")
    assert carried.code == 0, carried.err
    assert run("verify", anchor, tmp_path / "carried").code == 0  # nothing was learned
    for first, second in ((source, anchor), (anchor, source)):
        assert run("merge", first, second, "--out", tmp_path / "merged", "--overwrite").code == 0
        merged = tensors_of(tmp_path / "merged")
        assert merged.keys() & own.keys() == (own.keys() if first == source else set())
        assert all(torch.equal(merged[name], own[name]) for name in merged.keys() & own.keys())


def test_what_moves_is_not_copied(tmp_path):
    """Nor what no file may lack, though nothing moves it."""
    source, anchor = folders(tmp_path, "bert/BertForMaskedLM")
    edit_tensors(anchor, lambda tensors: [tensors.pop(name) for name in FILES["bert/BertForMaskedLM"][0]])
    one, other = (Typed.of(load(folder)) for folder in (source, anchor))
    for name in ("pooler.dense.weight", "encoder.layer.0.output.dense.bias"):
        assert one.copying({name}) is one
    bare = Typed.of(load(model("bert/BertModel")))
    assert bare.copying({"embeddings.word_embeddings.weight"}) is bare
    with pytest.raises(InputError, match=rf"pooler\.dense\.weight is only in {source}"):  # as they are, not made alike
        check_pair(one, other)


def test_what_files_of_the_hub_have_beside_a_tower(tmp_path):
    """PaddleOCR-VL: a pooling head and a second table of positions, which Transformers does not read, are copied."""
    beside = {
        f"visual.vision_model.{name}": torch.randn(4, 16)
        for name in ("embeddings.packing_position_embedding.weight", "head.mlp.fc1.weight")
    }
    for seed, name in enumerate(("source", "anchor")):
        model("paddleocr-vl/PaddleOCRVLForConditionalGeneration", seed, torch.float32).save_pretrained(tmp_path / name)
    edit_tensors(tmp_path / "source", lambda tensors: tensors.update(beside))
    assert run("match", tmp_path / "source", tmp_path / "anchor", "--out", tmp_path / "out").code == 0
    assert run("verify", tmp_path / "source", tmp_path / "out").code == 0
    written = tensors_of(tmp_path / "out")
    assert all(torch.equal(written[name], tensor) for name, tensor in beside.items())
