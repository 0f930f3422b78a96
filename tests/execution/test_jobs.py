"""Independent jobs in threads."""

import threading
import time
from contextlib import contextmanager, nullcontext
from functools import partial

import pytest
import torch

from cobasin.execution.jobs import ON_GPU, _queues, run_jobs, torch_threads


@pytest.mark.parametrize("count", [0, 1, 2, 20])
def test_every_job_runs_once(threads, count):
    done = []
    run_jobs([partial(done.append, i) for i in range(count)])
    assert sorted(done) == list(range(count))


def test_as_many_at_a_time_as_torch_has_threads(threads):
    def most_of(wanted, **how):
        running, most, lock, together = 0, 0, threading.Lock(), threading.Barrier(wanted)

        def job():
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            together.wait(timeout=60)  # no job ends before so many run
            with lock:
                running -= 1

        run_jobs([job] * 3 * wanted, **how)
        return most

    assert most_of(threads) == threads
    assert most_of(1, one_by_one=True) == 1


@pytest.mark.parametrize("count", [1, 2, 20])
def test_exceptions_reach_the_caller(threads, count):
    def fail():
        raise KeyError("which")

    with pytest.raises(KeyError, match="which"):
        run_jobs([lambda: None] * (count - 1) + [fail])


def test_after_an_exception_no_further_job_starts():
    started = []

    def job(i):
        started.append(i)
        if i == 0:
            raise KeyError(i)
        time.sleep(0.01)

    with torch_threads(2), pytest.raises(KeyError):
        run_jobs([partial(job, i) for i in range(50)])
    assert len(started) < 25


@pytest.mark.parametrize("fails", [False, True])
def test_workers_share_the_threads_of_torch(fails):
    seen = []

    def job():
        torch.ones(2) @ torch.ones(2)
        seen.append(torch.get_num_threads())
        if fails:
            raise KeyError

    with torch_threads(8):
        with pytest.raises(KeyError) if fails else nullcontext():
            run_jobs([job] * 4)
        assert torch.get_num_threads() == 8
    assert set(seen) == {2}


def test_on_a_gpu_every_worker_has_a_queue(monkeypatch):
    """Without a GPU: its streams are stood in for, and noted with the thread that enters them."""
    entered, jobs, all_of_them = {}, {}, threading.Barrier(ON_GPU, timeout=5)

    class Stream:
        def __init__(self, device):
            self.device, self.waited = device, 0

        def wait_stream(self, other):
            assert other == f"what {self.device} does by default"
            self.waited += 1

    @contextmanager
    def stream(queue):
        entered[threading.current_thread()] = queue
        yield
        del entered[threading.current_thread()]

    def job(i):
        if i < ON_GPU:
            all_of_them.wait()  # so that every worker has one
        jobs[i] = entered[threading.current_thread()]

    for name, found in {
        "Stream": Stream,
        "stream": stream,
        "current_stream": lambda device: f"what {device} does by default",
    }.items():
        monkeypatch.setattr(torch.cuda, name, found)
    monkeypatch.setattr(torch, "ones", lambda *shape, device: torch.eye(*shape))
    device = torch.device("cuda:0")
    run_jobs([partial(job, i) for i in range(6)], device=device)
    first = set(jobs.values())
    assert {(queue.device, queue.waited) for queue in first} == {(device, 1)}
    assert len(first) == ON_GPU
    assert not entered
    run_jobs([partial(job, i) for i in range(6)], device=device)
    assert set(jobs.values()) == first
    threads = []
    for other in ({"one_by_one": True, "device": device}, {"device": torch.device("mps")}):
        run_jobs([lambda: threads.append(threading.current_thread())] * 3, **other)
    assert set(threads) == {threading.current_thread()}
    _queues.cache_clear()
