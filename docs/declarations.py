"""Write the table of declarations and their lengths into docs/architectures.md: python docs/declarations.py."""

from __future__ import annotations

from inspect import getsourcefile, getsourcelines
from pathlib import Path

from cobasin.architectures import registered

GOAL = 40  # lines of a declaration, or fewer
PAGE = Path(__file__).with_name("architectures.md")
START, END = "<!-- declarations: python docs/declarations.py -->\n", "<!-- end -->\n"


def table() -> str:
    """A row a file: the functions in it that declare classes, each with its lines, and the lines of the whole file."""
    files: dict[Path, dict[str, int]] = {}
    for declared in registered().values():
        if declared.own:
            function = declared.declaration
            lines = len(getsourcelines(function)[0])
            files.setdefault(Path(str(getsourcefile(function))), {})[function.__name__] = lines
    rows = ["| file | declarations and their lines | lines in all |", "|---|---|---|"]
    for file, functions in sorted(files.items()):
        listed = ", ".join(f"{name} {lines}" for name, lines in functions.items())
        rows.append(f"| {file.name} | {listed} | {len(file.read_text(encoding='utf-8').splitlines())} |")
    lengths = [lines for functions in files.values() for lines in functions.values()]
    mean, longer = sum(lengths) / len(lengths), sum(length > GOAL for length in lengths)
    rows.append(
        f"\n{len(lengths)} declarations. With decorator and docstring they have {mean:.0f} lines on average, "
        f"{max(lengths)} at most; {longer} have more than {GOAL}."
    )
    return "\n".join(rows) + "\n"


def main() -> None:
    """Replace the table in the page."""
    before, rest = PAGE.read_text(encoding="utf-8").split(START)
    _, after = rest.split(END)
    PAGE.write_text(before + START + table() + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
