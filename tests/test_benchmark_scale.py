"""The benchmark of scale, run on tiny checkpoints: what it times does what it says."""

import json
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.typed import Typed
from cobasin.merging.merge import merge
from tiny_models import model

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
floors, processes, synthetic = (import_module(f"common.{name}") for name in ("floors", "processes", "synthetic"))
scale, plan, full_size = (import_module(name) for name in ("scale", "plan", "full_size"))
Figures = processes.Figures


@pytest.mark.parametrize("sizes", [scale.SIZES, scale.EXPERTS])
def test_checkpoints_are_models_of_their_geometry(tmp_path, sizes):
    geometry = sizes["tiny"]
    folder = synthetic.make(geometry, tmp_path / "a", 0, shard_bytes=4000)
    made = load(folder)
    Typed.of(made)
    assert len(list(folder.glob("*.safetensors"))) > 1
    assert {name: header.shape for name, header in made.headers.items()} == dict(geometry.shapes())
    assert {header.dtype for header in made.headers.values()} == {torch.bfloat16}
    related = load(synthetic.make(geometry, tmp_path / "b", 0, 1, shard_bytes=4000))
    name = "model.layers.0.self_attn.q_proj.weight"
    distance = float((related[name].float() - made[name].float()).norm() / made[name].float().norm())
    assert distance == pytest.approx(0.05, rel=0.2)


def test_layers_that_are_alike_are_files_of_their_own_size(tmp_path):
    geometry = replace(scale.SIZES["tiny"], alike=True)
    made = load(synthetic.make(geometry, tmp_path / "a", 0, 1, shard_bytes=4000))
    assert {name: header.shape for name, header in made.headers.items()} == dict(geometry.shapes())
    q, k = (f"model.layers.{{}}.self_attn.{name}_proj.weight" for name in "qk")
    assert torch.equal(made[q.format(0)], made[q.format(1)])
    assert not torch.equal(made[q.format(0)][:1], made[k.format(0)][:1])


def test_experts_are_as_many_tensors_as_announced():
    assert sum("experts" in name for name, _ in scale.EXPERTS["1.1b"].shapes()) == 18_000


@pytest.mark.parametrize("floor", [floors.average, floors.tensors])
def test_the_floor_writes_the_average(tmp_path, floor):
    a, b = (synthetic.make(scale.SIZES["tiny"], tmp_path / str(seed), seed, shard_bytes=9000) for seed in (0, 1))
    floor(a, b, tmp_path / "out")
    expected, found = merge([str(a), str(b)], symmetry="none").checkpoint, load(tmp_path / "out")
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    floors.gram(a, b)


def test_ratios_are_within_a_round():
    one = [Figures(2.0, 1.0, 1.0), Figures(9.0, 1.0, 1.0), Figures(4.0, 1.0, 1.0)]
    other = [Figures(1.0, 2.0, 1.0), Figures(3.0, 2.0, 1.0), Figures(1.0, 2.0, 1.0)]
    assert processes.ratio(one, other, "wall_s") == 3.0
    order = []
    contenders = {name: (lambda name=name: order.append(name) or other[0]) for name in "abc"}
    found = processes.in_turn(contenders, 2)
    assert order == ["a", "b", "c", "b", "c", "a"]
    assert {name: len(figures) for name, figures in found.items()} == {"a": 2, "b": 2, "c": 2}


def test_a_process_is_measured_and_its_failure_is_shown():
    program = "x = bytearray(60_000_000); import time; time.sleep(0.5)"
    assert 60 < processes.measured([sys.executable, "-c", program]).anonymous_mb < 200
    with pytest.raises(RuntimeError, match="ended with 3: what was wrong"):
        processes.measured([sys.executable, "-c", "print('what was wrong'); raise SystemExit(3)"])


def test_differences_are_in_last_places():
    x = torch.tensor([1.0, -3.0, 0.0, 1e-3], dtype=torch.bfloat16)
    assert scale._last_places(x, x).tolist() == [0.0] * x.numel()
    assert scale._last_places(x, (x.view(torch.int16) + 1).view(torch.bfloat16)).tolist() == [1.0] * x.numel()


