"""A file written from its start to its end, past the system's cache where the system lets one."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import numpy as np

_BUFFER = 1 << 23  # bytes: as fast as larger ones
_DIRECT = getattr(os, "O_DIRECT", 0)  # Linux has it


class SequentialFile:
    """What is written goes to the disk by itself, in pieces of 8 MB, where the file system can do that.

    Through the system's cache, as other files are written, gigabytes that nobody reads next push out what is read, and
    every page is copied and kept: that took up to five times as long.

    Raises:
        OSError: the file cannot be opened or written.
    """

    def __init__(self, path: Path):
        self.path = path
        self._file = open(path, "wb", buffering=0, opener=_opened)  # noqa: SIM115 - see close
        self._buffer = mmap.mmap(-1, _BUFFER)  # begins with a page, as direct writes want it
        self._filled = 0

    def write(self, content: bytes | memoryview) -> int:
        """Append bytes; how many."""
        source, buffer, done = np.frombuffer(content, np.uint8), np.frombuffer(self._buffer, np.uint8), 0
        while done < len(source):
            piece = source[done : done + _BUFFER - self._filled]
            buffer[self._filled : self._filled + len(piece)] = piece
            self._filled += len(piece)
            done += len(piece)
            if self._filled == _BUFFER:
                self._flush()
        return done

    def finish(self) -> None:
        """Bring all of it to the disk."""
        self._through_cache()  # the end of a file is no whole number of the disk's blocks
        self._flush()
        os.fsync(self._file.fileno())

    def _flush(self) -> None:
        left = memoryview(self._buffer)[: self._filled]
        while left:
            try:
                left = left[self._file.write(left) :]
            except OSError as error:
                if error.errno != errno.EINVAL or not self._through_cache():
                    raise
        self._filled = 0

    def _through_cache(self) -> bool:
        """Write as other files are written from now on; whether that is new."""
        if not _DIRECT:
            return False
        import fcntl  # not there on every system

        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        fcntl.fcntl(self._file, fcntl.F_SETFL, flags & ~_DIRECT)
        return bool(flags & _DIRECT)

    def close(self) -> None:
        """What is not `finish`ed is lost."""
        self._file.close()

    def discard(self) -> None:
        """Close and remove it: a run that is resumed needs its room."""
        self.close()
        self.path.unlink(missing_ok=True)


def _opened(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | _DIRECT, 0o666)
    except OSError as error:
        if error.errno != errno.EINVAL:  # what a file system says that has no such writes
            raise
        return os.open(path, flags, 0o666)
