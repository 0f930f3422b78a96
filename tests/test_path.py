"""The loss along a line, on losses whose barrier is known, and its picture."""

import math

import pytest
import torch
from matplotlib.axes import Axes
from transformers import BertConfig, BertForSequenceClassification, FNetConfig, FNetForMaskedLM

from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.errors import InputError
from cobasin.evaluation import blend
from cobasin.evaluation.path import LossPath, loss_path
from cobasin.evaluation.plots import plot_paths
from cobasin.finding.match import match_all
from tiny_models import model

TINY = {
    "hidden_size": 24,
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "intermediate_size": 20,
    "vocab_size": 40,
    "max_position_embeddings": 32,
}
FNET = {"vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 8}


def classifier(bias: float, **overrides) -> Checkpoint:
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**{**TINY, **overrides}))
    torch.nn.init.constant_(model.classifier.bias, bias)
    return load(model)


def bias_of(model) -> float:
    return model.classifier.bias[0].item()


def test_a_convex_loss_has_no_barrier():
    path = loss_path(classifier(-1.0), classifier(1.0), lambda m: (bias_of(m) ** 2, bias_of(m)), points=5)
    assert path.alphas == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert path.loss == [1.0, 0.25, 0.0, 0.25, 1.0]
    assert path.metric == [-1.0, -0.5, 0.0, 0.5, 1.0]
    assert path.barrier == 0.0
    assert path.midpoint == (0.0, 0.0)


def test_the_device_may_be_left_to_accelerate():
    assert loss_path(classifier(0.0), classifier(0.0), lambda m: (0.0, 0.0), points=3, device="auto").loss == [0.0] * 3


def test_barrier_is_measured_from_the_line_between_the_ends():
    # loss 1 - x² + x on [-1, 1]: ends -1 and 1, the line between them is x, so the barrier is 1, at the
    # middle.
    path = loss_path(classifier(-1.0), classifier(1.0), lambda m: (1 - bias_of(m) ** 2 + bias_of(m), 0.0))
    assert len(path.alphas) == 25
    assert path.barrier == pytest.approx(1.0)
    assert path.midpoint[0] == pytest.approx(1.0)
    assert path.to_dict()["barrier"] == path.barrier
    assert path.to_dict()["midpoint"] == {"loss": path.midpoint[0], "metric": 0.0}


def test_models_are_evaluated_in_float32_and_checkpoints_kept():
    a, b = classifier(0.0), classifier(1.0)
    seen = []

    def evaluate(model):
        seen.append((model.dtype, model.training, any(x.requires_grad for x in model.parameters())))
        with torch.no_grad():
            model.classifier.bias.zero_()
        return 0.0, 0.0

    loss_path(a, b, evaluate, points=3)
    assert seen == [(torch.float32, False, False)] * 3  # nothing is kept for a gradient
    assert (b["classifier.bias"] == 1).all()


@pytest.mark.parametrize("points", [1, 2, 24])
def test_the_midpoint_must_be_a_point(points):
    with pytest.raises(InputError, match="odd"):
        loss_path(classifier(0.0), classifier(0.0), lambda m: (0.0, 0.0), points=points)


def test_other_names_or_shapes_have_no_line():
    with pytest.raises(InputError, match=r"layer\.1\."):
        loss_path(classifier(0.0), classifier(0.0, num_hidden_layers=2), lambda m: (0.0, 0.0))
    with pytest.raises(InputError, match=r"\[20, 24\].*\[28, 24\]"):
        loss_path(classifier(0.0), classifier(0.0, intermediate_size=28), lambda m: (0.0, 0.0))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hidden_act": "relu"}, "hidden_act is 'gelu' in .* and 'relu' in"),
        ({"id2label": {0: "LABEL_1", 1: "LABEL_0"}}, "have different labels: no line between them"),
    ],
)
def test_other_settings_or_labels_have_no_line(changed, message):
    """The line would be that of the first model's function, and its labels."""
    with pytest.raises(InputError, match=message):
        loss_path(classifier(0.0), classifier(0.0, **changed), lambda m: (0.0, 0.0), points=3)


