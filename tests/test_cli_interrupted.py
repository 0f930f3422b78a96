"""What is left when a run is stopped in the middle of writing, and when the disk is full."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from transformers import BertForMaskedLM

from cobasin.checkpoints.checkpoint import load
from cobasin.errors import InputError
from cobasin.matching import weights
from command_line import pair, refused, run, snapshot
from forks import forked
from test_resume import assert_same_files

CASE = "bert/BertForMaskedLM"
# Sends itself a signal as soon as three tensors are written.
STOPPED = """
import os, signal, sys
from contextlib import contextmanager
from cobasin import cli
from cobasin.presenting import progress

number, written = int(sys.argv.pop(1)), []
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which a suite may run without

@contextmanager
def bar(text, total):
    yield lambda size: written.append(size) or len(written) == 3 and os.kill(os.getpid(), number)

progress.bar = bar
cli.main()
"""
PLAIN = "from cobasin.cli import main; main()"
FULL = Path("/dev/full")
SPACE = "free some space, raise the limit, or choose a folder on another disk"


def process(program, *arguments, **environment):
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)


@pytest.mark.parametrize(
    ("verb", "number"), [("match", signal.SIGINT), ("merge", signal.SIGTERM), ("merge", signal.SIGHUP)]
)
def test_interrupted(tmp_path, verb, number):
    source, anchor = pair(tmp_path, CASE)
    old = tmp_path / "out" / "old.txt"
    old.parent.mkdir()
    old.write_text("x")
    before = snapshot(tmp_path)
    stopped = forked(STOPPED, int(number), verb, source, anchor, "--out", old.parent, "--overwrite")
    assert stopped.returncode == 130
    assert stopped.stdout == ""
    assert stopped.stderr == "interrupted; no unfinished output was left behind\n"
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("error", [InputError, RuntimeError])
def test_an_interrupt_of_which_a_library_makes_an_error_of_its_own(tmp_path, monkeypatch, error, number):
    def verify(*_):
        try:
            os.kill(os.getpid(), number)
            time.sleep(10)  # cut short; under another's handler, such as Ray's, the test fails and does not wait on
        except KeyboardInterrupt:
            raise error("something went wrong") from None

    monkeypatch.setattr("cobasin.verification.verify", verify)
    stopped = run("verify", *pair(tmp_path, CASE))
    assert (stopped.code, stopped.out) == (130, "")
    assert stopped.err == "interrupted; no unfinished output was left behind\n"


def test_interrupted_before_the_command_line_is_read(monkeypatch):
    monkeypatch.setattr("command_line.COMMAND", lambda **_: os.kill(os.getpid(), signal.SIGTERM) or time.sleep(10))
    stopped = run("inspect", "--list")
    assert (stopped.code, stopped.err) == (130, "interrupted; no unfinished output was left behind\n")


def test_killed(tmp_path):
    source, anchor = pair(tmp_path, CASE, shard="20KB")
    before = snapshot(tmp_path)
    killed = forked(STOPPED, int(signal.SIGKILL), "merge", anchor, source, "--out", tmp_path / "out")
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    (left,) = tmp_path.glob(".*")
    assert before.items() < snapshot(tmp_path).items()
    assert "has no config.json" in refused(tmp_path, "inspect", left)
    with pytest.raises(OSError, match="no file named"):
        BertForMaskedLM.from_pretrained(left)
    assert run("merge", anchor, source, "--out", tmp_path / "out").code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["anchor", "out", "source"]
    BertForMaskedLM.from_pretrained(tmp_path / "out")


@pytest.mark.parametrize("verb", ["match", "merge"])
@pytest.mark.parametrize("limit", [1_000, 30_000])
def test_a_limit_on_the_size_of_files(tmp_path, verb, limit):
    source, anchor = pair(tmp_path, CASE)
    out, (_, hard) = tmp_path / "out", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        line = refused(tmp_path, verb, source, anchor, "--out", out, unread=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert f"{out}: cannot be written: File too large; {SPACE}" in line


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 32 KB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32k", "none", disk], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"mounting needs rights: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("verb", ["match", "merge"])
def test_a_full_disk(tmp_path, small_disk, verb):
    source, anchor = pair(tmp_path, CASE)
    line = refused(tmp_path, verb, source, anchor, "--out", small_disk / "out", unread=False)
    assert f"{small_disk / 'out'}: cannot be written: No space left on device; {SPACE}" in line


@pytest.mark.parametrize("verb", ["match", "merge"])
def test_shards_that_are_removed_while_they_are_used(tmp_path, verb, monkeypatch):
    """What was opened stays what it is, whatever becomes of its name."""
    source, anchor = pair(tmp_path, CASE, shard="20KB")
    shards, update = sorted(source.glob("model-*.safetensors")), weights._update_family
    assert run(verb, source, anchor, "--out", tmp_path / "whole").code == 0

    def removing(*given):
        for shard in shards:
            shard.unlink(missing_ok=True)
        shards[0].write_bytes(b"something else")
        return update(*given)

    monkeypatch.setattr(weights, "_update_family", removing)
    assert run(verb, source, anchor, "--out", tmp_path / "out").code == 0
    assert_same_files(tmp_path / "out", tmp_path / "whole")
    line = refused(tmp_path, verb, source, anchor, "--out", tmp_path / "again")
    assert str(shards[0]) in line


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_reader_that_leaves(form):
    """The exit code is that of the work: 1 would be an answer of verify."""
    command = [sys.executable, "-c", PLAIN, "methods", *form]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert (process.wait(), process.stderr.read()) == (0, b"")


@pytest.mark.skipif(not FULL.exists(), reason="no such device here")
def test_messages_that_cannot_be_written(tmp_path):
    """As where they go to a log on a full disk: 1 would be an answer of verify."""
    a, b = pair(tmp_path, CASE)

    def code(*arguments):
        command = [sys.executable, "-c", PLAIN, *map(str, arguments)]
        with FULL.open("w") as full:
            return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=full).returncode

    assert code("verify", a, tmp_path / "nowhere") == 2
    assert code("match", b, a, "--out", tmp_path / "out") == 0
    assert load(tmp_path / "out").architecture == "BertForMaskedLM"


def test_streams_of_a_process(tmp_path):
    """A process of its own has the log of transformers on its standard error, too."""
    source, anchor = pair(tmp_path, "gpt2/GPT2LMHeadModel")
    source = source.rename(tmp_path / "modèle")
    done = process(PLAIN, "merge", anchor, source, "--out", tmp_path / "out", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"linear of 0.5 x {anchor}, 0.5 x {tmp_path}/mod\\xe8le\n" in done.stdout
    assert load(tmp_path / "out").architecture == "GPT2LMHeadModel"
    before = snapshot(tmp_path)
    again = process(PLAIN, "match", source, "no-such/model", "--out", tmp_path / "again", HF_HUB_OFFLINE="1")
    assert (again.returncode, again.stdout) == (2, "")
    (line,) = again.stderr.splitlines()
    assert line.startswith("error: no-such/model: no such folder, and not available from the hub: ")
    assert snapshot(tmp_path) == before
