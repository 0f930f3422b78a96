"""Output folders are refused before, or complete after: nothing in between, whatever interrupts the run."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import BertForMaskedLM

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.output import RUN, stamp, working
from cobasin.checkpoints.refusals import check_output
from cobasin.checkpoints.sequential import SequentialFile
from cobasin.checkpoints.writer import save, write_shards
from cobasin.errors import InputError
from model_folders import assert_bitwise, changed, names, save_refusal

# Writes a doubled copy; `act` is called with the number of the tensor that is about to be read.
PROGRAM = """
import os, resource, signal, sys
from pathlib import Path
from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.errors import InputError
from cobasin.checkpoints.writer import save

source = load(sys.argv[1])
count = 0

def act(number):
{act}

def read(name):
    global count
    count += 1
    act(count)
    return source[name] * 2

{before}
try:
    save(Checkpoint("x", source.config, source.architecture, source.headers, read, source.folder),
         Path(sys.argv[2]), overwrite=len(sys.argv) > 3)
except InputError as error:
    print(error)
    sys.exit(2)
"""


def run(source, out, *, act="pass", before="", overwrite=False):
    program = PROGRAM.format(act=f"    {act}", before=before)
    arguments = [str(source), str(out), *(["overwrite"] if overwrite else [])]
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True)


@pytest.mark.parametrize("failure", [KeyboardInterrupt, InputError, MemoryError])
def test_nothing_is_left_after_a_failure(folder, tmp_path, failure):
    def fail(name, tensor):
        if "layer.1" in name:
            raise failure
        return tensor

    with pytest.raises(failure):
        save(changed(load(folder), fail), tmp_path / "out")
    assert names(tmp_path) == ["bert"]


def test_failure_in_an_extra_file(folder, tmp_path):
    def full(path):
        path.write_text("x")
        raise OSError(28, "No space left on device", str(path))

    message = save_refusal(load(folder), tmp_path / "out", files={"x": full})
    assert message.startswith(f"{tmp_path / 'out'}: cannot be written: No space left on device; free some space")
    assert names(tmp_path) == ["bert"]


def test_errors_that_are_not_about_the_output_pass(folder, tmp_path):
    def damaged(path):
        raise SafetensorError("header too small")

    with pytest.raises(SafetensorError, match="header too small"):
        save(load(folder), tmp_path / "out", files={"x": damaged})
    assert names(tmp_path) == ["bert"]


def test_killed_run_leaves_nothing_that_loads(sharded, tmp_path):
    last = len(load(sharded))
    killed = run(sharded, tmp_path / "out", act=f"number == {last} and os.kill(os.getpid(), signal.SIGKILL)")
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    (partial,) = tmp_path.glob(".out.partial-*")
    with pytest.raises(InputError, match=r"has no config\.json"):
        load(partial)
    with pytest.raises(OSError, match="no file named"):
        BertForMaskedLM.from_pretrained(partial)
    save(load(sharded), tmp_path / "out")
    assert names(tmp_path) == ["out", "sharded"]
    assert_bitwise(load(tmp_path / "out"), load(sharded))


def test_partial_of_a_running_process_is_kept(folder, tmp_path):
    running, ours = (tmp_path / f".out.partial-{pid}" for pid in (os.getppid(), os.getpid()))
    other = tmp_path / ".output.partial-999999999"
    for path in (running, ours, other):
        path.mkdir()
        (path / "x").write_text("x")
    save(load(folder), tmp_path / "out")
    assert names(tmp_path) == sorted([running.name, other.name, "bert", "out"])


def test_a_folder_that_cannot_be_listed(tmp_path, monkeypatch):
    def vanish(*_):
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(Path, "rglob", vanish)
    with pytest.raises(InputError, match="cannot be read: No such file"):
        stamp(tmp_path)


def test_what_a_run_has_not_finished_beside_its_data_is_none_of_it(tmp_path):
    (tmp_path / "data.jsonl").write_text("{}")
    before = stamp(tmp_path)
    for name in (".out.partial-12", ".out.parts"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "x").write_text("x")
    assert stamp(tmp_path) == before
    (tmp_path / "more.jsonl").write_text("{}")
    assert stamp(tmp_path) != before
    inside = tmp_path / ".out.parts" / "sub"
    assert [name for name, *_ in stamp(inside)] == ["x"]


@pytest.mark.parametrize("failing", ["write", "finish"])
def test_no_part_of_a_file_is_left_for_a_run_that_goes_on(folder, tmp_path, monkeypatch, failing):
    """Its room may be what is missing."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SequentialFile, failing, full)
    with pytest.raises(OSError, match="No space left"):
        write_shards(load(folder), tmp_path, lambda _: None)
    assert names(tmp_path) == ["bert"]


