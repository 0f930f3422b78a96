"""Parts of one run share its work through a folder, and do what is left by those that are gone."""

import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from cobasin.checkpoints.sharing import sharing
from cobasin.errors import InputError
from cobasin.execution import parts
from cobasin.execution.outcomes import Outcome, found_by
from cobasin.execution.parts import Part, living, read_part
from cobasin.finding import from_pairs
from cobasin.finding.kept import Kept
from cobasin.matching import weights
from cobasin.merging import statistics
from cobasin.whole_files import unfinished
from command_line import pair, refused, run, snapshot
from merge_cases import CLASSIFIER, recipe, saved, token_rows
from own_architectures import EXAMPLE, hyperclovax
from test_resume import assert_same_files

CASE = "bert/BertForMaskedLM"


@pytest.fixture
def impatient(monkeypatch):
    """Nobody waits for long."""
    monkeypatch.setattr(parts, "BEAT", 0.1)
    monkeypatch.setattr(parts, "SILENT", 0.6)


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/0", "-1/2", "a/b", "1/2/3", "", "1.5/2"])
def test_what_is_no_part(text):
    with pytest.raises(InputError, match="expected i/n, like 2/8"):
        read_part(text)
    assert read_part(" 2/8 ") == (2, 8)


def test_every_job_has_one_owner(tmp_path):
    team = [Part(number, 3, tmp_path) for number in (1, 2, 3)]
    assert [[part.owns(job) for part in team].index(True) for job in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert all(sum(part.owns(job) for part in team) == 1 for job in range(7))


def test_what_another_part_does_is_waited_for_while_it_lives(tmp_path, impatient):
    result = tmp_path / "result"
    with Part(1, 2, tmp_path).at_work():
        threading.Timer(2.0, result.touch).start()
        assert not Part(2, 2, tmp_path).must_do(0, result)
        assert result.exists()


def test_what_a_silent_part_should_do_is_divided_among_the_others(tmp_path, impatient):
    with Part(2, 3, tmp_path).at_work(), Part(3, 3, tmp_path).at_work():
        (tmp_path / "part-1").write_text("17")  # killed, and counts no further
        second, third = Part(2, 3, tmp_path), Part(3, 3, tmp_path)
        assert second.must_do(0, tmp_path / "0")
        assert third.must_do(3, tmp_path / "3")
        threading.Timer(0.3, (tmp_path / "6").touch).start()  # the second does it
        assert not third.must_do(6, tmp_path / "6")


def test_a_part_at_work_is_seen_and_not_started_twice(tmp_path, impatient):
    assert living(tmp_path) == []
    with Part(2, 2, tmp_path).at_work():
        time.sleep(0.5)
        assert living(tmp_path) == [2]
        with pytest.raises(InputError, match="part 2/2 of this run is at work already"), Part(2, 2, tmp_path).at_work():
            pass
    assert not list(tmp_path.iterdir())
    (tmp_path / "part-1").write_text("17")  # killed
    assert living(tmp_path) == []
    with Part(1, 2, tmp_path).at_work():
        assert living(tmp_path, 1) == [1]
    assert not list(tmp_path.iterdir())


def test_of_two_that_start_a_killed_part_again_one_is_refused(tmp_path, impatient, monkeypatch):
    """The other has claimed it while this one waited to see whether it lives."""
    (tmp_path / "part-1").write_text("17")
    waited = parts.living

    def claimed_meanwhile(*given):
        monkeypatch.setattr(parts, "living", waited)
        found = waited(*given)
        running.append(Part(1, 2, tmp_path).at_work())
        running[0].__enter__()
        return found

    running = []
    monkeypatch.setattr(parts, "living", claimed_meanwhile)
    with pytest.raises(InputError, match="part 1/2 of this run is at work already"), Part(1, 2, tmp_path).at_work():
        pass
    assert living(tmp_path, 1) == [1]
    running[0].__exit__(None, None, None)


def test_the_sign_of_life_ends_with_a_part_that_is_killed(tmp_path):
    program = "import os, sys\nfrom pathlib import Path\nfrom cobasin.execution import parts\nparts.BEAT = 0.1\n"
    program += "import time\n"
    program += "with parts.Part(1, 2, Path(sys.argv[1])).at_work():\n time.sleep(1)\n os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", program, tmp_path], check=False)
    time.sleep(0.5)
    count = (tmp_path / "part-1").read_text()
    time.sleep(0.5)
    assert (tmp_path / "part-1").read_text() == count


