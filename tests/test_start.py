"""What takes seconds to import is not imported before it is needed."""

import subprocess
import sys

import pytest

import cobasin

HEAVY = {"torch", "transformers", "numpy", "scipy", "peft", "ot", "matplotlib"}


@pytest.mark.parametrize(
    "program",
    [
        "import cobasin",
        "sys.argv = ['cobasin', '--help']; from cobasin.cli import main; main()",
        "sys.argv = ['cobasin', 'merge', '--help']; from cobasin.cli import main; main()",
    ],
)
def test_imported(program):
    code = f"import atexit, sys; atexit.register(lambda: print('imported:', *{HEAVY} & set(sys.modules))); {program}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "imported:"


def test_the_package_runs_as_the_command():
    done = subprocess.run([sys.executable, "-m", "cobasin", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"cobasin {cobasin.__version__}\n")


@pytest.mark.parametrize("name", cobasin.__all__)
def test_every_public_name_is_there(name):
    assert getattr(cobasin, name).__name__ == name
    assert getattr(cobasin, name).__doc__
