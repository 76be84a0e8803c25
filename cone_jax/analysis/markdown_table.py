"""Tables in Markdown."""

from collections.abc import Sequence


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
