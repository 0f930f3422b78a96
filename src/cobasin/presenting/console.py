"""Standard output, where reports are printed."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table


class Output(Console):
    """A console that does not end the program where its reader has left."""

    def table(self, table: Table) -> None:
        """Print a table, whose cells rich may break at its width, but not cut: nothing is to be left out."""
        for column in table.columns:
            column.overflow = "fold"
        self.print(table, soft_wrap=False)

    def notes(self, report: dict) -> None:
        """Print what a reader of a report should know."""
        for note in report["notes"]:
            self.print(f"note: {note}")

    def on_broken_pipe(self) -> None:
        """Leave it to the caller."""
        raise BrokenPipeError


# Paths may hold what rich takes for markup or emoji. Neither they nor tables are to be broken in a pipe, where rich
# knows no width: lines are never, and tables find 200 columns there.
output = Output(
    markup=False, emoji=False, highlight=False, soft_wrap=True, width=None if Console().is_terminal else 200
)

SHOWN = 20  # rows of a table that may be long


def setting(value: object) -> str:
    """A parameter of a method, as YAML has it."""
    return f"{value:g}" if isinstance(value, float) else str(value).lower()
