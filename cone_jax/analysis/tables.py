"""Tables as text and as files: Markdown for a person, CSV for a program."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from cone_jax import storage


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table, without a line break at its end.

    >>> print(markdown_table(["run", "top-1"], [["a|b", "98 %"]]))
    | run | top-1 |
    |---|---|
    | a\\|b | 98 % |
    """
    return "\n".join([_line(header), "|---" * len(header) + "|", *map(_line, rows)])


def one_decimal(value: float | None) -> str:
    """A percentage for a cell, with the digit the paper gives; a dash where there is none.

    >>> one_decimal(78.08), one_decimal(None)
    ('78.1', '–')
    """
    return "–" if value is None else f"{value:.1f}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def csv_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """The table, each line ended.

    >>> csv_table(["run", "top-1"], [["a, b", 0.98]])
    'run,top-1\\n"a, b",0.98\\n'
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    """Writes the table, complete or not at all; returns its path."""
    with storage.replacing(path) as unfinished:
        unfinished.write_text(csv_table(header, rows), encoding="utf-8")
    return path
