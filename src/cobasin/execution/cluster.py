"""The parts of a run on the nodes of a Ray cluster, which share the folders that it reads and writes."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cobasin.errors import InputError, one_line

PATIENCE = 10  # seconds for a cluster to answer at all; Ray itself tries for ten minutes, without a word
RETRIES = 3  # of a part whose node dies; until it is started again the others do what it would have done


def on_ray(work: Callable[..., Any], address: str) -> None:
    """Do a run as parts, one a node. A part that is lost is made up for by whatever gathers them.

    Args:
        work: called with ``part=(i, n)``, in a folder of the same path as that of this process.
        address: of the cluster, as `ray.init` takes it.

    Raises:
        InputError: Ray is not installed, or no cluster is there; whatever the parts raise that is one.
    """
    try:
        import ray
        from ray import exceptions
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
    except ImportError as error:
        raise InputError("--engine ray needs Ray, which is not installed: pip install 'cobasin[ray]'") from error
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if port.isdecimal():
            socket.create_connection((host.strip("[]"), int(port)), PATIENCE).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, OverflowError, RuntimeError, OSError) as error:
        raise InputError(
            f"--address {address}: no Ray cluster there ({one_line(error)}); start one with ray start --head"
        ) from error
    try:
        cpus = {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]}
        nodes = [node for node, count in cpus.items() if count]
        if not nodes:
            raise InputError(f"--address {address}: no node of the cluster has a CPU to give")
        part = ray.remote(num_cpus=min(cpus[node] for node in nodes), max_retries=RETRIES)(_do)
        waiting = []
        for i, node in enumerate(nodes, start=1):  # each on its own, as long as that is there
            place = NodeAffinitySchedulingStrategy(node, soft=True)
            one = part.options(scheduling_strategy=place)
            waiting.append(one.remote(work, str(Path.cwd()), (i, len(nodes))))
        while waiting:
            (done,), waiting = ray.wait(waiting)
            try:
                ray.get(done)
            except exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, InputError) else error from None
            except exceptions.RayError:  # its node is gone for good
                continue
    finally:
        ray.shutdown()


def _do(work: Callable[..., Any], folder: str, part: tuple[int, int]) -> None:
    try:
        os.chdir(folder)
    except OSError as error:
        raise InputError(f"{folder}: not there on node {os.uname().nodename}; the nodes must share it") from error
    work(part=part)
