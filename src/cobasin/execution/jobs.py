"""Run independent jobs: threads on this machine, and queues of its GPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache

import torch

from cobasin.execution.memory import release_freed, settle_malloc

CPU = torch.device("cpu")
SMALL = 2_000_000  # parameters of a model: below, threads wait for each other longer than they compute
ON_GPU = 4  # jobs at a time: one computes while others copy, or solve assignments, which the CPU does


def run_jobs(jobs: Sequence[Callable[[], None]], one_by_one: bool = False, device: torch.device = CPU) -> None:
    """Run every job, several at a time unless ``one_by_one``; the first exception ends it all.

    There are as many workers as torch has threads, which follow what the process may use and OMP_NUM_THREADS: many
    small factorisations in parallel beat one that is split. On a GPU there are `ON_GPU`, each with a queue of its own.

    Args:
        jobs: none leaves anything on the device to another.
        one_by_one: in this thread.
        device: where they compute.
    """
    settle_malloc()
    threads = torch.get_num_threads()
    most = {"cpu": threads, "cuda": ON_GPU}.get(device.type, 1)
    workers = 1 if one_by_one else max(1, min(len(jobs), most))
    queues = _queues(device) if workers > 1 else []
    for queue in queues:  # after all that was asked for so far
        queue.wait_stream(torch.cuda.current_stream(queue.device))
    share_out(jobs, workers, max(1, threads // workers), queues)
    release_freed()


def share_out(
    jobs: Iterable[Callable[[], None]], workers: int, share: int, queues: Sequence[torch.cuda.Stream] = ()
) -> None:
    """Have workers run the jobs, in their order; the first exception ends it all.

    Args:
        jobs: any number.
        workers: a single one is this thread.
        share: threads that each of them computes with.
        queues: of a GPU, one a worker.
    """
    if workers == 1:
        with torch_threads(share):
            for job in jobs:
                job()
        return
    left = iter(jobs)  # the workers take from it in turn: a future for every job would take longer than small ones

    def work(worker: int) -> None:
        torch.set_num_threads(share)  # OpenMP keeps the number for each thread by itself: a worker has to be told, too
        with torch.cuda.stream(queues[worker]) if queues else nullcontext():
            for job in left:
                job()

    with torch_threads(share), ThreadPoolExecutor(workers) as pool:
        try:
            for future in as_completed([pool.submit(work, worker) for worker in range(workers)]):
                future.result()
        finally:
            deque(left, maxlen=0)  # after an exception no other job starts


@cache
def _queues(device: torch.device) -> list[torch.cuda.Stream]:
    """Those of the workers on a GPU, by default all share one, and nothing overlaps; none on other devices."""
    if device.type != "cuda":
        return []
    torch.linalg.svd(torch.ones(1, 1, device=device))  # loads the solvers, which two threads must not do at a time
    return [torch.cuda.Stream(device) for _ in range(ON_GPU)]


@contextmanager
def bfloat16_products() -> Iterator[None]:
    """Let products of float32 matrices round their factors to bfloat16, where the processor is faster with it.

    Sums stay in float32, so products of matrices that come from bfloat16 files lose nothing. It holds for all threads:
    nothing else may multiply matrices meanwhile. A precision that was set by torch's newer interface stays as it is.
    """
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:  # the two interfaces do not mix
        yield
        return
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def threads_for(parameters: int) -> AbstractContextManager[None]:
    """As many threads as a model of that size is worth: one for a small one, else those that torch has."""
    return torch_threads(1) if parameters < SMALL else nullcontext()


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let every torch operation use ``count`` threads for a while.

    Not for several threads at a time: torch has one number for those that have not said theirs.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
