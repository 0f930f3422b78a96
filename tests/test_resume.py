"""A run that is killed goes on with --resume from what it had finished, to the files of one that was not."""

import json
import os
import random
import resource
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertForMaskedLM

from cobasin.checkpoints.writer import save
from cobasin.errors import InputError
from cobasin.execution import outcomes
from cobasin.matching import weights
from command_line import pair, refused, run, snapshot
from forks import forked
from merge_cases import saved

CASE = "bert/BertForMaskedLM"
# Runs command lines, each in a process of its own that is killed once it has finished so many things of a kind; of kind
# "file", before the operation of this number on files of the run, all of which are counted and their number said.
KILLED = """
import json, os, signal, sys
from pathlib import Path
from cobasin import cli
from cobasin.checkpoints.output import FOUND, RUN
from cobasin.execution import outcomes
from cobasin.workflows import match, merge
from transformers import BertConfig

outcomes.WORTH = 0.0

def kind_of(path):
    if FOUND in path.parts:
        return "elements" if path.name == "elements.json" else "unit"
    return "shard" if path.suffix == ".safetensors" else "other"

def unlinked(self, missing_ok=False, unlink=Path.unlink):
    unlink(self, missing_ok)
    if self.name == RUN:
        os.kill(os.getpid(), signal.SIGKILL)

def kill_after(kind, number):
    seen = []
    if kind == "publishing":
        Path.unlink = unlinked
    for name in ("rename", "replace"):
        def moved(self, target, move=getattr(Path, name)):
            result = move(self, target)
            if kind_of(Path(target)) == kind:
                seen.append(target)
                if len(seen) >= number:  # several threads finish things
                    os.kill(os.getpid(), signal.SIGKILL)
            return result
        setattr(Path, name, moved)

def kill_before(out, number):
    seen = []
    def count(event, arguments):
        if arguments and isinstance(arguments[0], (str, Path)) and f"/.{out.name}.partial-" in str(arguments[0]):
            seen.append(event)
            if number and len(seen) >= number:  # several threads work on files
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(count)
    return seen

for arguments, kind, number in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        seen = []
        if kind == "file":
            seen = kill_before(Path(arguments[-1]), number)
        else:
            kill_after(kind, number)
        sys.argv = ["cobasin", *arguments]
        try:
            cli.main()
        finally:
            print(len(seen), flush=True)
            os._exit(0)
    assert os.waitpid(child, 0)[1] == (signal.SIGKILL if number else 0), (arguments, kind, number)
"""


def killed(*runs):
    """Run command lines that are killed after ``number`` things of ``kind``; returns what they have said."""
    done = forked(KILLED, json.dumps(runs))
    assert done.returncode == 0, done.stderr
    return done.stdout


def left(out):
    """The folder that a killed run has left; it does not look like a model."""
    (folder,) = out.parent.glob(f".{out.name}.partial-*")
    assert not out.exists()
    assert "has no config.json" in refused(out.parent, "inspect", folder)
    with pytest.raises(OSError, match="no file named"):
        BertForMaskedLM.from_pretrained(folder)
    return folder


def assert_same_files(out, whole):
    """The same weights, config and index, byte by byte; the elements tensor by tensor: their reports have the time."""
    assert sorted(path.name for path in out.iterdir()) == sorted(path.name for path in whole.iterdir())
    for path in whole.glob("model*"):
        assert (out / path.name).read_bytes() == path.read_bytes(), path.name
    assert (out / "config.json").read_bytes() == (whole / "config.json").read_bytes()
    for path in whole.glob("cobasin*.safetensors"):
        found, expected = load_file(out / path.name), load_file(path)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_match(tmp_path, monkeypatch):
    source, anchor = pair(tmp_path, CASE, shard="20KB")
    start = ["match", str(source), str(anchor), "--out"]
    calls, update = [], weights._update_family
    monkeypatch.setattr(weights, "_update_family", lambda *given: calls.append(given) or update(*given))
    assert run(*start, tmp_path / "whole").code == 0
    whole = len(calls)
    points = [("unit", 1), ("unit", 8), ("unit", 12), ("elements", 1), ("shard", 1), ("shard", 2)]
    outs = [tmp_path / f"{kind}-{number}" for kind, number in points]
    killed(*([[*start, str(out)], *point] for out, point in zip(outs, points, strict=True)))
    saved_by = []
    for out in outs:
        folder = left(out)
        shards = {path.name: path.stat().st_ino for path in folder.glob("model-*.safetensors")}
        calls.clear()
        monkeypatch.setattr(outcomes, "WORTH", 0.0)
        assert run(*start, out, "--resume").code == 0
        assert_same_files(out, tmp_path / "whole")
        assert not list(tmp_path.glob(f".{out.name}.*"))
        assert shards.items() <= {path.name: path.stat().st_ino for path in out.iterdir()}.items()
        saved_by.append(whole - len(calls))
    assert all(saved_by[1:3])  # the first units are the distances at the start and those of the streams
    assert saved_by[3:] == [whole] * 3  # nothing is matched again


