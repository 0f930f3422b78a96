"""The statistics of a batch norm are no parameters, but move and merge as these do."""

import pytest
import torch

import cobasin
from cobasin.errors import InputError
from cobasin.proposal.checking import check_declaration
from tiny_models import model

CASE = "wav2vec2-conformer/Wav2Vec2ConformerForCTC"
BATCH_NORM = "encoder.layers.0.conv_module.batch_norm"


def test_statistics_are_merged_and_their_count_is_copied(tmp_path):
    models = [model(CASE, seed, torch.float32) for seed in (0, 1)]
    norms = [one.get_submodule(f"wav2vec2_conformer.{BATCH_NORM}") for one in models]
    norms[0].num_batches_tracked += 7
    cobasin.save(cobasin.merge(models, "linear", symmetry="none").checkpoint, tmp_path / "merged")
    merged = type(models[0]).from_pretrained(tmp_path / "merged")
    found = merged.get_submodule(f"wav2vec2_conformer.{BATCH_NORM}")
    assert int(found.num_batches_tracked) == 7
    torch.testing.assert_close(found.running_var, (norms[0].running_var + norms[1].running_var) / 2)


def test_a_variance_below_zero_is_refused(tmp_path):
    """It would make the outputs NaN."""
    models = [model(CASE, seed, torch.float32) for seed in (0, 1)]
    for variance, one in zip((1.0, 4.0), models, strict=True):
        one.get_submodule(f"wav2vec2_conformer.{BATCH_NORM}").running_var.fill_(variance)
    merged = cobasin.merge(models, "linear", weights=[2, -1], normalize=False, symmetry="none")
    with pytest.raises(InputError, match=r"batch_norm\.running_var, a variance, would be below zero"):
        cobasin.save(merged.checkpoint, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_a_model_with_small_variances_is_checked():
    """The noise of the check would bring them below zero."""
    small = model(CASE)
    for layer in range(2):
        small.get_submodule(f"wav2vec2_conformer.{BATCH_NORM.replace('0', str(layer))}").running_var.mul_(1e-3)
    assert check_declaration(small).sound
