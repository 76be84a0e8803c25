"""Prints docs/fields.md: every field of a config with its default, limits and meaning.

python scripts/list_fields.py > docs/fields.md
"""

import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cone_jax.objectives.objective import OBJECTIVES
from cone_jax.settings import FieldEntry, Settings

OPENING = """\
# Fields of a config

    python main.py --config=digits --config.bank.size=512

sets one field. A recipe may set any of them.

A field marked \\* may change when a run is continued: it changes how the run is carried out, not
what it computes. Fields are declared in [`cone_jax/settings/`](../cone_jax/settings), and those of
a method in its file in [`cone_jax/objectives/`](../cone_jax/objectives). This page is made from
there, by `scripts/list_fields.py`."""


def table(entries: Iterable[FieldEntry]) -> list[str]:
    """The rows of one section, after their heading."""
    rows = ["| field | default | valid | meaning |", "|---|---|---|---|"]
    for entry in entries:
        valid = ", ".join(map(str, entry.choices)) or entry.declaration.limits
        mark = " \\*" if entry.declaration.free else ""
        cells = (f"`{entry.name}`{mark}", f"`{entry.default!r}`", valid, entry.declaration.meaning)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return rows


def page() -> str:
    """The whole page."""
    entries = list(Settings().entries())
    for objective in OBJECTIVES.values():
        entries += objective().entries()
    entries.sort(key=lambda entry: entry.name.rpartition(".")[0])
    parts = [OPENING]
    for section, group in groupby(entries, key=lambda entry: entry.name.rpartition(".")[0]):
        parts += [f"## {section or 'The run'}", "\n".join(table(group))]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    print(page(), end="")
