"""Tables as CSV files."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from cone_jax import atomic_file


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    """Writes the table, complete or not at all; returns its path."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    with atomic_file.replacing(path) as unfinished:
        unfinished.write_text(text.getvalue())
    return path