def test_what_a_killed_process_was_writing_is_removed_when_its_run_goes_on(tmp_path):
    left = tmp_path / ".out.partial-999999999"
    left.mkdir()
    (left / RUN).write_text("{}")
    for name in ("model.safetensors.0123456789ab.unfinished", "model.safetensors"):
        (left / name).write_text("x")
    with working(tmp_path / "out", False, run={}, resume=True) as partial:
        assert names(partial) == [RUN, "model.safetensors"]


def test_a_model_of_the_hub_is_the_same_on_every_machine(tmp_path):
    """Its files have the times at which each machine has downloaded them."""
    for machine, time in (("a", 1), ("b", 2)):
        for commit in ("one", "two"):
            folder = tmp_path / machine / "models--org--name" / "snapshots" / commit
            folder.mkdir(parents=True)
            (folder / "model.safetensors").write_text("weights")
            os.utime(folder / "model.safetensors", (time, time))
    one, again, other = (
        stamp(tmp_path / machine / "models--org--name" / "snapshots" / commit)
        for machine, commit in (("a", "one"), ("b", "one"), ("a", "two"))
    )
    assert one == again != other
    assert stamp(tmp_path / "a") != stamp(tmp_path / "b")


def test_what_seems_to_be_at_work_is_not_resumed(folder, tmp_path):
    running = tmp_path / f".out.partial-{os.getppid()}"
    running.mkdir()
    line = f"process {os.getppid()} seems to write it"
    with pytest.raises(InputError, match=line), working(tmp_path / "out", False, run={}, resume=True):
        pass
    assert names(tmp_path) == [running.name, "bert"]


def test_partial_of_another_users_process_is_kept(folder, tmp_path, monkeypatch):
    def refuse(pid, number):
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    (tmp_path / ".out.partial-999999999").mkdir()
    save(load(folder), tmp_path / "out")
    assert names(tmp_path) == [".out.partial-999999999", "bert", "out"]


@pytest.mark.parametrize("there", [False, True])
def test_old_output_moved_aside_by_a_killed_run(folder, tmp_path, there):
    aside = tmp_path / ".out.replaced-999999999"
    aside.mkdir()
    (aside / "old.txt").write_text("x")
    if there:
        (tmp_path / "out").mkdir()
        save(load(folder), tmp_path / "out")
    else:
        assert "is not empty" in save_refusal(load(folder), tmp_path / "out")
        assert names(tmp_path / "out") == ["old.txt"]
    assert names(tmp_path) == ["bert", "out"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_disk_full(folder, tmp_path, overwrite):
    if overwrite:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "old.txt").write_text("x")
    limit = "resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))"
    finished = run(folder, tmp_path / "out", before=limit, overwrite=overwrite)
    assert finished.returncode == 2, finished.stderr
    assert finished.stdout == (
        f"{tmp_path / 'out'}: cannot be written: File too large; "
        f"free some space, raise the limit, or choose a folder on another disk\n"
    )
    assert names(tmp_path) == (["bert", "out"] if overwrite else ["bert"])
    assert not overwrite or names(tmp_path / "out") == ["old.txt"]


def test_disk_full_in_a_file_that_safetensors_writes(folder, tmp_path):
    """safetensors reports the system's errors as its own kind."""

    def full(path):
        import resource

        old = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, old[1]))
        try:
            save_file({"a": torch.ones(1000)}, path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)

    message = save_refusal(load(folder), tmp_path / "out", files={"element.safetensors": full})
    assert "cannot be written: File too large; free some space" in message
    assert names(tmp_path) == ["bert"]


def test_interrupt(folder, tmp_path):
    interrupted = run(folder, tmp_path / "out", act="number == 9 and os.kill(os.getpid(), signal.SIGINT)")
    assert interrupted.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in interrupted.stderr
    assert names(tmp_path) == ["bert"]


