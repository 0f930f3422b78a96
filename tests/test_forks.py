"""A copy of this process ends whatever its program does: it must not go on with the tests that follow."""

import pytest

from forks import forked


@pytest.mark.parametrize(
    ("program", "code"),
    [("", 0), ("import sys; sys.exit(3)", 3), ("import sys; sys.exit('a word')", 1), ("import sys; sys.exit()", 0)],
)
def test_the_end_of_a_copy(program, code):
    assert forked(program).returncode == code


def test_a_copy_that_cannot_say_anything_ends():
    closed = "import sys; sys.stdout.close()"
    assert forked(closed).returncode == 0
    said = forked("print('said', flush=True); 1 / 0")
    assert (said.returncode, said.stdout) == (1, "said\n")
    assert said.stderr.endswith("ZeroDivisionError: division by zero\n")
