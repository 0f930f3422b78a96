"""Full-size geometry: time and memory of matching two models, next to reading, writing and the bare FFN Grams.

    python benchmarks/full_size.py [--folder benchmarks/out] [--runs 3] [roberta-base deberta-v3-large]   # 45 minutes
    python benchmarks/full_size.py --device cuda                   # matching and the bare Grams once more, on a GPU

Weights are random, float32. An unrelated pair (seeds 0 and 1) is the hard case, where no argmax is a permutation; a
related one is a model and a copy with 5 % noise. All steps run in turn, in rounds that begin with another one each,
every step in a process of its own; figures are medians over the rounds, ratios medians of the ratios within a round.
Memory is the peak of anonymous memory above what the process has after its imports (mapped files can be dropped by the
system at any time and do not count). "Of it matching" is without the checks of all tensors for NaN and without the
distances before and after. "ffn-grams" are the products of the FFNs' weights alone: no assignment, nothing moved; what
runs on a GPU, which is started before the clock, is compared with those on the processor, too.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from common.processes import Figures, anonymous_mb, in_turn, machine, ratio, watched
from common.results import made, write
from common.showing import Table

# Zhang et al. 2025, Table 3: seconds of attention matching on an A100
PAPER_ATTENTION = {"roberta-base": 1.71, "deberta-v3-large": 1.59}
GRAMS = "ffn-grams"
MATCHINGS = ("attention", "ffn", "paper", "full")
STEPS = ("read", "write", GRAMS, *MATCHINGS)
PAIRS = ("unrelated", "related")
COLUMNS = ("CPU s", "of it matching", "wall s", "anonymous MB", "ascent rounds", "wall / Grams", "CPU / Grams")


@dataclass(frozen=True)
class Step(Figures):
    """What a step took; of matching, also its ascent alone."""

    ascent_cpu_s: float | None = None
    rounds: int | None = None


def make(name: str, which: str, folder: Path) -> Path:
    """The ``anchor``, or the other model of a pair, made where it is missing."""
    import torch
    import transformers as T

    out = folder / f"{name}-{which}"
    if out.exists():
        return out
    common = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 1}
    torch.manual_seed(1 if which == "unrelated" else 0)
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
    if which == "related":
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter += 0.05 * parameter.std() * torch.randn_like(parameter)
    model.save_pretrained(out)
    return out


def grams(anchor: Path, source: Path, device: str = "cpu") -> None:
    """The products that the FFNs' neurons are compared by: of what goes in, and of what comes out."""
    import torch
    from safetensors import safe_open

    one, other = (safe_open(folder / "model.safetensors", framework="pt") for folder in (anchor, source))
    names = [name for name in one.keys() if name.endswith("intermediate.dense.weight")]  # noqa: SIM118 - not a dict
    if not names:
        raise RuntimeError(f"{anchor}: no FFN of BERT's names")
    for name in names:
        out = name.replace("intermediate", "output")
        x, y, x_out, y_out = (end.get_tensor(part).to(device) for part in (name, out) for end in (one, other))
        torch.addmm(x @ y.T, x_out.T, y_out)
    if device == "cuda":
        torch.cuda.synchronize()


def step(what: str, anchor: Path, source: Path, device: str = "cpu") -> None:
    """Run one step and print its figures as JSON (called in a process of its own)."""
    import torch
    import transformers  # noqa: F401 - imported before the clock starts

    from cobasin.checkpoints import writer
    from cobasin.finding import match as api

    torch.ones(1, device=device)
    base = anonymous_mb("self")
    before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    more: dict[str, Any] = {}
    with watched("self") as peak:
        if what == "read":
            for model in (source, anchor):
                for tensor in api.load(model).values():
                    float(tensor.sum())
        elif what == "write":
            writer.save(api.load(source), source.parent / "written", overwrite=True)
        elif what == GRAMS:
            grams(anchor, source, device)
        else:
            report = api.match(source, anchor, symmetry=what, device=device).report
            more = {"ascent_cpu_s": report["ascent_cpu_seconds"], "rounds": report["rounds"]}
        wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps(asdict(Step(wall, cpu, peak[0] - base, **more))))


def run(what: str, anchor: Path, source: Path, device: str = "cpu") -> Step:
    """One step in a process of its own."""
    command = [sys.executable, __file__, "--step", what, str(anchor), str(source), "--device", device]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Step(**json.loads(done.stdout.splitlines()[-1]))


def table(name: str, pair: str, found: Mapping[str, Sequence[Step]]) -> Table:
    """Medians, and how they compare with the bare Grams."""
    body = []
    for what, steps in found.items():
        matched = what.partition(" on ")[0] in MATCHINGS
        row = [what, f"{_median(steps, 'cpu_s'):.2f}", f"{_median(steps, 'ascent_cpu_s'):.2f}" if matched else ""]
        row += [f"{_median(steps, 'wall_s'):.2f}", f"{_median(steps, 'anonymous_mb'):.0f}"]
        row.append(f"{_median(steps, 'rounds'):g}" if matched else "")
        against = found[GRAMS] if matched and GRAMS in found else None
        row += [f"{ratio(steps, against, key):.2f}" if against else "" for key in ("wall_s", "cpu_s")]
        body.append(row)
    count = len(next(iter(found.values())))
    return Table(
        f"{name}, {pair}, {count} round{'s' * (count > 1)}",
        COLUMNS,
        body,
        f"float32; attention matching of the paper, on an A100: {PAPER_ATTENTION[name]} s",
    )


def _median(steps: Sequence[Step], key: str) -> float:
    return median(getattr(one, key) for one in steps)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(PAPER_ATTENTION), help=f"of {', '.join(PAPER_ATTENTION)}")
    parser.add_argument("--folder", type=Path, default=Path("benchmarks/out"))
    parser.add_argument("--pairs", default=",".join(PAIRS), help=f"of {', '.join(PAIRS)}")
    parser.add_argument("--steps", default=",".join(STEPS), help=f"of {', '.join(STEPS)}")
    parser.add_argument("--runs", type=int, default=3, help="rounds")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: on a GPU, too")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.step:
        step(options.step, *map(Path, options.models), options.device)
        return
    pairs, steps = options.pairs.split(","), options.steps.split(",")
    for option, asked, known in (
        ("models", options.models, PAPER_ATTENTION),
        ("--pairs", pairs, PAIRS),
        ("--steps", steps, STEPS),
    ):
        if unknown := set(asked) - set(known):
            parser.error(f"{option}: unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    path, said = options.folder / "full-size.json", machine() | made()
    if options.device == "cuda" and "gpu" not in said:
        parser.error("--device cuda: there is no GPU that torch can use")
    for name in options.models:
        for pair in pairs:
            anchor, source = make(name, "anchor", options.folder), make(name, pair, options.folder)
            contenders = {what: partial(run, what, anchor, source) for what in steps}
            for what in steps if options.device != "cpu" else ():
                if what in (GRAMS, *MATCHINGS):
                    contenders[f"{what} on {options.device}"] = partial(run, what, anchor, source, options.device)
            found = in_turn(contenders, options.runs)
            table(name, pair, found).show()
            earlier = json.loads(path.read_text()) if path.exists() else {}
            rounds = {what: [asdict(one) for one in taken] for what, taken in found.items()}
            write(path, earlier | {f"{name}, {pair}": {"of": said, "rounds": rounds}})


if __name__ == "__main__":
    main()
