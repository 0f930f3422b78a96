"""Commands in processes of their own, measured: seconds of wall and CPU, and the peak of anonymous memory."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

_LOOK = 0.01  # seconds between two looks at the memory


@dataclass(frozen=True)
class Figures:
    """What a process took; mapped files can be dropped by the system at any time and do not count as memory."""

    wall_s: float
    cpu_s: float
    anonymous_mb: float


Found = TypeVar("Found", bound=Figures)


def machine() -> dict[str, Any]:
    """What runs the commands, and its load before they begin: the load later on is that of the benchmark."""
    import torch

    lines = Path("/proc/cpuinfo").read_text().splitlines()  # the figures of memory need Linux, too
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    counts = {"cores": os.cpu_count(), "threads": torch.get_num_threads()}
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    return {"processor": name, **gpu, **counts, "load_at_start": os.getloadavg()[0]}


def measured(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Figures:
    """Run a command; what it imports was compiled by the first one, as pip compiles what it installs.

    Raises:
        RuntimeError: it failed; with the end of what it printed.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile() as output:
        started = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=inherited | dict(environment or {})
        )
        with watched(process.pid) as peak:
            _, status, usage = os.wait4(process.pid, 0)
            wall = time.perf_counter() - started
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            said = output.read().decode(errors="replace")
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {said[-2000:]}")
    return Figures(wall, usage.ru_utime + usage.ru_stime, peak[0])


@contextmanager
def watched(process: int | str) -> Iterator[list[float]]:
    """The peak of a process's anonymous memory meanwhile, in MB: the only entry of the list."""
    peak, ended = [0.0], threading.Event()

    def watch() -> None:
        while not ended.wait(_LOOK):
            try:
                peak[0] = max(peak[0], anonymous_mb(process))
            except OSError:
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        ended.set()
        watcher.join()


def anonymous_mb(process: int | str) -> float:
    """The anonymous memory of a process (by its number, or ``self``) at the moment, as Linux counts it.

    Raises:
        OSError: there is no such process, or this is no Linux.
    """
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return sum(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def in_turn(contenders: Mapping[str, Callable[[], Found]], runs: int) -> dict[str, list[Found]]:
    """Run every contender so many times, in rounds; each round begins with another one."""
    names, found = list(contenders), {name: list[Found]() for name in contenders}
    for turn in range(runs):
        at = turn % len(names)
        for name in names[at:] + names[:at]:
            found[name].append(contenders[name]())
    return found


def ratio(of: Sequence[Figures], to: Sequence[Figures], what: str) -> float:
    """The median, over the rounds, of a figure over another contender's in the same round."""
    return median(getattr(a, what) / getattr(b, what) for a, b in zip(of, to, strict=True))
