"""Run independent jobs: threads on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch

from cobasin.execution.memory import settle_malloc


def run_jobs(jobs: Sequence[Callable[[], None]], one_by_one: bool = False) -> None:
    """Run every job, several at a time unless ``one_by_one``; the first exception ends it all.

    Each worker gets its share of the machine's threads: many small factorisations in parallel beat one that
    is split.
    """
    settle_malloc()
    workers = 1 if one_by_one else min(len(jobs), os.cpu_count() or 1)
    if workers <= 1:
        for job in jobs:
            job()
        return
    share = max(1, torch.get_num_threads() // workers)
    # OpenMP keeps the number for each thread by itself: a worker has to be told, too
    with (
        torch_threads(share),
        ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(share,)) as pool,
    ):
        try:
            for future in [pool.submit(job) for job in jobs]:
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


@contextmanager
def bfloat16_products() -> Iterator[None]:
    """Let products of float32 matrices round their factors to bfloat16, where the processor is faster with it.

    Sums stay in float32, so products of matrices that come from bfloat16 files lose nothing. It holds for all threads:
    nothing else may multiply matrices meanwhile.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let every torch operation use ``count`` threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
