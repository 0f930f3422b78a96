"""A page of pictures and tables in one HTML file, which needs nothing beside it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; color: #222;
  background: #fff; }
img { max-width: 100%; height: auto; }
h1 { font-size: 1.5rem; }
h2 { font-size: 1.15rem; margin-top: 2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }
th, td { padding: 0.2rem 0.8rem; border-bottom: 1px solid #ddd; text-align: right; }
th:first-child, td:first-child { text-align: left; }
thead th { border-bottom: 2px solid #888; }
"""


@dataclass(frozen=True)
class Table:
    """A table with a heading above it and one for every column; numbers are written with four digits."""

    heading: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | float | None]]


def page(title: str, lines: Sequence[str], pictures: Sequence[tuple[Path, str]], tables: Sequence[Table]) -> str:
    """The text of the file.

    Args:
        title: in the window and above all else.
        lines: paragraphs below it.
        pictures: PNG files, which are embedded, each with what it shows.
        tables: below the pictures.
    """
    body = [f"<h1>{escape(title)}</h1>", *(f"<p>{escape(line)}</p>" for line in lines)]
    for file, shows in pictures:
        data = b64encode(file.read_bytes()).decode()
        body.append(f'<p><img src="data:image/png;base64,{data}" alt="{escape(shows)}"></p>')
    body += [part for table in tables for part in _table(table)]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    content = "\n".join(body)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}<style>{_STYLE}</style></head>\n<body>\n{content}\n</body>\n'
        "</html>\n"
    )


def _table(table: Table) -> list[str]:
    heads = "".join(f'<th scope="col">{escape(column)}</th>' for column in table.columns)
    rows = ["<tr>" + "".join(f"<td>{escape(_shown(cell))}</td>" for cell in row) + "</tr>" for row in table.rows]
    return [
        f"<h2>{escape(table.heading)}</h2>",
        f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>',
        *rows,
        "</tbody></table></div>",
    ]


def _shown(cell: str | float | None) -> str:
    if isinstance(cell, str):
        return cell
    return "not finite" if cell is None else f"{cell:.4f}"
