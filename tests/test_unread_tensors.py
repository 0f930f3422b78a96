"""Files of pre-training: tensors that their class does not read stay right for the classes that do."""

import pytest
import torch
import transformers

from cobasin.proposal.checking import check_declaration
from command_line import edit_tensors, refused_by_both, run
from tiny_models import model

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


def test_one_file_has_them(tmp_path):
    source, anchor = folders(tmp_path, "roberta/RobertaForMaskedLM")
    edit_tensors(anchor, lambda tensors: [tensors.pop(f"roberta.{name}") for name in POOLER])
    refused_by_both(source, anchor, f"pooler.dense.weight is only in {source}, where the class does not read it")