@pytest.mark.exhaustive
def test_a_tiny_run(tmp_path, monkeypatch):
    scale.main(["--size", "tiny", "--runs", "1", "--only", "match-unrelated,experts,start", "--folder", str(tmp_path)])
    cases = json.loads((tmp_path / "scale-tiny.json").read_text())
    rounds = cases["match-unrelated"]["rounds"]
    assert list(rounds) == ["numpy stream", "grams and assignments", "cobasin"]
    assert list(cases["experts"]["rounds"]) == ["numpy stream", "loop over the tensors", "cobasin"]
    assert all(figure > 0 for figures in rounds.values() for figure in figures[0].values())
    assert list(cases["start"]["rounds"]) == [
        "import torch",
        "import torch, transformers",
        "import torch, cobasin",
        "import cobasin",
        "cobasin --help",
    ]
    assert cases["start"]["of"]["runs"] == 1
    assert not list((tmp_path / "tiny-2-layers").glob("out"))
    monkeypatch.setattr(scale, "measured", lambda *_: Figures(1.0, 1.0, 1.0))  # the commands are those of the cases
    scale.main(["--size", "tiny", "--runs", "1", "--only", "layers", "--folder", str(tmp_path)])
    found = json.loads((tmp_path / "scale-tiny.json").read_text())
    assert [(row["layers"], row["case"]) for row in found["layers"]["rows"]] == [
        (1, "average"),
        (1, "match-related"),
        (2, "average"),
        (2, "match-related"),
    ]
    assert {name: found[name] for name in cases} == cases
    assert (tmp_path / "scale-tiny-layers.png").exists()
    scale.main(["--size", "tiny", "--runs", "1", "--only", "tensors", "--folder", str(tmp_path)])
    rows = json.loads((tmp_path / "scale-tiny.json").read_text())["tensors"]["rows"]
    assert [(row["tensors"], row["case"]) for row in rows] == [(n, "average") for n in (23, 29, 35, 47)]


def test_unknown_cases_are_refused(capsys):
    with pytest.raises(SystemExit):
        scale.main(["--only", "nonsense"])
    assert "unknown: nonsense" in capsys.readouterr().err


def test_a_plan_agrees_with_what_was_measured(tmp_path, capsys):
    own, told = scale.SIZES["1.1b"], {"average": 15.0, "match-related": 87.0, "match-unrelated": 300.0}
    rounds = {case: {"rounds": {"cobasin": [{"wall_s": seconds}]}} for case, seconds in told.items()}
    for case, seconds in (("match-related", 90.0), ("match-unrelated", 200.0)):
        rounds[case]["rounds"]["grams and assignments"] = [{"wall_s": seconds}]
    rates = plan.Rates.of(rounds, own)
    assert plan.hours(own, rates, 1, related=True) * 3600 == pytest.approx(87.0)
    assert plan.hours(own, rates, 1, related=False) * 3600 == pytest.approx(300.0)
    assert plan.hours(own, rates, 2, related=False) * 3600 == pytest.approx(150.0)
    assert plan.hours(own, rates, 10**6, related=True) * 3600 == pytest.approx(72.0 / 22, rel=1e-3)  # one layer
    (tmp_path / "rates.json").write_text(json.dumps(rounds))
    plan.main(["--rates", str(tmp_path / "rates.json"), "--price", "1000"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert len(lines) == 2 * len(plan.LARGE) + 1  # a mixture of experts in their order, too
    with pytest.raises(SystemExit):
        plan.main(["--rates", str(tmp_path / "none.json")])
    assert "none.json: no such file; run benchmarks/scale.py first" in capsys.readouterr().err


def test_steps_at_full_size_are_told_next_to_the_bare_grams(tmp_path, monkeypatch, capsys):
    for which, seed in (("anchor", 0), ("unrelated", 1)):
        model("roberta/RobertaForMaskedLM", seed, torch.float32).save_pretrained(tmp_path / f"roberta-base-{which}")

    def run(what, anchor, source, device="cpu"):
        full_size.step(what, anchor, source, device)
        return full_size.Step(**json.loads(capsys.readouterr().out))

    monkeypatch.setattr(full_size, "run", run)
    full_size.main(["roberta-base", "--pairs", "unrelated", "--runs", "2", "--folder", str(tmp_path)])
    shown = capsys.readouterr().out
    assert [shown.count(f"│ {what} ") for what in full_size.STEPS] == [1] * len(full_size.STEPS)
    kept = json.loads((tmp_path / "full-size.json").read_text())["roberta-base, unrelated"]
    assert kept["of"]["threads"] == torch.get_num_threads()
    if not torch.cuda.is_available():
        with pytest.raises(SystemExit):
            full_size.main(["roberta-base", "--device", "cuda", "--folder", str(tmp_path)])
        assert "--device cuda: there is no GPU that torch can use" in capsys.readouterr().err
    rounds = kept["rounds"]
    assert {what: len(steps) for what, steps in rounds.items()} == dict.fromkeys(full_size.STEPS, 2)
    assert all(
        (step["rounds"] is not None) == (what in full_size.MATCHINGS) for what in rounds for step in rounds[what]
    )
    assert rounds["full"][0]["ascent_cpu_s"] > 0
    model("gpt2/GPT2LMHeadModel").save_pretrained(tmp_path / "gpt2")
    with pytest.raises(RuntimeError, match="no FFN of BERT's names"):
        full_size.grams(tmp_path / "gpt2", tmp_path / "gpt2")
    with pytest.raises(SystemExit):
        full_size.main(["--pairs", "nonsense"])
    assert "--pairs: unknown: nonsense; there are unrelated, related" in capsys.readouterr().err
