"""Gradient descent that stops by itself and goes on where it was interrupted."""

import json
import math
import signal
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import safe_open, save_file

from cobasin.data import Batch
from cobasin.data.batches import Batches
from cobasin.errors import InputError
from cobasin.learning.descent import descend, hold_out
from forks import forked

FEW = {"rate": 0.2, "seed": 0, "look": 99, "patience": 9}


class Interrupted(Exception):
    """What ends a run in the middle."""


def rows(count=20, seed=0):
    """Batches of a linear regression whose right weights are 1, 2 and 3."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        x = torch.randn(4, 3, generator=generator)
        found.append(Batch({"x": x}, x @ torch.tensor([1.0, 2.0, 3.0])))
    return found


def data_set(count=20):
    """The same, made as they are read."""

    def encode(examples, number):
        return Batch({"x": torch.tensor([one["x"] for one in examples])}, torch.tensor([one["y"] for one in examples]))

    encode.settings, encode.masks = {}, None
    examples = [
        {"x": x, "y": y}
        for batch in rows(count)
        for x, y in zip(batch.inputs["x"].tolist(), batch.labels.tolist(), strict=True)
    ]
    return Batches(examples, range(len(examples)), encode, 4)


def run(state=None, stop=None, steps=60, batches=None, **options):
    """A descent on noisy gradients; it ends with an exception in step ``stop``."""
    weights, bias = torch.zeros(3, requires_grad=True), torch.zeros(2, 1, requires_grad=True)
    held, seen = hold_out(batches or rows())
    taken = []

    def error(batch):
        return (batch.inputs["x"] @ weights + bias.sum() - batch.labels).square().mean()

    def loss(batch, generator, share):
        taken.append(float(batch.labels[0]))
        if len(taken) == stop:
            raise Interrupted
        return error(batch) * (0.5 + torch.rand((), generator=generator))

    @torch.no_grad()
    def held_out():
        return float(sum(map(error, held))) / len(held)

    with_defaults = {"steps": steps, "rate": 0.2, "seed": 3, "look": 7, "patience": 5, "state": state} | options
    descent = descend([weights, bias], loss, held_out, seen, **with_defaults)
    end = SimpleNamespace(descent=descent, losses=descent.losses, parameters=[weights, bias], now=held_out())
    return end, taken


def same(one, other):
    return one.losses == other.losses and all(a.equal(b) for a, b in zip(one.parameters, other.parameters, strict=True))


def test_it_descends_and_gives_back_the_best():
    done, _ = run(steps=300)
    assert min(done.losses) < 1e-3 * done.losses[0]
    assert len(done.losses) == 1 + 43  # at the start, every seven steps, and at the end
    assert done.now == min(done.losses)
    assert (done.descent.steps, done.descent.end) == (300, None)
    assert done.parameters[0].sub(torch.tensor([1.0, 2.0, 3.0])).abs().max() < 0.1


def test_what_is_held_out():
    for count, held_out in ((2, 1), (15, 1), (16, 2), (63, 7), (200, 8)):
        all_rows = rows(count)
        held, seen = hold_out(all_rows)
        assert (len(held), len(seen)) == (held_out, count - held_out)
        assert held[0] is all_rows[0]
        assert seen[0] is all_rows[held_out]


def test_every_epoch_has_an_order_of_its_own():
    _, taken = run(steps=36, patience=99)
    first, second = taken[:18], taken[18:]
    assert sorted(first) == sorted(second)
    assert first != second
    assert taken == run(steps=36, patience=99)[1]
    assert taken != run(steps=36, patience=99, seed=4)[1]


def test_without_a_gain_it_stops_and_gives_back_the_start():
    looks = []
    done, taken = run(rate=50.0, steps=500, report=lambda *look: looks.append(look))
    assert min(done.losses) == done.losses[0]
    assert all(not parameter.any() for parameter in done.parameters)
    assert len(done.losses) == 1 + 5
    assert len(taken) == done.descent.steps == 5 * 7
    assert done.descent.end is None  # nothing has failed
    assert looks == list(zip(range(7, 36, 7), done.losses[1:], strict=True))


def test_a_loss_that_stays_the_same_is_no_gain():
    weight = torch.zeros((), requires_grad=True)
    options = {"steps": 90, "rate": 0.1, "seed": 0, "look": 2, "patience": 3}
    done = descend([weight], lambda *_: weight.square(), lambda: 1.0, rows(), **options)
    assert (done.steps, done.losses) == (6, [1.0] * 4)


@pytest.mark.parametrize(("least", "taken"), [(20, 35), (36, 36), (70, 70)])
def test_without_a_gain_it_takes_some_steps_where_it_must(least, taken):
    done, _ = run(rate=50.0, steps=500, least=least)
    assert done.descent.steps == taken
    assert all(not parameter.any() for parameter in done.parameters)


def test_a_loss_knows_what_share_of_the_steps_is_done():
    weight, seen = torch.zeros((), requires_grad=True), []

    def loss(batch, generator, share):
        seen.append(share)
        return (weight - 1).square()

    descend([weight], loss, lambda: float(weight), rows(), steps=4, rate=0.1, seed=0, patience=9)
    assert seen == [0, 0.25, 0.5, 0.75]


def test_an_overflow_in_the_middle_ends_it_and_one_at_the_start_is_refused():
    done, taken = run(rate=1e30, steps=500)
    assert done.losses[1:] == []
    assert len(taken) == 2
    assert done.descent.end == "ended after 1 of 500 steps: the loss overflowed"
    bad = [Batch({"x": batch.inputs["x"] * torch.inf}, batch.labels) for batch in rows()]
    with pytest.raises(InputError, match="they overflow"):
        run(batches=bad)


def test_an_overflow_on_what_is_held_out_ends_it_and_the_best_is_given_back():
    weight = torch.zeros((), requires_grad=True)
    seen = iter([1.0, 0.5, math.nan, 0.1])
    descent = descend(
        [weight], lambda *_: (weight - 1).square(), lambda: next(seen), rows(), **FEW | {"look": 1, "steps": 9}
    )
    assert descent.losses == [1.0, 0.5]
    assert descent.end == "ended after 2 of 9 steps: the loss overflowed"
    assert weight.item() == pytest.approx(FEW["rate"])  # where it stood then: after one step of Adam


def test_a_short_run_warms_up_in_a_fifth_of_it():
    weight, taken = torch.zeros((), requires_grad=True), []

    def loss(batch, generator, share):
        taken.append(weight.item())
        return (weight - 100).square()

    descend([weight], loss, lambda: 1.0, rows(), **FEW | {"steps": 5})
    assert taken[1] == pytest.approx(FEW["rate"])  # a step of Adam is as long as its rate: the first has all of it


@pytest.mark.parametrize("batches", [rows(), data_set()], ids=["made up", "data"])
@pytest.mark.parametrize("stop", [3, 8, 30, 57])
def test_an_interrupted_run_ends_as_one_that_was_not(tmp_path, stop, batches):
    whole, every = run(batches=batches)
    state = tmp_path / "new" / "state"
    with pytest.raises(Interrupted):
        run(state, stop, batches=batches)
    assert state.exists() == (stop > 7)
    done, taken = run(state, batches=batches)
    assert same(done, whole)
    assert taken == every[(stop - 1) // 7 * 7 :]
    assert not same(run(seed=4, batches=batches)[0], whole)
    again, taken = run(state, batches=batches)  # what is complete is not done again
    assert same(again, whole)
    assert taken == []
    state.unlink()
    assert list(state.parent.iterdir() if state.parent.exists() else []) == []


def test_a_killed_process_goes_on(tmp_path):
    """With a real signal: nothing is left to say goodbye."""
    state = tmp_path / "state"
    code = (
        "import os\nfrom pathlib import Path\nfrom test_descent import run\n"
        f"run(Path({str(state)!r}), report=lambda step, _: step == 28 and os.kill(os.getpid(), {int(signal.SIGKILL)}))"
    )
    killed = forked(code)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done, taken = run(state)
    assert same(done, run()[0])
    assert len(taken) == 60 - 28


def test_the_state_of_something_else_is_refused(tmp_path):
    state = tmp_path / "state"
    of = {"models": ["a", "b"], "data": "1", "settings": {"steps": 60}}
    with pytest.raises(Interrupted):
        run(state, 30, of=of)
    for other, message in (
        (of | {"data": "2"}, "with other data;"),
        (of | {"models": ["b", "a"], "settings": {"steps": 6}}, "with other models and settings;"),
        ({}, "with other models and data and settings;"),
    ):
        with pytest.raises(InputError, match=message):
            run(state, of=other)
    assert same(run(state, of=of)[0], run()[0])


def test_a_damaged_state_is_refused(tmp_path):
    state = tmp_path / "state"
    with pytest.raises(Interrupted):
        run(state, 30)
    with safe_open(state, "pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    content = state.read_bytes()

    def refuse():
        with pytest.raises(
            InputError, match=r"is damaged, or no state of a search .*; name another file, or "
        ) as refused:
            run(state)
        assert "\n" not in str(refused.value)

    state.write_bytes(content[:100])
    refuse()
    state.write_bytes(b"")
    refuse()
    save_file({name: x for name, x in tensors.items() if name != "1/best"}, state, metadata)
    refuse()
    save_file(tensors, state, {"format": "pt"})  # as of a model, which is not to be removed
    refuse()
    save_file(tensors | {"0/now": torch.zeros(4)}, state, metadata)
    refuse()
    save_file(tensors, state, metadata | {"losses": json.dumps(None), "step": "x"})
    refuse()
    save_file(tensors, state)
    refuse()
    state.write_bytes(content)
    assert same(run(state)[0], run()[0])


def test_a_state_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file/state: cannot be written"):
        run(tmp_path / "file" / "state")
