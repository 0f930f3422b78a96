"""What is computed does not depend on the modes of torch, or the default device, that a caller has set."""

import pickle
from contextlib import contextmanager
from inspect import signature

import pytest
import torch

import cobasin
from sampling import one_in
from tiny_models import checkpoint


@contextmanager
def default_dtype(dtype):
    """What tensors are made in where nothing is said."""
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(torch.float32)


BERT = "bert/BertForSequenceClassification"
LEARN = {"method": "learned", "samples": 16, "steps": 1}


@pytest.mark.parametrize(
    "mode",
    one_in(
        3,
        [
            torch.no_grad,
            torch.inference_mode,
            lambda: torch.autocast("cpu", dtype=torch.bfloat16),
            lambda: torch.device("meta"),
            lambda: default_dtype(torch.float64),
            lambda: default_dtype(torch.bfloat16),
        ],
        1,
    ),
)
def test_matching_and_merging_in_a_mode(mode):
    source, anchor = (checkpoint(BERT, seed, torch.float32) for seed in (0, 1))

    def results():
        element = cobasin.match(source, anchor, **LEARN)
        moved = cobasin.transform(element, source)
        healed = cobasin.merge([source, anchor], symmetry="none", heal={"steps": 1, "samples": 16}).checkpoint
        back = element.compose(element.inverse())
        sampled = cobasin.Element.sample(element.form).deviation()
        compared = cobasin.compare(source, anchor).distance, cobasin.distance(moved, anchor), back.deviation()
        said = element.report["distance_after"], cobasin.verify(source, moved), compared, sampled
        return said, dict(moved), dict(healed)

    said, *plain = results()
    with mode():
        again, *same = results()
    assert again == said
    for one, other in zip(plain, same, strict=True):
        assert all(tensor.equal(other[name]) for name, tensor in one.items())


def test_public_functions_can_be_sent_to_other_processes():
    assert pickle.loads(pickle.dumps(cobasin.match)) is cobasin.match
    assert "source" in signature(cobasin.match).parameters
