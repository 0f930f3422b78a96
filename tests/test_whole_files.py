"""Files that are written whole, and may be read by all who may read other new files."""

import os
import stat

import pytest
import torch
from safetensors.torch import load_file

from cobasin.whole_files import replacing, write_first, write_tensors


def test_a_file_is_as_it_was_until_it_is_whole(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def interrupted():
        with replacing(path) as new:
            new.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    with replacing(path) as new:
        new.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_tensors_are_as_readable_as_other_files(mask, tmp_path):
    before = os.umask(mask)
    try:
        write_tensors(tmp_path / "file", {"x": torch.arange(6).view(2, 3).T}, {"format": "pt"})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o666 & ~mask
    assert torch.equal(load_file(tmp_path / "file")["x"], torch.arange(6).view(2, 3).T)


def test_tensors_that_cannot_be_written_leave_nothing(tmp_path):
    whole = torch.ones(4)
    with pytest.raises(RuntimeError, match="share memory"):
        write_tensors(tmp_path / "file", {"x": whole, "y": whole}, {})
    assert list(tmp_path.iterdir()) == []


def test_of_a_file_that_several_write_the_first_stays(tmp_path):
    path = tmp_path / "file"

    def meanwhile(new):
        new.write_text("second")
        assert write_first(path, lambda new: new.write_text("first"))

    assert not write_first(path, meanwhile)
    assert path.read_text() == "first"
    with pytest.raises(ZeroDivisionError):
        write_first(tmp_path / "other", lambda new: new.write_text(str(1 / 0)))
    assert list(tmp_path.iterdir()) == [path]
