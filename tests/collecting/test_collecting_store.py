"""One pass over a data set: kept in a file, resumed, shared, and refused where it is not what is asked for."""

import json
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import tiny_models
from cobasin.checkpoints.running import instantiate
from cobasin.checkpoints.typed import Typed
from cobasin.data import batches
from cobasin.errors import InputError
from cobasin.execution.parts import Part
from cobasin.finding.kept import Kept
from cobasin.statistics import collect as module
from cobasin.statistics import slices
from cobasin.statistics.collect import KINDS, collect
from cobasin.statistics.grams import InputGram
from cobasin.statistics.modules import built

CASE = "bert/BertForSequenceClassification"
BATCHES = 20  # of two rows, the last of one


def data(model, count=7, size=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 9, (count,), generator=generator).tolist()
    rows = [{"input_ids": torch.randint(5, 40, (n,), generator=generator).tolist(), "label": n % 2} for n in lengths]
    return batches(model.checkpoint, rows, samples=None, batch_size=size, seed=0)


@pytest.fixture(scope="module")
def bert():
    return Typed.of(tiny_models.checkpoint(CASE, dtype=torch.float32))


def tensors(result):
    return {name: one.matrix if isinstance(one, InputGram) else one for name, one in result.items()}


def identical(one, other):
    one, other = tensors(one), tensors(other)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def stop_at(monkeypatch, batch):
    """Let the next run keep its sums after every batch, and stop it in the middle of one."""
    monkeypatch.setattr(slices, "SAVE_EVERY", 0.0)
    done = []

    def progress(finished, total):
        done.append((finished, total))
        if finished == batch:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize("kind", KINDS)
def test_a_stopped_run_goes_on_to_the_same_result(kind, bert, tmp_path, monkeypatch):
    whole = collect(kind, bert, data(bert), sampled=5)
    with pytest.raises(KeyboardInterrupt):
        collect(kind, bert, data(bert), sampled=5, cache=tmp_path, progress=stop_at(monkeypatch, 3))
    (partial,) = tmp_path.iterdir()
    assert partial.name.endswith(".safetensors.partial")

    ran = []
    resumed = collect(
        kind, bert, data(bert), sampled=5, cache=tmp_path, progress=lambda done, total: ran.append((done, total))
    )
    assert ran == [(2, 4), (3, 4), (4, 4)]
    assert identical(resumed, whole)
    (kept,) = tmp_path.iterdir()
    assert kept.name.startswith(f"{kind}-")
    assert kept.suffix == ".safetensors"
    # the control: without the batches that were done, it is another result
    rest = collect(kind, bert, data(bert).skip(2), sampled=5)
    assert not identical(rest, whole)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_collected_is_read_the_next_time(kind, bert, tmp_path, monkeypatch):
    first = collect(kind, bert, data(bert), sampled=5, cache=tmp_path)
    monkeypatch.setattr(module, "built", None)
    again = collect(kind, bert, data(bert), sampled=5, cache=tmp_path)
    assert identical(again, first)
    assert tensors(again) is not tensors(first)
    if kind == "grams":
        names = [f"encoder.layer.0.attention.self.{part}.weight" for part in ("query", "key", "value")]
        assert len({id(again[name].matrix) for name in names}) == 1
        (file,) = tmp_path.iterdir()
        assert len(load_file(file)) == len({id(one.matrix) for one in first.values()}) < len(first)


