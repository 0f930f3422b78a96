"""Files written past the system's cache hold what was written, wherever they are."""

import errno
import os
from pathlib import Path

import pytest

from cobasin.checkpoints import sequential
from cobasin.checkpoints.sequential import SequentialFile

BUFFER = 1 << 14
SIZES = [0, 1, 3, BUFFER - 4, BUFFER, 2, 3 * BUFFER + 5, BUFFER - 7]

direct = pytest.mark.skipif(not sequential._DIRECT, reason="the system has no O_DIRECT")


def check(path) -> None:
    """Write pieces, and read them back."""
    pieces = [os.urandom(size) for size in SIZES]
    file = SequentialFile(path)
    assert [file.write(piece) for piece in pieces] == SIZES
    file.finish()
    file.close()
    assert path.read_bytes() == b"".join(pieces)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(sequential, "_BUFFER", BUFFER)


def test_the_file_is_what_was_written(tmp_path):
    check(tmp_path / "file")


def test_an_older_file_is_replaced(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 10 * BUFFER)
    check(tmp_path / "file")


@direct
def test_a_file_system_that_refuses_to_open_so(tmp_path, monkeypatch):
    opened = os.open

    def refused(path, flags, mode=0o777):
        if flags & sequential._DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return opened(path, flags, mode)

    monkeypatch.setattr(sequential.os, "open", refused)
    check(tmp_path / "file")


@direct
def test_a_file_system_that_refuses_to_write_so(tmp_path, monkeypatch):
    monkeypatch.setattr(sequential, "_BUFFER", BUFFER - 1)  # no whole number of blocks
    check(tmp_path / "file")


def test_other_errors_are_raised(tmp_path):
    with pytest.raises(FileNotFoundError):
        SequentialFile(tmp_path / "missing" / "file")
    if (full := Path("/dev/full")).exists():
        with pytest.raises(OSError, match="No space left"):
            check(full)
