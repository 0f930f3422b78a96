"""What the tests of the command line share: running it, and folders of small models that lie near each other."""

import copy
import hashlib
import io
import json
import os
import shutil
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import reduce
from unittest.mock import patch

import torch
import transformers
import typer
from safetensors.torch import load_file, save_file

import cobasin.checkpoints.checkpoint
import cobasin.cli
from tiny_models import model

WEIGHTS = "model.safetensors"
COMMAND = typer.main.get_command(cobasin.cli.app)  # as the app makes it for every run, which takes a while


@dataclass
class Run:
    """What a run of the command line did; `reads` are the names of the tensors that it read from folders."""

    code: int
    out: str
    err: str
    reads: list[str]

    @property
    def json(self):
        """The one object on standard output."""
        assert self.code in (0, 1), self.err
        return json.loads(self.out)


def run(*arguments):
    """Run the command line in this process."""
    reads, open_weights = [], cobasin.checkpoints.checkpoint.open_weights

    def spying(folder):
        headers, read = open_weights(folder)
        return headers, lambda name: reads.append(name) or read(name)

    out, err, code = io.StringIO(), io.StringIO(), 0
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    with (
        patch.object(sys, "argv", ["cobasin", *map(str, arguments)]),
        patch.object(cobasin.cli, "app", COMMAND),
        patch.dict(os.environ),
        patch.object(cobasin.checkpoints.checkpoint, "open_weights", spying),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            cobasin.cli.main()
        except SystemExit as end:
            code = end.code or 0
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    return Run(code, out.getvalue(), err.getvalue(), reads)


def refused(folder, *arguments, unread=True):
    """The one line with which a run is refused that must leave `folder` as it is, and (`unread`) read no tensor."""
    before = snapshot(folder)
    finished = run(*arguments)
    assert finished.code == 2, finished
    assert finished.out == ""
    (line,) = finished.err.splitlines()
    assert line.startswith("error: ")
    assert snapshot(folder) == before
    assert not (unread and finished.reads)
    return line


def refused_by_both(source, anchor, *texts, unread=True):
    """Check that `match` and `merge` refuse a pair with a line that has all of these texts in it."""
    folder = anchor.parent
    for verb, first, second in (("match", source, anchor), ("merge", anchor, source)):
        line = refused(folder, verb, first, second, "--out", folder / "out", unread=unread)
        for text in texts:
            assert text in line, line


def snapshot(folder):
    """Every path under a folder, with a digest of its content."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
        for path in folder.rglob("*")
    }


def near(original, noise=0.05, **changes):
    """A model whose parameters differ a little from those of another, with changes to its config."""
    config = copy.deepcopy(original.config)
    for key, value in changes.items():
        setattr(config, key, value)
    made = type(original)(config).to(original.dtype)
    found = original.state_dict()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name in found and found[name].shape == parameter.shape:
                parameter.copy_(found[name])
            parameter.add_(torch.randn(parameter.shape, generator=generator) * noise)
    made.tie_weights()
    return made.eval()


def pair(folder, case, dtype=torch.float32, shard="1GB", **changes):
    """Two models near each other as the folders `source` and `anchor`; the source's config with changes."""
    anchor = model(case, 0, torch.float32)
    for name, made in (("source", near(anchor, **changes)), ("anchor", anchor)):
        made.to(dtype).save_pretrained(folder / name, max_shard_size=shard)
    return folder / "source", folder / "anchor"


def duplicate(source, name, **changes):
    """A copy of a folder beside it, with changes to config.json (None: without the key; dotted: in a config within)."""

    def change(config):
        for key, value in changes.items():
            *within, last = key.split(".")
            reduce(dict.__getitem__, within, config)[last] = value

    folder = source.with_name(name)
    shutil.copytree(source, folder)
    edit_json(folder / "config.json", change)
    return folder


def edit_json(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def edit_tensors(folder, change):
    """Change the tensors of a folder with one weight file."""
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})


def tensors_of(folder):
    """The tensors of all weight files of a folder."""
    return {name: tensor for path in folder.glob("model*.safetensors") for name, tensor in load_file(path).items()}


def stock(folder, **options):
    """The model as stock Transformers loads it, with no tensor missing or left over."""
    config = json.loads((folder / "config.json").read_text())
    cls = getattr(transformers, config["architectures"][0])
    loaded, info = cls.from_pretrained(folder, output_loading_info=True, **options)
    assert not any(info.values()), info
    return loaded.eval()