def test_ten_random_moments(tmp_path):
    source, anchor = pair(tmp_path, CASE, shard="20KB")
    start = ["merge", str(anchor), str(source), "--out"]
    # what a kill leaves changes with operations on files; those between two that Python sees have names of their own
    count = int(killed([[*start, str(tmp_path / "whole")], "file", 0]).splitlines()[-1])
    moments = random.Random(0).sample(range(1, count + 1), 10)
    killed(*([[*start, str(tmp_path / f"out-{moment}")], "file", moment] for moment in moments))
    for moment in moments:
        out = tmp_path / f"out-{moment}"
        assert not out.exists()
        assert run(*start, out, "--resume").code == 0
        assert_same_files(out, tmp_path / "whole")
        assert not list(tmp_path.glob(f".{out.name}.*"))


@pytest.mark.parametrize("more", [(), ("--overwrite",)])
def test_while_it_is_published(tmp_path, more):
    source, anchor = pair(tmp_path, CASE)
    start = ["merge", str(anchor), str(source), "--match", "ffn", "--out"]
    out, before = tmp_path / "out", tmp_path / "before"
    assert run("merge", anchor, source, "--match", "none", "--out", before).code == 0
    if more:
        shutil.copytree(before, out)
    killed([[*start, str(out), *more], "publishing", 1])
    assert out.exists() is bool(more)
    if more:
        assert snapshot(out) == snapshot(before)
    assert run(*start, out, *more, "--resume").code == 0
    assert run(*start, tmp_path / "whole").code == 0
    assert_same_files(out, tmp_path / "whole")
    assert not list(tmp_path.glob(".out.*"))


def test_merge_of_three(tmp_path):
    models = saved(tmp_path, CASE, 3)
    start = ["merge", *map(str, models), "--match", "ffn,attention", "--out"]
    assert run(*start, tmp_path / "whole").code == 0
    points = [("unit", 3), ("unit", 8), ("elements", 1)]
    outs = [tmp_path / f"{kind}-{number}" for kind, number in points]
    killed(*([[*start, str(out)], *point] for out, point in zip(outs, points, strict=True)))
    for out in outs:
        left(out)
        assert run(*start, out, "--resume").code == 0
        assert_same_files(out, tmp_path / "whole")


def test_methods_of_angles_where_nothing_of_the_form_is_fixed(tmp_path):
    """They fuse in the anchor's gauge, which is empty where neither norms nor biases are free."""
    start = ["merge", *map(str, saved(tmp_path, CASE, 2)), "--match", "ffn", "--method", "karcher", "--out"]
    assert run(*start, tmp_path / "whole").code == 0
    killed([[*start, str(tmp_path / "out")], "elements", 1])
    assert run(*start, tmp_path / "out", "--resume").code == 0
    assert_same_files(tmp_path / "out", tmp_path / "whole")


def occupied(out):
    """A folder with something in it."""
    out.mkdir()
    (out / "mine").touch()
    return out


