"""Full-size geometry: time and memory of matching two unrelated random models, next to reading and writing.

    python benchmarks/full_size.py [--folder benchmarks/out] [roberta-base deberta-v3-large]

Weights are random (seeds 0 and 1), float32: the hard case, where no argmax is a permutation. Each step runs in a
process of its own; its memory is the peak of anonymous memory above what the process has after its imports
(mapped files can be dropped by the system at any time and do not count). "Of it matching" is without the checks of all
tensors for NaN and without the distances before and after.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

# Zhang et al. 2025, Table 3: seconds of attention matching on an A100
PAPER_ATTENTION = {"roberta-base": 1.71, "deberta-v3-large": 1.59}
STEPS = ("read", "write", "attention", "ffn", "paper", "full")


def make(name: str, seed: int, folder: Path) -> None:
    import torch
    import transformers as T

    if folder.exists():
        return
    common = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 1}
    torch.manual_seed(seed)
    if name == "roberta-base":
        model = T.RobertaForMaskedLM(T.RobertaConfig(**common))
    else:
        config = T.DebertaV2Config(
            hidden_size=1024,
            num_hidden_layers=24,
            num_attention_heads=16,
            intermediate_size=4096,
            vocab_size=128100,
            max_position_embeddings=512,
            relative_attention=True,
            position_buckets=256,
            norm_rel_ebd="layer_norm",
            share_att_key=True,
            pos_att_type="p2c|c2p",
            position_biased_input=False,
            type_vocab_size=0,
            pooler_hidden_size=1024,
        )
        model = T.DebertaV2ForSequenceClassification(config)
    model.save_pretrained(folder)


def anonymous_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("this benchmark reads /proc/self/status: it needs Linux")


def step(name: str, what: str, folder: Path) -> None:
    """Run one step and print its figures as JSON (called in a process of its own)."""
    import transformers  # noqa: F401 - imported before the clock starts

    from cobasin.checkpoints import writer
    from cobasin.finding import match as api

    source, anchor = (folder / f"{name}-{seed}" for seed in (1, 0))
    base, peak, running = anonymous_mb(), 0.0, True

    def watch() -> None:
        nonlocal peak
        while running:
            peak = max(peak, anonymous_mb())
            time.sleep(0.01)

    watcher = threading.Thread(target=watch)
    watcher.start()
    before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    extra = {}
    if what == "read":
        for model in (source, anchor):
            checkpoint = api.load(model)
            for tensor in checkpoint.values():
                float(tensor.sum())
    elif what == "write":
        writer.save(api.load(source), folder / "written", overwrite=True)
    else:
        report = api.match(source, anchor, symmetry=what).report
        extra = {k: report[k] for k in ("rounds", "ascent_cpu_seconds", "distance_before", "distance_after")}
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_SELF)
    running = False
    watcher.join()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"cpu_s": cpu, "wall_s": wall, "anonymous_mb": peak - base, **extra}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(PAPER_ATTENTION), help=f"of {', '.join(PAPER_ATTENTION)}")
    parser.add_argument("--folder", type=Path, default=Path("benchmarks/out"))
    parser.add_argument("--steps", default=",".join(STEPS))
    parser.add_argument("--step", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.models) - set(PAPER_ATTENTION):
        parser.error(f"unknown: {', '.join(unknown)}")
    if options.step:
        step(options.models[0], options.step, options.folder)
        return
    results: dict = {}
    for name in options.models:
        for seed in (0, 1):
            make(name, seed, options.folder / f"{name}-{seed}")
        table = Table(
            "step", "CPU s", "of it matching", "wall s", "anonymous MB", "rounds", title=f"{name}, float32, unrelated"
        )
        for what in options.steps.split(","):
            command = [sys.executable, __file__, name, "--folder", str(options.folder), "--step", what]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            row = results.setdefault(name, {})[what] = json.loads(done.stdout.splitlines()[-1])
            matching = f"{row['ascent_cpu_seconds']:.2f}" if "ascent_cpu_seconds" in row else ""
            figures = (f"{row['cpu_s']:.2f}", matching, f"{row['wall_s']:.2f}", f"{row['anonymous_mb']:.0f}")
            table.add_row(what, *figures, str(row.get("rounds", "")))
        table.caption = f"attention matching of the paper, on an A100: {PAPER_ATTENTION[name]} s"
        Console().print(table)
    (options.folder / "full_size.json").write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
