"""The page on the paper's experiments: its tables are those of what was measured, its examples can be read."""

import json
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "experiments"), str(ROOT / "benchmarks")]
experiment, tables, world = (import_module(name) for name in ("experiment", "tables", "world"))
pages = import_module("common.pages")
PAGE = (ROOT / "docs" / "paper.md").read_text("utf-8")
MEASURED = ROOT / "docs" / "measured"


def test_the_tables_are_what_was_measured():
    """If this fails: python experiments/tables.py."""
    assert tables.filled(PAGE, MEASURED) == PAGE


def test_every_item_has_a_block_and_every_block_an_item():
    blocks = [item for _, item, _, _ in pages.BLOCK.findall(PAGE)]
    assert sorted(blocks) == sorted([*experiment.items(), "summary"])
    assert {path.stem for path in MEASURED.glob("*.json")} <= set(blocks)


def test_what_is_shown_was_measured_as_the_files_of_experiments_say():
    """None is a reduced run. The time that an item is expected to take may have been corrected since."""
    for path in MEASURED.glob("*.json"):
        found = json.loads(path.read_text("utf-8"))
        assert not found["small"], path
        assert found["item"] == path.stem
        now = json.loads(experiment.Experiment.read(path.stem).model_dump_json(exclude_defaults=True))
        assert found["settings"] | {"minutes": None} == now | {"minutes": None}, path
        assert found["title"] == now["title"]


def test_the_examples_are_data_sets(tmp_path):
    there = world.World(tmp_path, tmp_path)
    found = {}
    for block in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
        found |= yaml.safe_load(block)
    assert len(found) == 9
    for name, content in found.items():
        data = experiment.DataSet.model_validate(content)
        assert "{" not in data.config("test", there).path, name
    assert experiment.DataSet.model_validate(found["conll"]).config("dev", there).path.endswith("eng.testa")


def row(seed, matching, metric, **more):
    return {
        "models": "one",
        "group": ["a", "b"],
        "seed": seed,
        "way": "Simple",
        "matching": matching,
        "test": "a",
        "loss": 1 - metric,
        "metric": metric,
        "metric_name": "macro F1",
    } | more


@pytest.fixture
def found():
    """A merge with two seeds, each tested on two data sets: means 30 and 45 % without matching, 40 and 45 % with it."""
    values = {"none": ((0.2, 0.4), (0.4, 0.5)), "full": ((0.3, 0.5), (0.5, 0.4))}
    rows = [
        row(seed, m, x, test=test)
        for m, v in values.items()
        for seed in (0, 1)
        for test, x in zip("ab", v[seed], strict=True)
    ]
    parents = [{key: x for key, x in row(seed, "", 0.6).items() if key != "matching"} for seed in (0, 1)]
    rows += [one | {"way": "parents", "parent": "a"} for one in parents]
    head = {"item": "tiny", "title": "Tiny", "small": False, "settings": {"seeds": [0, 1]}, "rows": rows}
    return head | {"minutes": 1.5, "device": "cpu", "versions": {"python": "3"}, "date": "2020-01-01"}


def test_a_table_has_means_and_what_they_are_worth(found):
    text = tables.markdown(found)
    assert "| macro F1, %; 2 models at once | none | full |\n| --- | --- | --- |\n| parents | 60.00 ± 0.00 |  |" in text
    assert "| Simple | 37.50 ± 10.61 | 42.50 ± 3.54 |" in text
    assert "| difference | full - none |\n| --- | --- |\n| Simple | +5.00 ± 5.00 (1 of 2 up) |" in text
    assert "| Simple | 0.625 ± 0.106 | 0.575 ± 0.035 |" in text
    assert text.endswith(
        "`python experiments/run.py tiny`; seeds 0, 1; cpu, 1.5 minutes of measuring; python 3; 2020-01-01.\n"
    )
    assert "says nothing" in tables.markdown(found | {"small": True})
    assert '`python experiments/run.py tiny --setting "a start each"`; ' in tables.markdown(
        found | {"setting": "a start each"}
    )