def test_a_run_of_something_else_is_refused_and_one_without_resume_starts_anew(tmp_path):
    source, anchor = pair(tmp_path, CASE, shard="20KB")
    out, start = tmp_path / "out", ["merge", str(anchor), str(source), "--match", "none", "--out"]
    killed([[*start, str(out)], "shard", 2])
    folder = left(out)
    for more, other in (
        (["--method", "karcher"], "recipe"),
        (["--match", "ffn"], "recipe"),
        (["--weights", "0.1,0.9"], "recipe"),
    ):
        line = refused(tmp_path, *start, out, *more, "--resume")
        assert f"{folder}: the state of a run with other {other}; repeat the command" in line
    assert "the state of another command; repeat" in refused(
        tmp_path, "match", source, anchor, "--out", out, "--resume"
    )
    times = (source / "config.json").stat()
    os.utime(source / "config.json", ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    assert f"with other model {source}" in refused(tmp_path, *start, out, "--resume")
    with pytest.raises(InputError, match="is not empty"):  # what is refused takes nothing away
        save(source, occupied(out))
    shutil.rmtree(out)
    for said in ("{", "[]", "[" * 100_000):
        (folder / ".run.json").write_text(said)
        assert f"{folder}: does not say what run it is of" in refused(tmp_path, *start, out, "--resume")
    assert run(*start, tmp_path / "whole").code == 0
    (folder / ".run.json").unlink()  # as a run leaves it that is killed at its very start or end
    assert run(*start, out, "--resume").code == 0
    assert_same_files(out, tmp_path / "whole")
    again = tmp_path / "again"
    killed([[*start, str(again)], "shard", 2])
    left(again)
    assert run(*start, again).code == 0
    assert_same_files(again, tmp_path / "whole")
    assert not list(tmp_path.glob(".out.*")) + list(tmp_path.glob(".again.*"))


def test_the_other_way_round_is_something_else(tmp_path):
    """What was found would bring the anchor somewhere."""
    source, anchor = pair(tmp_path, CASE)
    start = ["match", str(source), str(anchor), "--symmetry", "ffn", "--out", str(tmp_path / "out")]
    killed([start, "elements", 1])
    line = refused(tmp_path, "match", anchor, source, *start[3:], "--resume")
    assert "the state of a run with other source and anchor; repeat the command" in line
    assert run(*start, "--resume").code == 0


def test_damaged_state(tmp_path):
    source, anchor = pair(tmp_path, CASE)
    out, start = tmp_path / "out", ["match", str(source), str(anchor), "--symmetry", "ffn", "--out"]
    killed([[*start, str(out)], "unit", 1])
    state, *_ = left(out).glob(".found/*/*.safetensors")  # another thread may have ended before the kill

    def refuse(name):
        finished = run(*start, out, "--resume")
        assert (finished.code, finished.out) == (2, "")
        (line,) = finished.err.splitlines()
        path = left(out) / ".found" / name  # every run calls what it goes on with anew
        assert f"{path.name}: is damaged" in line
        assert f"remove {path.parent} to start anew" in line
        return path

    name = state.relative_to(left(out) / ".found")
    state.write_bytes(b"cut off")
    save_file({}, refuse(name), {"distances": "[" * 100_000})
    found = refuse(name).parent
    for content in ("[]", "[" * 100_000):
        (found.parent / "elements.json").write_text(content)
        found = refuse("elements.json").parent / name.parent
    (found.parent / "elements.json").unlink()
    shutil.rmtree(found)
    assert run(*start, out, "--resume").code == 0


def test_an_interrupted_run_is_kept_where_that_is_asked_for(tmp_path):
    source, anchor = pair(tmp_path, CASE)
    program = "import os, signal; from cobasin.presenting import progress; from cobasin import cli\n"
    program += "progress.bar = lambda *_: os.kill(os.getpid(), signal.SIGINT)\ncli.main()"
    start = ["match", str(source), str(anchor), "--symmetry", "ffn", "--out", str(tmp_path / "out")]
    stopped = subprocess.run([sys.executable, "-c", program, *start, "--resume"], capture_output=True, text=True)
    assert stopped.returncode == 130
    assert stopped.stderr == "interrupted; what is finished is kept for --resume\n"
    assert (left(tmp_path / "out") / ".found" / "elements.json").exists()
    assert run(*start, "--resume").code == 0


@pytest.mark.parametrize("verb", ["match", "merge"])
def test_what_a_full_disk_stopped_goes_on_where_there_is_room(tmp_path, verb):
    source, anchor = pair(tmp_path, CASE, shard="20KB")
    out, (_, hard) = tmp_path / "out", resource.getrlimit(resource.RLIMIT_FSIZE)
    assert run(verb, source, anchor, "--out", tmp_path / "whole").code == 0
    *_, less, most = sorted(path.stat().st_size for path in (tmp_path / "whole").iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, ((less + most) // 2, hard))
    try:
        stopped = run(verb, source, anchor, "--out", out, "--resume")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert (stopped.code, out.exists()) == (2, False)
    assert f"{out}: cannot be written: File too large" in stopped.err
    kept = left(out)
    assert list(kept.glob("*.safetensors"))  # shards that were finished
    assert run(verb, source, anchor, "--out", out, "--resume").code == 0
    assert not kept.exists()
    assert snapshot(out).keys() == snapshot(tmp_path / "whole").keys()
    for shard in out.glob("model*.safetensors"):
        assert shard.read_bytes() == (tmp_path / "whole" / shard.name).read_bytes()


def test_nothing_to_go_on_from(tmp_path):
    source, anchor = pair(tmp_path, CASE)
    before = snapshot(tmp_path)
    wrong = ["merge", str(anchor), str(source), "--head-from", "nobody", "--out", str(tmp_path / "a" / "b")]
    refused(tmp_path, *wrong, "--resume")
    assert snapshot(tmp_path) == before
    assert "repair and heal keep no state" in refused(
        tmp_path, "merge", anchor, source, "--repair", "--out", tmp_path / "out", "--resume"
    )
    assert run("merge", anchor, source, "--match", "none", "--out", tmp_path / "a" / "b", "--resume").code == 0
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["b"]
