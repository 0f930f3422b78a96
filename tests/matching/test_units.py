"""An ascent that is stopped at any unit goes on to the same end from what was kept."""

import copy

import pytest

from cobasin.checkpoints.typed import Typed
from cobasin.execution import outcomes
from cobasin.execution.outcomes import Outcome
from cobasin.matching.choice import Choice
from cobasin.matching.state import Match
from cobasin.matching.units import Units
from cobasin.matching.weights import ascend
from cobasin.symmetry.form import form_of
from tiny_models import checkpoint


class Stopped(Exception):
    """Instead of a kill."""


class Memory:
    """Keeps outcomes, and stops the ascent once it has kept so many."""

    def __init__(self, most=None):
        self.most, self.kept, self.count = most, {}, 0

    shared = False

    def owns(self, job):
        return True

    def load(self, name, job=0):
        return copy.deepcopy(self.kept.get(name))

    def save(self, name, outcome):
        if self.most is not None and self.count >= self.most:  # other threads may have finished meanwhile
            raise Stopped
        self.kept[name], self.count = copy.deepcopy(outcome), self.count + 1
        return True

    def drop(self, name):
        self.kept.pop(name, None)


@pytest.fixture(
    scope="module", params=[("bert/BertForMaskedLM", "full"), ("llama-gqa/LlamaForCausalLM", "heads,attention")]
)
def start(request):
    """What makes a match at its start."""
    case, symmetry = request.param
    ends, choice = [Typed.of(checkpoint(case, seed)) for seed in (0, 1)], Choice.parse(symmetry)
    form = form_of(ends[0].spec, parts=choice.parts, folded=choice.folded and bool(ends[0].spec.norms))
    return lambda: Match.of(form, choice, *ends)


def found(match, keep):
    seen = []
    progress = ascend(match, lambda *given: seen.append(given), keep=keep)
    assert seen[-1] == (progress.rounds, match.total)
    values = {(key, part): tensor.tolist() for key, value in match.values.items() for part, tensor in value.items()}
    return progress.history, values, match.distances


def test_stopped_and_gone_on(start, monkeypatch):
    monkeypatch.setattr(outcomes, "WORTH", 0.0)
    monkeypatch.setattr("cobasin.matching.weights.MAX_ROUNDS", 4)
    whole = Memory()
    expected = found(start(), whole)
    assert expected == found(start(), None)
    assert list(whole.kept) == ["round"]
    count = whole.count
    assert found(start(), whole) == expected
    assert whole.count == count, "nothing was left to do"
    for most in {1, 2, 4, 5, count // 2, count - 1}:
        keep = Memory(most)
        with pytest.raises(Stopped):
            ascend(start(), keep=keep)
        keep.most = None
        assert found(start(), keep) == expected, most
        assert keep.count <= count + 1  # a unit of another thread


@pytest.mark.usefixtures("few_rounds")
def test_what_takes_no_time_is_not_kept(start, monkeypatch):
    monkeypatch.setattr(outcomes, "WORTH", 3600.0)
    keep = Memory()
    ascend(start(), keep=keep)
    assert list(keep.kept) == ["round"]
    assert keep.count == 1  # the end is


class Theirs(Memory):
    """Shared with another part, which was faster with every unit, and found something else."""

    shared = True

    def save(self, name, outcome):
        doubled = {name: 2 * distance for name, distance in outcome.distances.items()}
        self.kept[name] = Outcome(outcome.values, doubled, {"whose": "theirs"})
        return False


def test_what_another_part_has_kept_first_is_taken_over(start):
    match = start()
    key = next(iter(match.groups))
    own = {name: match.distances[name] for name in match.tensors_of([key])}
    assert Units(match, Theirs()).run("one", 0, [key], lambda: {"whose": "ours"}) == {"whose": "theirs"}
    assert {name: match.distances[name] for name in own} == {name: 2 * distance for name, distance in own.items()}
