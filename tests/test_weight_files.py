"""Reading weights lazily, and refusing what is damaged, unsafe or contradictory."""

import json
import os
import pickle
import resource
import struct
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import load_file, save_file

from cobasin.checkpoints import weight_files
from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.weight_files import Header, open_safetensors
from cobasin.checkpoints.writer import save
from cobasin.errors import InputError
from model_folders import Exploit, as_bins, assert_bitwise, load_refusal


def edit_index(folder, change):
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


def test_shards(sharded, tiny_bert):
    checkpoint = load(sharded)
    files = sorted(path.name for path in sharded.glob("*.safetensors"))
    assert len(files) == 2
    assert sorted({header.shard for header in checkpoint.headers.values()}) == files
    for file in files:
        for name, tensor in load_file(sharded / file).items():
            assert checkpoint.headers[name].shard == file
            assert torch.equal(checkpoint[name], tensor)


def test_tensors_stay_in_the_mapped_file(folder):
    checkpoint = load(folder)
    name = "bert.embeddings.word_embeddings.weight"
    assert checkpoint[name].data_ptr() == checkpoint[name].data_ptr()


def test_what_follows_a_large_tensor_is_fetched(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(weight_files, "_WORTH", 32)
    monkeypatch.setattr(os, "posix_fadvise", lambda _, start, length, advice: asked.append((start, length, advice)))
    tensors = {"a": torch.arange(16.0), "b": torch.arange(4.0), "c": torch.arange(16.0) + 1}
    save_file(tensors, tmp_path / "x.safetensors")
    _, read = weight_files.open_safetensors(tmp_path / "x.safetensors")
    assert all(torch.equal(read(name), tensor) for name, tensor in tensors.items())
    content = (tmp_path / "x.safetensors").read_bytes()
    after_a = content.index(tensors["b"].numpy().tobytes() + tensors["c"].numpy().tobytes())
    assert asked == [(start, weight_files._AHEAD, os.POSIX_FADV_WILLNEED) for start in (after_a, len(content))]


def test_threads_read_the_same_tensors(sharded, tiny_bert):
    checkpoint = load(sharded)
    names = list(checkpoint) * 50
    state = tiny_bert.state_dict()
    with ThreadPoolExecutor(8) as threads:
        for name, tensor in zip(names, threads.map(checkpoint.__getitem__, names), strict=True):
            assert torch.equal(tensor, state[name])


def test_dtypes_are_recorded_not_judged(folder):
    tensors = {
        "scalar": torch.tensor(3),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "eight": torch.ones(2, 2, dtype=torch.float8_e4m3fn),
        "quantised": torch.ones(5, dtype=torch.int8),
    }
    save_file(tensors, folder / "model.safetensors")
    headers = load(folder).headers
    assert headers["scalar"] == Header(torch.int64, (), "model.safetensors")
    assert headers["half"].dtype == torch.bfloat16
    assert headers["eight"].dtype == torch.float8_e4m3fn
    assert headers["quantised"].dtype == torch.int8


def test_packed_elements_are_refused(folder):
    entry = {"packed": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}}
    head = json.dumps(entry).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bytes(2))
    assert "packed has element type F4" in load_refusal(folder)


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    """Of adapters as of models; the errors of safetensors have no number."""

    def denied(path, **_):
        raise FileNotFoundError(f"No such file or directory: {path}")

    save_file({"x": torch.ones(1)}, tmp_path / "a.safetensors")
    monkeypatch.setattr(weight_files, "safe_open", denied)
    with pytest.raises(InputError, match=r"a\.safetensors: cannot be read: No such file or directory"):
        open_safetensors(tmp_path / "a.safetensors")


@pytest.mark.parametrize("shards", [1, 3])
def test_bin(folder, shards):
    expected = load_file(folder / "model.safetensors")
    as_bins(folder, shards)
    checkpoint = load(folder)
    assert_bitwise(checkpoint, expected)
    assert len({header.shard for header in checkpoint.headers.values()}) == shards