def test_full_output_folder_is_refused(folder, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("x")
    source = load(folder)
    assert "is not empty" in save_refusal(source, tmp_path / "out")
    assert "--overwrite" in save_refusal(source, tmp_path / "out")
    assert names(tmp_path / "out") == ["mine.txt"]
    assert names(tmp_path) == ["bert", "out"]
    save(source, tmp_path / "out", overwrite=True)
    assert names(tmp_path / "out") == ["config.json", "model.safetensors"]
    assert names(tmp_path) == ["bert", "out"]


def test_overwrite_of_nothing(folder, tmp_path):
    save(load(folder), tmp_path / "out", overwrite=True)
    assert names(tmp_path) == ["bert", "out"]


def test_overwrite_keeps_the_old_folder_when_it_fails(folder, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("x")

    def fail(name, tensor):
        raise ValueError(name)

    with pytest.raises(ValueError, match="bert"):
        save(changed(load(folder), fail), tmp_path / "out", overwrite=True)
    assert names(tmp_path / "out") == ["mine.txt"]
    assert names(tmp_path) == ["bert", "out"]


def test_overwrite_brings_the_old_folder_back_when_the_swap_fails(folder, tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("x")
    rename = Path.rename

    def fail(self, target):
        if ".partial-" in self.name:
            raise PermissionError(13, "Permission denied")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    assert "Permission denied" in save_refusal(load(folder), tmp_path / "out", overwrite=True)
    assert names(tmp_path / "out") == ["mine.txt"]
    assert names(tmp_path) == ["bert", "out"]


def test_output_that_fills_up_during_the_run_is_kept(folder, tmp_path):
    def interfere(name, tensor):
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out" / "theirs.txt").write_text("x")
        return tensor

    line = save_refusal(changed(load(folder), interfere), tmp_path / "out")
    assert "cannot be written: Directory not empty; something else, maybe another run, has written to it" in line
    assert names(tmp_path / "out") == ["theirs.txt"]
    assert names(tmp_path) == ["bert", "out"]


def test_output_that_is_a_file(folder, tmp_path):
    (tmp_path / "out").write_text("x")
    for overwrite in (False, True):
        assert "out: is a file" in save_refusal(load(folder), tmp_path / "out", overwrite=overwrite)
    assert (tmp_path / "out").read_text() == "x"
    assert f"{tmp_path / 'out'} is a file" in save_refusal(load(folder), tmp_path / "out" / "sub" / "folder")


@pytest.mark.parametrize("where", ["bert", "bert/out", "bert/../bert/x/y", "."])
def test_output_that_overlaps_the_source(folder, tmp_path, where):
    before = names(folder)
    message = save_refusal(load(folder), tmp_path / where, overwrite=True)
    assert f"the input folder {folder}" in message
    assert names(folder) == before
    assert names(tmp_path) == ["bert"]


def test_output_through_a_link_to_the_source(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    assert "lies in the input folder" in save_refusal(load(folder), tmp_path / "link" / "out")


def test_output_that_the_source_links_to(folder, tmp_path):
    """The source would be what is written."""
    (tmp_path / "old").mkdir()
    (folder / "model.safetensors").rename(tmp_path / "old" / "model.safetensors")
    (folder / "model.safetensors").symlink_to(tmp_path / "old" / "model.safetensors")
    message = save_refusal(load(folder), tmp_path / "old", overwrite=True)
    assert f"holds the input {folder / 'model.safetensors'}; choose another folder" in message
    assert names(tmp_path / "old") == ["model.safetensors"]
    (folder / "loop").symlink_to("loop")
    (folder / "nowhere").symlink_to("nothing/there")
    check_output(tmp_path / "new", False, [folder])


@pytest.mark.parametrize("steps", ["blobs/x", "old"])
def test_output_that_the_source_links_through(folder, tmp_path, steps):
    """A link to a link in it, and a link to all of it."""
    for name in ("blobs", "old"):
        (tmp_path / name).mkdir()
    (tmp_path / "blobs" / "x").write_text("x")
    (tmp_path / "old" / "x").symlink_to(tmp_path / "blobs" / "x")
    (folder / "linked").symlink_to(tmp_path / "old" / "x" if steps == "blobs/x" else tmp_path / "old")
    with pytest.raises(InputError, match=f"holds the input {folder / 'linked'}"):
        check_output(tmp_path / "old", True, [folder])
    check_output(tmp_path / "other", True, [folder])


def test_check_output(folder, tmp_path):
    check_output(tmp_path / "new", False)
    check_output(tmp_path / "new", False, [None, folder])
    check_output(folder, True)
    for out, overwrite, inputs, text in [
        (folder, False, [], "is not empty"),
        (folder, True, [None, tmp_path / "other", folder], "lies in the input folder"),
        (tmp_path, True, [folder], "holds the input folder"),
        (folder / "config.json", True, [], "is a file"),
        (folder / "config.json" / "x", True, [], "config.json is a file"),
        (tmp_path / ("x" * 300), True, [], "cannot be written: File name too long"),
        (Path("/"), True, [], "is a mount point, which no finished folder can replace"),
    ]:
        with pytest.raises(InputError, match=text):
            check_output(out, overwrite, inputs)


def test_check_output_without_permission(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(InputError, match="cannot be written to"):
        check_output(tmp_path / "out", False)


def test_a_file_beside_the_weights_that_cannot_be_read(folder, tmp_path, monkeypatch):
    """It is the input's, and the line says so."""
    (folder / "notes.md").write_text("x")
    open_ = Path.open

    def refusing(path, *arguments, **options):
        if path == folder / "notes.md":
            raise PermissionError(errno.EACCES, "Permission denied")
        return open_(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refusing)
    line = save_refusal(load(folder), tmp_path / "out")
    assert line == f"{folder / 'notes.md'}: cannot be read: Permission denied; it goes with the model"