def test_settings_of_what_is_not_declared():
    one, other = (load(FNetForMaskedLM(FNetConfig(**FNET, hidden_act=act))) for act in ("gelu", "relu"))
    assert loss_path(one, one, lambda m: (0.0, 0.0), points=3).loss == [0.0] * 3
    with pytest.raises(InputError, match="hidden_act is 'gelu' in"):
        loss_path(one, other, lambda m: (0.0, 0.0), points=3)


@pytest.mark.parametrize("count", [1, 3, 6])
def test_picture(tmp_path, count):
    alphas = [0.0, 0.25, 0.5, 0.75, 1.0]
    paths = {
        f"way {i}": LossPath(alphas, [0.1, 1.0 - 0.3 * i, 2.0 - 0.6 * i, 1.0 - 0.3 * i, 0.1], [0.9] * 5)
        for i in range(count)
    }
    plot_paths(paths, tmp_path / "path.png", "A line", "accuracy")
    assert (tmp_path / "path.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_picture_of_losses_that_are_no_numbers(tmp_path, monkeypatch):
    """Labels keep away from the points that are numbers; a curve that has none has no label."""
    alphas, nan = [0.0, 0.25, 0.5, 0.75, 1.0], math.nan
    lines = {"a": [0.1, nan, math.inf, 1.0, 0.1], "b": [nan] * 5, "c": [0.1, 0.2, 0.3, 0.2, 0.1]}
    placed = {}
    written = Axes.text

    def text(axes, x, y, label, **how):
        placed[label] = written(axes, x, y, label, **how)
        return placed[label]

    monkeypatch.setattr(Axes, "text", text)
    paths = {name: LossPath(alphas, losses, losses) for name, losses in lines.items()}
    plot_paths(paths, tmp_path / "path.png", "A line", "accuracy")
    assert placed.keys() == {"a", "c"}
    assert all(all(map(math.isfinite, label.get_position())) for label in placed.values())
    assert placed["a"].get_position() != placed["c"].get_position()


def test_a_head_that_one_end_ties_and_the_other_does_not():
    """Untied for the line, a T5's head is tied again where it is its embedding, as in the anchor."""
    ids = {"input_ids": torch.tensor([[5, 6, 7]]), "decoder_input_ids": torch.tensor([[0, 8, 9]])}
    models = [model("t5/T5ForConditionalGeneration", seed, torch.float32) for seed in (0, 1)]
    ends, seen = match_all(models, anchor=0).ends, []

    def evaluate(made):
        with torch.no_grad():
            seen.append(made(**ids).logits)
        return 0.0, 0.0

    for line in (ends, ends[::-1]):
        seen.clear()
        loss_path(*line, evaluate, points=3)
        own = models if line is ends else models[::-1]
        for made, found in zip(own, (seen[0], seen[-1]), strict=True):
            torch.testing.assert_close(found, made(**ids).logits, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(seen[1], (seen[0] + seen[-1]) / 2, atol=1e-3)


def test_models_that_tie_different_tensors(monkeypatch):
    """No class does; a sum of such models would tie nothing, and there is none to put it into."""

    def tying(*names):
        made = torch.nn.Module()
        for name in "xyz":
            made.register_parameter(name, torch.nn.Parameter(torch.ones(2)))
        made.register_parameter(names[0], getattr(made, names[1]))
        return made

    monkeypatch.setattr(blend, "_built", lambda _, model, __: built[model.label])
    a, b = classifier(0.0), classifier(1.0)
    a.label, b.label = "A", "B"
    built = {"A": tying("x", "y"), "B": tying("y", "z")}
    with pytest.raises(InputError, match="A, B: tie different tensors: no line between them"):
        blend.Blend([a, b])
    built["B"] = tying("x", "y")
    blend.Blend([a, b])