def start(*arguments):
    """A part, as a process."""
    command = [sys.executable, "-c", "from cobasin.cli import main; main()", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_what_was_written_first_is_used_by_all(tmp_path, impatient):
    """A part that took over for one that lives after all does not replace what the others have read."""
    first, second = (Kept(tmp_path, Part(number, 2, tmp_path)) for number in (1, 2))
    key = ("ffn", 0)

    def of(number):
        return Outcome({key: {"perm": torch.tensor([number])}}, {"w": float(number)})

    def while_the_other_does_it():
        first.save("a", of(1))
        return of(2)

    found = found_by(second, "a", 1, while_the_other_does_it)
    assert found.values[key]["perm"].item() == found.distances["w"] == 1
    assert first.load("a").distances == {"w": 1.0}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.safetensors"]
    alone = Kept(tmp_path / "alone")
    for number in (1, 2):
        alone.save("a", of(number))
    assert alone.load("a").distances == {"w": 2.0}


def test_match_shared_by_two_processes(tmp_path):
    source, anchor = pair(tmp_path, CASE, shard="20KB")
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert run("match", source, anchor, "--out", whole).code == 0
    both = [start("match", source, anchor, "--out", out, "--part", f"{i}/2") for i in (1, 2)]
    said = [one.communicate(timeout=300) for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    assert "part 2 of 2 is done; once all are, the same command with --resume" in said[1][0]
    assert not out.exists()
    inodes = {path.name: path.stat().st_ino for path in (tmp_path / ".out.parts").glob("model-*.safetensors")}
    assert len(inodes) == 2
    assert run("match", source, anchor, "--out", out, "--resume").code == 0
    assert_same_files(out, whole)
    assert inodes.items() <= {path.name: path.stat().st_ino for path in out.iterdir()}.items()
    assert not list(tmp_path.glob(".out*"))


def test_one_part_alone_does_the_whole_match_and_its_share_of_the_shards(tmp_path, impatient, monkeypatch):
    source, anchor = pair(tmp_path, CASE, shard="20KB")
    whole, out = tmp_path / "whole", tmp_path / "out"
    command = ["match", source, anchor, "--symmetry", "ffn,attention", "--out"]
    assert run(*command, whole).code == 0
    assert run(*command, out, "--part", "2/2", "--json").json["parts"] == 2
    shards = sorted(path.name for path in whole.glob("model-*.safetensors"))
    assert sorted(path.name for path in (tmp_path / ".out.parts").glob("model-*.safetensors")) == shards[1::2]
    calls, update = [], weights._update_family
    monkeypatch.setattr(weights, "_update_family", lambda *given: calls.append(given) or update(*given))
    assert run(*command, out, "--resume").code == 0
    assert not calls
    assert_same_files(out, whole)


def test_merge(tmp_path, impatient):
    models = saved(tmp_path, CASE, 3)
    whole, out = tmp_path / "whole", tmp_path / "out"
    command = ["merge", *models, "--match", "ffn,attention", "--out"]
    assert run(*command, whole).code == 0
    for part in ("1/2", "2/2"):
        assert run(*command, out, "--part", part).code == 0
    assert run(*command, out, "--resume").code == 0
    assert_same_files(out, whole)


def test_a_consensus_is_found_by_one_part(tmp_path, impatient, monkeypatch):
    models = saved(tmp_path, CASE, 3)
    whole, out, found = tmp_path / "whole", tmp_path / "out", []
    consensus = from_pairs.consensus
    monkeypatch.setattr(from_pairs, "consensus", lambda *given: found.append(given) or consensus(*given))
    command = ["merge", *models, "--match", "ffn,attention", "--anchor", "consensus", "--out"]
    assert run(*command, whole).code == 0
    for part in ("1/2", "2/2"):
        assert run(*command, out, "--part", part).code == 0
    report = run(*command, out, "--resume", "--json").json
    assert len(found) == 2  # for the whole, and for the parts
    assert_same_files(out, whole)
    assert report["matching"]["starts"].keys() == {"0", "1", "2"}


def test_a_merge_with_statistics_shared_by_two_processes(tmp_path, monkeypatch):
    models, data = saved(tmp_path, CLASSIFIER, 2), {"path": str(token_rows(tmp_path / "rows.jsonl", count=20))}
    path = recipe(tmp_path / "recipe.yaml", "fisher", models, statistics={"data": data, "batch_size": 1})
    whole, out, keeps = tmp_path / "whole", tmp_path / "out", []
    collect = statistics.collect
    monkeypatch.setattr(
        statistics, "collect", lambda *given, **more: keeps.append(more["keep"]) or collect(*given, **more)
    )
    assert run("merge", path, "--out", whole).code == 0
    assert keeps == [None] * 2  # a run of its own keeps sums in the cache only
    both = [start("merge", path, "--out", out, "--part", f"{i}/2") for i in (1, 2)]
    said = [one.communicate(timeout=300) for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    assert len(list((tmp_path / ".out.parts" / ".found").glob("fisher-*/slice-*.safetensors"))) == 2 * 16
    assert run("merge", path, "--out", out, "--resume").code == 0
    assert None not in keeps[2:]
    assert_same_files(out, whole)


def test_refused(tmp_path, impatient):
    source, anchor = pair(tmp_path, CASE)
    match, merge = (["match", source, anchor], ["merge", anchor, source, "--match", "none"])
    out = ["--out", tmp_path / "out"]
    for wrong, text in (
        ([*match, "--part", "3/2"], "--part 3/2: expected i/n"),
        ([*match, "--part", "1/2", "--resume"], "goes without --resume, which gathers the parts"),
        ([*match, "--part", "1/2", "--engine", "ray"], "goes without --engine ray, which makes parts of its own"),
        ([*match, "--engine", "slurm"], "--engine slurm: expected local or ray"),
        ([*merge, "--repair", "--part", "1/2"], "repair and heal keep no state"),
        ([*merge, "--keep-heads", "--part", "1/2"], "several folders"),
    ):
        assert text in refused(tmp_path, *wrong, *out)
    learned = run(*match, "--method", "learned", "--part", "1/2", *out)
    assert learned.code == 2
    assert "match without --part and --engine ray" in learned.err


def test_parts_of_another_run_are_not_mixed_in(tmp_path, impatient):
    source, anchor = pair(tmp_path, CASE)
    out = tmp_path / "out"
    command = ["match", source, anchor, "--out", out, "--symmetry"]
    assert run(*command, "ffn", "--part", "1/2").code == 0
    shared = tmp_path / ".out.parts"
    assert "with other number of parts" in refused(tmp_path, *command, "ffn", "--part", "2/3")
    for more in (["--part", "2/2"], ["--resume"]):
        line = refused(tmp_path, *command, "paper", *more)
        assert f"{shared}: the state of a run with other symmetry" in line
    assert f"remove {shared} to start anew" in refused(tmp_path, *command, "paper", "--part", "2/2")
    assert run(*command, "paper").code == 0  # without --resume it starts anew
    assert not shared.exists()


def test_a_declaration_that_was_edited_is_of_another_run(tmp_path, impatient, registry):
    for seed, name in enumerate("ab"):
        hyperclovax(seed).save_pretrained(tmp_path / name)
    spec = tmp_path / "spec.py"
    spec.write_text(EXAMPLE.read_text())
    command = ["match", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "out", "--symmetry", "ffn", "--spec", spec]
    assert run(*command, "--part", "1/2").code == 0
    spec.write_text(spec.read_text() + "# edited\n")
    assert f"a run with other file {spec}" in refused(tmp_path, *command, "--part", "2/2")


def test_what_parts_have_filled_is_gathered_before_what_a_killed_run_left(tmp_path, impatient):
    source, anchor = pair(tmp_path, CASE)
    command = ["match", source, anchor, "--out", tmp_path / "out", "--symmetry", "ffn"]
    assert run(*command, "--part", "1/2").code == 0
    later = tmp_path / ".out.partial-999999999"
    shutil.copytree(tmp_path / ".out.parts", later)
    shutil.rmtree(later / ".found")
    (tmp_path / ".out.parts" / "model-of-parts").write_text("")
    assert run(*command, "--resume").code == 0
    assert (tmp_path / "out" / "model-of-parts").exists()
    assert not later.exists()


def test_parts_whose_folder_is_removed(tmp_path):
    def work():
        with sharing(tmp_path / "out", False, [], {"command": "match"}, (1, 2)) as (folder, _):
            shutil.rmtree(folder)
            raise InputError(f"{folder}: cannot be written")

    with pytest.raises(InputError, match="cannot be written"):
        work()


def test_a_part_that_is_refused_leaves_nothing(tmp_path, impatient):
    source, anchor = pair(tmp_path, CASE)
    command = ["match", source, anchor, "--out", tmp_path / "a" / "out", "--part", "1/2", "--symmetry"]
    assert "ffnn" in refused(tmp_path, *command, "ffnn")
    assert run(*command, "ffn").code == 0


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_part_that_waits_can_be_stopped(tmp_path, stop):
    source, anchor = pair(tmp_path, CASE)
    waiting = start("match", source, anchor, "--out", tmp_path / "out", "--symmetry", "ffn", "--part=1/2")
    found = tmp_path / ".out.parts" / ".found"
    while not list(found.glob("*/start-0.*")):
        assert waiting.poll() is None
        time.sleep(0.05)
    with Part(2, 2, found).at_work():
        time.sleep(1)
        waiting.send_signal(stop)
        assert waiting.wait(timeout=15) == 130
    assert waiting.stderr.read() == "interrupted; what is finished is kept for --resume\n"


def test_what_killed_parts_leave_is_not_published(tmp_path, impatient):
    source, anchor = pair(tmp_path, CASE)
    command = ["match", source, anchor, "--symmetry", "ffn", "--out"]
    assert run(*command, tmp_path / "whole").code == 0
    assert run(*command, tmp_path / "out", "--part", "1/1").code == 0
    for name in ("model.safetensors", ".run.json", "config.json"):
        unfinished(tmp_path / ".out.parts" / name).write_text("half of it")
    (tmp_path / ".out.parts" / ".found" / "part-1").write_text("17")
    assert run(*command, tmp_path / "out", "--resume").code == 0
    assert_same_files(tmp_path / "out", tmp_path / "whole")


def test_nothing_is_gathered_from_parts_at_work(tmp_path, impatient):
    source, anchor = pair(tmp_path, CASE)
    command = ["match", source, anchor, "--out", tmp_path / "out", "--symmetry", "ffn"]
    assert run(*command, "--part", "1/2").code == 0
    found = tmp_path / ".out.parts" / ".found"
    with Part(2, 2, found).at_work():
        time.sleep(0.5)
        before = sorted(snapshot(tmp_path))
        for more in (["--resume"], []):
            finished = run(*command, *more)
            assert finished.code == 2
            assert "part 2 of it is at work; wait for the end of all parts" in finished.err
        assert sorted(snapshot(tmp_path)) == before
    assert run(*command, "--resume").code == 0
    assert (tmp_path / "out" / "config.json").exists()