@pytest.fixture
def ran(monkeypatch):
    """The batches that were run, by thread."""
    found: dict[int, list[int]] = {}
    adding = slices._adding

    def counted(sums, batches, span):
        found.setdefault(threading.get_ident(), []).extend(span)
        return adding(sums, batches, span)

    monkeypatch.setattr(slices, "_adding", counted)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_two_parts_find_what_one_finds_alone(kind, bert, ran, tmp_path, monkeypatch):
    rows, lock = data(bert, count=2 * BATCHES - 1), threading.Lock()

    def one_at_a_time(*given):
        with lock:  # Transformers changes classes while it loads
            return built(*given)

    monkeypatch.setattr(module, "built", one_at_a_time)
    whole = collect(kind, bert, rows, sampled=5)
    assert ran.popitem()[1] == [*range(BATCHES)]

    def share(number):
        part = Part(number, 2, tmp_path)
        with part.at_work():
            return collect(kind, bert, rows, sampled=5, keep=Kept(tmp_path, part).within(kind))

    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(share, (1, 2)))
    assert all(identical(one, whole) for one in found)
    one, other = ran.values()
    assert one
    assert other
    assert sorted([*one, *other]) == [*range(BATCHES)]
    ran.clear()
    seen = []
    gathered = collect(
        kind, bert, rows, sampled=5, keep=Kept(tmp_path / kind), progress=lambda *done: seen.append(done)
    )
    assert identical(gathered, whole)
    assert not ran
    assert seen == [(0, BATCHES), (BATCHES, BATCHES)]
    # the control: another slice makes another result
    path = tmp_path / kind / "slice-3.safetensors"
    other_slice = Kept(tmp_path / kind).load("slice-4")
    Kept(tmp_path / kind).save("slice-3", other_slice)
    assert not identical(collect(kind, bert, rows, sampled=5, keep=Kept(tmp_path / kind)), whole)
    # one that is not there is made again
    path.unlink()
    assert identical(collect(kind, bert, rows, sampled=5, keep=Kept(tmp_path / kind)), whole)
    assert ran.popitem()[1] == [3, 4]  # slice 3 of 16 has two of the 20 batches
    # a part that has the result makes its slices all the same: others wait for them
    cache = tmp_path / "cache"
    collect(kind, bert, rows, sampled=5, cache=cache)
    part = Part(1, 2, tmp_path)
    with part.at_work():
        monkeypatch.setattr(part, "must_do", lambda job, result: not result.exists())
        found = collect(kind, bert, rows, sampled=5, cache=cache, keep=Kept(tmp_path, part).within("again"))
    assert identical(found, whole)
    assert len(list((tmp_path / "again").iterdir())) == 16


def test_slices_are_consecutive_and_all():
    for count in (1, 5, 16, 17, 100):
        found = slices._slices(count)
        assert [number for span in found for number in span] == [*range(count)]
        assert len(found) == min(count, slices.SLICES)
        assert max(map(len, found)) - min(map(len, found)) <= 1


