"""Tables as CSV, as text and as files."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from cone_jax import atomic_file


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
    with atomic_file.replacing(path) as unfinished:
        unfinished.write_text(csv_table(header, rows), encoding="utf-8")
    return path
