"""The command line: the verbs, progress on standard error, exit codes.

Exit codes: 0 done (verify: the same function), 1 verify found different functions or inspect --check a wrong
declaration, 2 bad input or undecided, 70 a defect of cobasin (with its traceback), 130 interrupted.
"""

from __future__ import annotations

import atexit
import errno
import gc
import io
import os
import signal
import sys
import traceback
from contextlib import suppress
from typing import Any

import typer

# Each adds its commands, in the order of the help.
# isort: off
from cobasin.cli import moving, merging, measuring, showing  # noqa: F401

# isort: on
from cobasin.cli.shared import app
from cobasin.errors import InputError

INTERRUPTED, DEFECT = 130, 70
PATHS = {errno.EACCES, errno.ENAMETOOLONG, errno.ELOOP}  # what no file system shows, whatever is asked of it
UsageError: Any = typer.BadParameter.__mro__[1]  # click's, which newer typers have in a package of their own

_signals: list[int] = []
"""What has told this run to end: a library may make an error of its own of the interrupt."""


class _Messages:
    """Standard error, where what cannot be written is lost: a log on a full disk ends no run, nor changes its code."""

    def __init__(self, stream: Any):
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _terminate(number: int, _: object) -> None:
    _signals.append(number)
    raise KeyboardInterrupt


def _catch_signals() -> None:
    """Clean up as after Ctrl-C where a run is ended, also when the terminal is closed, unless under nohup."""
    _signals.clear()
    for name in ("SIGTERM", "SIGHUP"):
        if (number := getattr(signal, name, None)) is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _terminate)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # in the background it is ignored
        signal.signal(signal.SIGINT, _terminate)


def main() -> None:
    """Run the command line."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # its warnings would bury the line of an error
    if isinstance(sys.stdout, io.TextIOWrapper):  # a letter that the terminal lacks must not end a run in its report
        sys.stdout.reconfigure(errors="backslashreplace")
    if sys.stderr is not None and not isinstance(sys.stderr, _Messages):  # None where it was closed before the start
        messages: Any = _Messages(sys.stderr)
        sys.stderr = messages
    _catch_signals()
    # Before torch is imported: its threads then sleep between small operations instead of spinning, which on a
    # busy machine costs the others more than it saves.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Looking for unreachable cycles is a fifth of the time of importing torch and transformers otherwise.
    gc.set_threshold(50_000, 20, 100)
    atexit.register(gc.disable)  # nor does what ends need another look
    try:
        code = app(prog_name="cobasin", standalone_mode=False)  # None, or that of an Exit
        if code == INTERRUPTED:  # what typer makes of a KeyboardInterrupt
            _say_interrupted()
        sys.exit(code)
    except UsageError as error:
        if len(sys.argv) == 1:  # the help, which teaches more than a line
            error.show()
        else:
            command = error.ctx.command_path if error.ctx else "cobasin"
            message = " ".join(error.format_message().splitlines()).removesuffix(".")
            print(f"error: {message} (see {command} --help)", file=sys.stderr)
        sys.exit(2)
    except (Exception, KeyboardInterrupt) as error:  # Python would end with 1, which is an answer of verify
        if _signals:
            _say_interrupted()
            sys.exit(INTERRUPTED)
        if isinstance(error, InputError):
            print("error:", " ".join(str(error).splitlines()), file=sys.stderr)
            sys.exit(2)
        if isinstance(error, OSError) and error.errno in PATHS and error.filename is not None:
            print(f"error: {error.filename}: cannot be looked at: {error.strerror}", file=sys.stderr)
            sys.exit(2)
        traceback.print_exc()
        sys.exit(DEFECT)


def _say_interrupted() -> None:
    kept, left = "what is finished is kept for --resume", "no unfinished output was left behind"
    words = {word for argument in sys.argv for word in argument.split("=")}
    keeps = bool({"--resume", "--part"} & words) or {"--engine", "ray"} <= words
    print(f"interrupted; {kept if keeps else left}", file=sys.stderr)