def test_what_changes_the_result_changes_the_file(bert, tmp_path):
    other = Typed.of(tiny_models.checkpoint(CASE, seed=1, dtype=torch.float32))
    for model, rows, seed in ((bert, 0, 0), (other, 0, 0), (bert, 1, 0), (bert, 0, 1)):
        collect("fisher", model, data(model, seed=rows), seed=seed, cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 4
    for seed in (0, 1):  # Grams draw nothing
        collect("grams", bert, data(bert), seed=seed, cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 5


def test_what_the_file_says(bert, tmp_path):
    collect("grams", bert, data(bert), cache=tmp_path)
    (path,) = tmp_path.iterdir()
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    source = json.loads(metadata["source"])
    assert metadata["cobasin"].count(".") == 2
    assert source["kind"] == "grams"
    assert source["rows"] == 7
    assert source["data"] == data(bert).digest
    assert len(source["model"]) == 64


def refusal(kind, model, rows, cache):
    with pytest.raises(InputError) as refused:
        collect(kind, model, rows, cache=cache)
    message = str(refused.value)
    assert "\n" not in message
    assert str(cache) in message
    return message


def test_files_that_are_not_what_their_name_says(bert, tmp_path):
    collect("grams", bert, data(bert), cache=tmp_path)
    (path,) = tmp_path.iterdir()
    other = Typed.of(tiny_models.checkpoint(CASE, seed=1, dtype=torch.float32))
    collect("grams", other, data(other), cache=tmp_path)
    (twin,) = set(tmp_path.iterdir()) - {path}
    path.replace(twin)
    assert "another model than its name says" in refusal("grams", other, data(other), tmp_path)
    collect("grams", bert, data(bert, seed=1), cache=tmp_path)
    (moved,) = set(tmp_path.iterdir()) - {twin}
    twin.replace(moved)
    assert "another data than its name says" in refusal("grams", bert, data(bert, seed=1), tmp_path)


@pytest.mark.parametrize("suffix", ["", ".partial"])
def test_damaged_files(suffix, bert, tmp_path):
    collect("grams", bert, data(bert), cache=tmp_path)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    path.unlink()
    damaged = path.with_name(path.name + suffix)
    damaged.write_bytes(content[: len(content) // 2])
    assert "is damaged" in refusal("grams", bert, data(bert), tmp_path)
    damaged.write_bytes(b"")
    assert "is damaged" in refusal("grams", bert, data(bert), tmp_path)
    save_file({"a": torch.ones(1)}, damaged)
    assert "holds no statistics" in refusal("grams", bert, data(bert), tmp_path)
    for source in ("[]", "[" * 100_000):
        save_file({"a": torch.ones(1)}, damaged, {"source": source})
        assert "is damaged" in refusal("grams", bert, data(bert), tmp_path)
    damaged.unlink()
    damaged.mkdir()
    assert "is damaged" in refusal("grams", bert, data(bert), tmp_path)


def test_a_folder_that_cannot_be_written(bert, tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refusal("grams", bert, data(bert), tmp_path / "file")


def test_devices(bert):
    for name in ("gpu", "cuda:77", ""):
        with pytest.raises(InputError, match=f"device '{name}' cannot be used here"):
            collect("grams", bert, data(bert), device=name)
    assert identical(collect("grams", bert, data(bert), device="cpu"), collect("grams", bert, data(bert)))


def test_a_model_that_overflows(monkeypatch):
    monkeypatch.setattr("cobasin.checkpoints.typed.LARGEST", math.inf)
    model = instantiate(tiny_models.checkpoint(CASE, dtype=torch.float32), torch.float32)
    with torch.no_grad():
        model.bert.encoder.layer[1].intermediate.dense.bias[0] = 3e38
        model.bert.encoder.layer[1].intermediate.dense.weight[0] = 3e38
    typed = Typed.of(tiny_models.load(model))
    for kind in ("grams", "activations"):
        with pytest.raises(InputError, match="has NaN or infinite values; the model overflows"):
            collect(kind, typed, data(typed))
    with pytest.raises(InputError, match="log-likelihood of row 1 of the data is nan"):
        collect("fisher", typed, data(typed))


def test_the_width_of_the_numbers(bert):
    """A float64 model runs in float64, any other in float32."""
    wide = Typed.of(tiny_models.checkpoint(CASE))
    half = Typed.of(tiny_models.checkpoint(CASE, dtype=torch.bfloat16))
    found = [collect("fisher", model, data(model))["classifier.weight"].dtype for model in (wide, bert, half)]
    assert found == [torch.float64, torch.float32, torch.float32]


def test_models_without_a_head():
    typed = Typed.of(tiny_models.checkpoint("bert/BertModel", dtype=torch.float32))
    with pytest.raises(InputError, match="a BertModel has no head whose likelihood is known"):
        collect("fisher", typed, data(typed))
    assert "encoder.layer.0.intermediate.dense.weight" in collect("grams", typed, data(typed))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_gpu(kind, bert):
    there, here = (tensors(collect(kind, bert, data(bert), device=device)) for device in ("cuda", "cpu"))
    assert there.keys() == here.keys()
    for name, one in there.items():
        assert one.device.type == "cpu"
        assert torch.allclose(one, here[name], rtol=1e-3, atol=1e-5), name
