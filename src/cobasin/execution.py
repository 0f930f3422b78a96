"""Run independent jobs: threads on this machine."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import torch


def run_jobs(jobs: Sequence[Callable[[], None]]) -> None:
    """Run every job, several at a time; the first exception ends it all.

    Each worker gets its share of the machine's threads: many small factorisations in parallel beat one that
    is split.
    """
    workers = min(len(jobs), os.cpu_count() or 1)
    if workers <= 1:
        for job in jobs:
            job()
        return
    with torch_threads(max(1, torch.get_num_threads() // workers)), ThreadPoolExecutor(workers) as pool:
        try:
            for future in [pool.submit(job) for job in jobs]:
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    _give_back_memory()


def _give_back_memory() -> None:
    """Return what the workers freed to the system: glibc keeps it in the arenas of threads that are gone."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL("libc.so.6").malloc_trim(0)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let every torch operation use ``count`` threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
