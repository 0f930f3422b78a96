"""Parts of one run: processes, on one machine or many, that share a folder and nothing else.

Every part goes through the whole run, and so comes to the same jobs in the same order. It does those that it owns, and
takes over what the others have written into the folder. Those of a part that shows no life, because it was killed or
has never been started, are divided among the others. A part lives while the counter in its file counts on: clocks of
different machines are not compared. That two parts do one job is a waste, but no harm: all go on with what was written
first.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cobasin.errors import InputError

BEAT = 1.0  # seconds between two counts
SILENT = 20.0  # seconds without one, after which nobody waits
_POLL = 0.1  # seconds
_PART = "part-"
# A process of its own: some solvers hold the interpreter for minutes. It ends with the part, however that ends.
_COUNT = """
import os, sys, time
file, parent, beat, count = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), 0
while os.getppid() == parent:
    try:
        with open(f"{file}.{parent}", "w") as new:
            new.write(str(count))
        os.replace(new.name, file)
    except OSError:
        pass  # a full disk, a server that is away for a moment
    time.sleep(beat)
    count += 1
"""


@dataclass
class Part:
    """Part ``number`` (from 1) of ``count``, which meet in ``folder``."""

    number: int
    count: int
    folder: Path
    _seen: dict[int, tuple[str, float, float]] = field(default_factory=dict)  # the count, when it was new, when looked

    def owns(self, job: int) -> bool:
        """Whether a job is this part's own."""
        return job % self.count == self.number - 1

    def must_do(self, job: int, result: Path) -> bool:
        """Whether this part has to do a job, for lack of a ``result``; one that another part does is waited for."""
        while not result.exists():
            owner = job % self.count + 1
            if owner != self.number and not self._lives(owner):
                living = [one for one in range(1, self.count + 1) if one == self.number or self._lives(one)]
                owner = living[job // self.count % len(living)]
            if owner == self.number:
                return True
            time.sleep(_POLL)
        return False

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """While this part shows that it lives.

        Raises:
            InputError: the same part is at work already.
        """
        file = self.folder / f"{_PART}{self.number}"
        self._claim(file)
        counting = subprocess.Popen(
            [sys.executable, "-S", "-c", _COUNT, str(file), str(os.getpid()), str(BEAT)], start_new_session=True
        )
        try:
            yield
        finally:
            counting.kill()
            counting.wait()
            for one in (file, file.with_name(f"{file.name}.{os.getpid()}")):
                one.unlink(missing_ok=True)

    def _claim(self, file: Path) -> None:
        for _ in range(2):
            try:
                with file.open("x") as new:
                    new.write("started")
                return
            except FileExistsError:
                said = _read(file)
                if living(self.folder, self.number):
                    break
                if _read(file) == said:  # it was killed; and nobody has started it again meanwhile
                    file.unlink(missing_ok=True)
        raise InputError(f"part {self.number}/{self.count} of this run is at work already; start each part once")

    def _lives(self, number: int) -> bool:
        now = time.monotonic()
        count, since, looked = self._seen.get(number, (None, now, -BEAT))
        if now - looked >= BEAT:
            found = _read(self.folder / f"{_PART}{number}")
            count, since, looked = self._seen[number] = found, since if found == count else now, now
        return now - since < SILENT


def read_part(text: str) -> tuple[int, int]:
    """The number of a part and how many there are, as a user writes it.

    Raises:
        InputError: for anything but ``i/n`` with i from 1 to n.
    """
    found = re.fullmatch(r"([1-9]\d{0,4})/([1-9]\d{0,4})", text.strip())
    if found is None or int(found[1]) > int(found[2]):
        raise InputError(f"--part {text}: expected i/n, like 2/8, with i from 1 to n")
    return int(found[1]), int(found[2])


def living(folder: Path, number: int | None = None) -> list[int]:
    """Parts that are seen to be at work in a folder, or that one; it takes a while where one was killed."""
    names = (file.name.removeprefix(_PART) for file in folder.glob(f"{_PART}*"))
    numbers = [int(name) for name in names if name.isdecimal() and number in (None, int(name))]
    before, until = {one: _read(folder / f"{_PART}{one}") for one in numbers}, time.monotonic() + SILENT
    while before and time.monotonic() < until:
        time.sleep(min(_POLL, BEAT))
        after = {one: _read(folder / f"{_PART}{one}") for one in before}
        if found := sorted(one for one, count in after.items() if count not in ("", before[one])):
            return found
        before = {one: before[one] for one, count in after.items() if count}  # others have ended
    return []


def _read(file: Path) -> str:
    """What a part's file says; nothing where it is not there."""
    try:
        return file.read_text()
    except OSError:
        return ""
