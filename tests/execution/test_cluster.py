"""A run on a Ray cluster of two nodes, also where one of them is killed in the middle."""

import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from cobasin.errors import InputError
from cobasin.execution.cluster import on_ray
from cobasin.workflows.match import match_to_folder
from command_line import pair, refused, run
from test_resume import assert_same_files

CASE = "bert/BertForMaskedLM"


@pytest.fixture
def cluster(monkeypatch):
    """Two nodes, each with a worker process of its own; what Ray does at SIGTERM must not stay for other tests."""
    before = signal.getsignal(signal.SIGTERM)
    utils = pytest.importorskip("ray.cluster_utils")
    monkeypatch.setenv("RAY_worker_niceness", "0")
    made = utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.second = made.add_node(num_cpus=1)
    yield made
    made.shutdown()
    signal.signal(signal.SIGTERM, before)


def slowly(folder, source, anchor, out, part):
    """A part of a match whose units take a while; the first one says in ``folder`` that it is at work."""
    import ray

    from cobasin.execution import parts
    from cobasin.matching import weights

    if not (node := folder / f"node-{part[0]}").exists():  # a part that is lost starts again elsewhere
        node.write_text(ray.get_runtime_context().get_node_id())
    parts.BEAT, parts.SILENT, update = 0.2, 3.0, weights._update_family

    def slow(*given):
        (folder / f"at-work-{part[0]}").touch()
        time.sleep(0.3)
        return update(*given)

    weights._update_family = slow
    match_to_folder(source, anchor, out, "full", None, False, part=part)
    (folder / f"done-{part[0]}").touch()


def test_a_node_is_killed(tmp_path, cluster):
    from ray import cloudpickle

    source, anchor = map(str, pair(tmp_path, CASE, shard="20KB"))
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert run("match", source, anchor, "--out", whole).code == 0

    def kill():
        while len(list(tmp_path.glob("at-work-*"))) < 2:
            time.sleep(0.1)
        done.append(list(tmp_path.glob("done-*")))
        cluster.remove_node(cluster.second, allow_graceful=False)

    done: list[list[Path]] = []
    killing = threading.Thread(target=kill)
    killing.start()
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    on_ray(partial(slowly, tmp_path, source, anchor, out), cluster.address)
    killing.join()
    assert done == [[]], "the node was killed in the middle"
    assert len({path.read_text() for path in tmp_path.glob("node-*")}) == 2, "each part was on a node of its own"
    assert len(list(tmp_path.glob("done-*"))) == 2
    assert not out.exists()
    match_to_folder(source, anchor, out, "full", None, False, resume=True)
    assert_same_files(out, whole)


def test_the_command_gathers_the_parts_and_bad_input_is_one_line(tmp_path, cluster):
    source, anchor = pair(tmp_path, CASE, shard="20KB")
    merge = ["merge", anchor, source, "--match", "ffn", "--out"]
    on = ["--engine", "ray", "--address", cluster.address]
    assert run(*merge, tmp_path / "whole").code == 0
    assert run(*merge, tmp_path / "out", *on).code == 0
    assert_same_files(tmp_path / "out", tmp_path / "whole")
    assert "is not empty; choose another folder" in refused(tmp_path, *merge, tmp_path / "out", *on)


def test_no_cluster(tmp_path):
    pytest.importorskip("ray")
    source, anchor = pair(tmp_path, CASE)
    for place in ("no place", "127.0.0.1:1", "127.0.0.1:99999"):
        line = refused(
            tmp_path, "match", source, anchor, "--out", tmp_path / "out", "--engine", "ray", "--address", place
        )
        assert f"--address {place}: no Ray cluster there" in line
        assert "ray start --head" in line


def test_no_ray(tmp_path, monkeypatch):
    source, anchor = pair(tmp_path, CASE)
    monkeypatch.setitem(sys.modules, "ray", None)
    line = refused(tmp_path, "match", source, anchor, "--out", tmp_path / "out", "--engine", "ray")
    assert "not installed: pip install 'cobasin[ray]'" in line


def test_a_folder_that_the_nodes_do_not_share():
    from cobasin.execution.cluster import _do

    before = Path.cwd()
    with pytest.raises(InputError, match=r"not there on node .*; the nodes must share it"):
        _do(lambda part: None, "/no/such/folder", (1, 2))
    assert Path.cwd() == before
