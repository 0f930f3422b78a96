"""The demo, much shortened: what it writes, and what it shows."""

import json

import pytest

from cobasin import demo
from cobasin.checkpoints.checkpoint import load
from cobasin.errors import InputError
from cobasin.verification import verify


@pytest.mark.usefixtures("few_rounds")
def test_all_ways_are_written_and_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(demo.OPTIONS, "learned", demo.OPTIONS["learned"] | {"steps": 2})
    result = demo.run(tmp_path / "out", epochs=1, points=3)
    assert json.loads((tmp_path / "out" / "demo.json").read_text()) == result
    assert list(result["merged"]) == ["none", "paper", "full", "learned"]
    for way in demo.OPTIONS:
        assert result["merged"][way]["verify"]["same"]
        assert verify(load(tmp_path / "out" / "model-1"), load(tmp_path / "out" / f"matched-{way}")).same
    distances = {way: found["distance"] for way, found in result["merged"].items()}
    assert distances["full"] < distances["paper"] < distances["none"]
    assert (tmp_path / "out" / "path.png").read_bytes().startswith(b"\x89PNG")
    demo.show(result)
    shown = capsys.readouterr().out
    assert "/path.png" in shown
    assert all(f"average, {name}" in shown for name in demo.NAMES.values())
    assert "CHANGED" not in shown
    with pytest.raises(InputError, match="is not empty"):
        demo.run(tmp_path / "out")


def test_nothing_is_left_of_one_that_is_interrupted(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "_match_and_merge", interrupted)
    with pytest.raises(KeyboardInterrupt):
        demo.run(tmp_path / "out", epochs=1)
    assert list(tmp_path.iterdir()) == []