def test_bin_of_parameters(folder):
    """As of a state dict with ``keep_vars``: they ask for gradients, and NumPy refuses them."""
    expected = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    parameters = {name: torch.nn.Parameter(tensor) for name, tensor in expected.items()}
    torch.save(parameters, folder / "pytorch_model.bin")
    checkpoint = load(folder)
    assert_bitwise(checkpoint, expected)
    assert not any(tensor.requires_grad for tensor in checkpoint.values())


def test_bin_from_before_zip_archives(folder):
    expected = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(expected, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert_bitwise(load(folder), expected)


def test_safetensors_come_before_bin(folder):
    torch.save({"other": torch.ones(1)}, folder / "pytorch_model.bin")
    assert "other" not in load(folder)


def test_no_weights(folder):
    (folder / "model.safetensors").unlink()
    assert "has no weights" in load_refusal(folder)
    save_file({"a": torch.ones(1)}, folder / "adapter_model.safetensors")
    assert "has no weights" in load_refusal(folder)


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_single_file_and_index(folder, kind):
    if kind == "bin":
        as_bins(folder)
    single = "model.safetensors" if kind == "safetensors" else "pytorch_model.bin"
    (folder / f"{single}.index.json").write_text("{}")
    assert f"holds both {single} and {single}.index.json" in load_refusal(folder)


def test_an_index_of_the_single_file_alone(folder, tmp_path):
    """As MLX writes it beside every model."""
    expected = load_file(folder / "model.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(expected, "model.safetensors")}))
    checkpoint = load(folder)
    assert_bitwise(checkpoint, expected)
    save(checkpoint, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").glob("model*")] == ["model.safetensors"]
    index.write_text(json.dumps({"weight_map": {"other": "model.safetensors"}}))
    assert "other is not in model.safetensors" in load_refusal(folder)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:5],
        lambda data: data[:50],
        lambda data: data[:-40],
        lambda data: data + b"more",
        lambda data: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n",
        lambda data: b"\xff" * 8 + data[8:],
        lambda data: data[:8] + b"[" + data[9:],
    ],
    ids=["empty", "length", "header", "truncated", "longer", "lfs", "huge header", "json"],
)
def test_damaged_safetensors(folder, damage):
    path = folder / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    message = load_refusal(folder)
    assert message.startswith(f"{path}: truncated, corrupt or not safetensors (")
    assert "fetch the file again" in message


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_folder_in_place_of_weights(folder, name):
    (folder / "model.safetensors").unlink()
    (folder / name).mkdir()
    assert f"{folder / name}: is not a file" in load_refusal(folder)


def test_unreadable_weights(folder, monkeypatch):
    def refuse(path, framework):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("cobasin.checkpoints.weight_files.safe_open", refuse)
    message = load_refusal(folder)
    assert "cannot be read: [Errno 13] Permission denied" in message
    assert "model.safetensors" in message


def test_missing_shard(sharded):
    lost = sorted(sharded.glob("*.safetensors"))[1]
    lost.unlink()
    assert f"{lost.name} is missing" in load_refusal(sharded)


def test_index_lists_all_its_contradictions(sharded):
    first, second = sorted(path.name for path in sharded.glob("*.safetensors"))[:2]
    moved = next(iter(load_file(sharded / first)))
    unlisted = next(iter(load_file(sharded / second)))

    def change(weight_map):
        weight_map[moved] = second
        weight_map["ghost"] = first
        weight_map["lost"] = "model-lost.safetensors"
        del weight_map[unlisted]

    edit_index(sharded, change)
    message = load_refusal(sharded)
    assert "model-lost.safetensors is missing" in message
    assert f"ghost is not in {first}" in message
    assert f"{moved} is not in {second}" in message
    assert f"{moved} is in {first}, where the index does not list it" in message
    assert f"{unlisted} is in {second}, where the index does not list it" in message