def test_several_methods_have_a_mean(found):
    assert "| mean |" not in tables.markdown(found)
    other = [one | {"way": "Fisher", "metric": one["metric"] + 0.1} for one in found["rows"] if "matching" in one]
    text = tables.markdown(found | {"rows": found["rows"] + other})
    assert "| Fisher | 47.50 ± 10.61 | 52.50 ± 3.54 |\n| mean | 42.50 ± 10.61 | 47.50 ± 3.54 |" in text
    assert "| mean | +5.00 ± 5.00 (1 of 2 up) |" in text
    for key, value in (("matching", "none"), ("seed", 0)):
        fewer = [one for one in other if one[key] == value]
        assert "| mean |" not in tables.markdown(found | {"rows": found["rows"] + fewer})


def test_the_summary_counts_what_is_sure(found, tmp_path):
    for one in found["rows"]:
        if one.get("matching") == "none":
            one["matching"] = "paper"
    one_start = [one | {"models": "one start"} for one in found["rows"]]
    (tmp_path / "tiny.json").write_text(json.dumps(found | {"rows": found["rows"] + one_start}))
    text = tables.summary(tmp_path)
    assert text.count("| tiny |") == 1
    assert "| tiny | one | macro F1 | Simple | 2 | +5.00 ± 5.00 | -0.050 ± 0.050 |" in text
    counts = (
        "Of 1 rows by more than what chance gives once in 20: 0 ahead, 0 ahead in loss, 0 behind, 0 behind in loss.\n"
    )
    assert text.endswith(counts)
    for one in found["rows"]:
        if one.get("matching") == "paper":
            one["metric"] = 0.1
    (tmp_path / "tiny.json").write_text(json.dumps(found))
    assert "once in 20: 1 ahead, 0 ahead in loss, 0 behind" in tables.summary(tmp_path)
    (tmp_path / "again.json").write_text(json.dumps(found | {"item": "again"}))
    text = tables.summary(tmp_path)
    assert ("Of 1 rows" in text, "| again |" in text, "| tiny |" in text) == (True, False, True)
    part = [one for one in found["rows"] if one["seed"] == 0]  # of another item, which has some of these merges
    (tmp_path / "part.json").write_text(json.dumps(found | {"item": "part", "rows": part}))
    assert "Of 1 rows" in tables.summary(tmp_path)
    for one in part:
        one["metric"] += 0.01
    (tmp_path / "part.json").write_text(json.dumps(found | {"item": "part", "rows": part}))
    assert "Of 1 rows" in tables.summary(tmp_path)  # all of the same gain
    for one in part:
        if one.get("matching") == "full":
            one["metric"] += 0.01
    (tmp_path / "part.json").write_text(json.dumps(found | {"item": "part", "rows": part}))
    assert "Of 2 rows" in tables.summary(tmp_path)


def test_the_best_parent_is_told_where_all_are_tested_on_the_same(found):
    assert "best parent" not in tables.markdown(found)
    more = [one | {"parent": "b", "metric": 0.7, "loss": 0.3} for one in found["rows"] if one["way"] == "parents"]
    text = tables.markdown(found | {"rows": found["rows"] + more})
    assert "| parents | 65.00 ± 0.00 |  |\n| best parent | 70.00 ± 0.00 |  |" in text
    assert "| best parent | 0.300 ± 0.000 |  |" in text


def test_a_page_is_filled(found, tmp_path):
    (tmp_path / "tiny.json").write_text(json.dumps(found))
    page = "a\n<!-- measured: tiny -->\nold\n<!-- end -->\nb\n<!-- measured: other -->\n<!-- end -->\n"
    filled = tables.filled(page, tmp_path)
    assert filled.startswith("a\n<!-- measured: tiny -->\n**Tiny**\n")
    assert "old" not in filled
    assert "<!-- measured: other -->\nNot measured yet: `python experiments/run.py other`.\n<!-- end -->\n" in filled
    assert tables.filled(filled, tmp_path) == filled
    found["rows"][0]["metric"] = 0.9
    (tmp_path / "tiny.json").write_text(json.dumps(found))
    assert tables.filled(filled, tmp_path) != filled
