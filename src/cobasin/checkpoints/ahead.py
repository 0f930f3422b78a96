"""Models are hashed while Transformers is imported, which keeps one processor busy for seconds."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from cobasin.checkpoints.checkpoint import Checkpoint
from cobasin.checkpoints.fingerprint import fingerprint, tensor_hash
from cobasin.checkpoints.weight_files import open_weights
from cobasin.paths import expanded

Hashes = dict[str, str]


class Ahead:
    """Hashes of the tensors of some folders, by name, as a thread finds them."""

    def __init__(self, found: dict[Path, Future[Hashes]]):
        self._found = found

    def fingerprint(self, model: Checkpoint) -> str:
        """That of a model, which waits until its folder is hashed."""
        future = self._found.get(model.folder) if model.stored and model.folder else None
        # whatever went wrong is told better by who reads the model
        hashes = None if future is None or future.exception() is not None else future.result()
        return fingerprint(model, hashes)


@contextmanager
def hashing(models: Iterable[str]) -> Iterator[Ahead]:
    """Within it, one thread hashes those of the models that are folders; nothing goes on behind it."""
    ended = threading.Event()

    def hashes_of(folder: Path) -> Hashes:
        headers, read = open_weights(folder)
        return {name: tensor_hash(read(name)) for name in headers if not ended.is_set()}

    folders = dict.fromkeys(folder for folder in map(expanded, models) if folder.is_dir())
    with ThreadPoolExecutor(1) as worker:
        try:
            yield Ahead({folder: worker.submit(hashes_of, folder) for folder in folders})
        finally:
            ended.set()
            worker.shutdown(wait=False, cancel_futures=True)