def test_very_many_contradictions_are_counted(sharded):
    first = min(path.name for path in sharded.glob("*.safetensors"))
    edit_index(sharded, lambda weight_map: weight_map.update({f"ghost{i}": first for i in range(50)}))
    assert load_refusal(sharded).endswith("and 30 more")


@pytest.mark.parametrize("shard", ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "x.bin", 3])
def test_index_that_leads_elsewhere(sharded, shard):
    edit_index(sharded, lambda weight_map: weight_map.update(ghost=shard))
    assert f"ghost is in {shard!r}; expected the name of a .safetensors file" in load_refusal(sharded)


@pytest.mark.parametrize("text", ["{}", '{"weight_map": []}', '{"weight_map": {}}'])
def test_index_without_map(sharded, text):
    (sharded / "model.safetensors.index.json").write_text(text)
    assert 'has no "weight_map"' in load_refusal(sharded)


def test_index_that_is_not_json(sharded):
    (sharded / "model.safetensors.index.json").write_text("{")
    assert "model.safetensors.index.json: is not valid JSON" in load_refusal(sharded)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("form", ["zip", "legacy", "plain"])
def test_code_in_a_pickle_is_not_executed(folder, tmp_path, form):
    (folder / "model.safetensors").unlink()
    path = folder / "pytorch_model.bin"
    content = {"a": Exploit(tmp_path / "executed")}
    if form == "plain":
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form == "zip")
    message = load_refusal(folder)
    assert f"{path}: cannot be read safely" in message
    assert "a pickle with code in it" in message
    assert "convert it to safetensors" in message
    assert "weights_only" not in message
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("keep", [0, 10, 500, -100])
def test_damaged_bin(folder, keep):
    as_bins(folder)
    path = folder / "pytorch_model.bin"
    path.write_bytes(path.read_bytes()[:keep])
    assert "cannot be read safely" in load_refusal(folder)


def test_bin_that_is_no_state_dict(folder):
    (folder / "model.safetensors").unlink()
    path = folder / "pytorch_model.bin"
    torch.save([torch.ones(1)], path)
    assert f"{path}: holds a list; expected a state dict" in load_refusal(folder)
    torch.save({"state_dict": {"a": torch.ones(1)}}, path)
    refusal = load_refusal(folder)
    assert f"{path}: 'state_dict' is a dict; expected a state dict" in refusal
    assert refusal.endswith("the one under 'state_dict' may be it: save that alone")
    torch.save({"epoch": 1, "state_dict": {"a": torch.ones(1)}}, path)
    assert load_refusal(folder).endswith("the one under 'state_dict' may be it: save that alone")
    torch.save({"step": {"a": 1}}, path)
    assert load_refusal(folder).endswith("expected a state dict, names to tensors")


def test_missing_bin_shard(folder):
    as_bins(folder, shards=2)
    (folder / "pytorch_model-00002-of-00002.bin").unlink()
    assert "pytorch_model-00002-of-00002.bin is missing" in load_refusal(folder)


def test_loading_reads_headers_only(folder):
    size = 1 << 31
    entries = {
        "large": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]},
        "small": {"dtype": "F32", "shape": [2], "data_offsets": [size, size + 8]},
    }
    head = json.dumps(entries).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        file.truncate(8 + len(head) + size + 8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    checkpoint = load(folder)
    assert checkpoint.headers["large"].shape == (size // 4,)
    assert checkpoint["small"].tolist() == [0.0, 0.0]
    assert checkpoint["large"][size // 8] == 0.0
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < size // 8


def test_file_that_cannot_be_mapped(folder, monkeypatch):
    def refuse(path, framework):
        raise RuntimeError(f"unable to mmap 9 bytes from file <{path}>: Cannot allocate memory (12)")

    monkeypatch.setattr("cobasin.checkpoints.weight_files.safe_open", refuse)
    message = load_refusal(folder)
    assert "Cannot allocate memory" in message
    assert "save the model in smaller shards" in message
