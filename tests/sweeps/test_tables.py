"""A sweep's table in all its forms, the paper's values beside."""

import csv
import dataclasses
import io
import statistics

from cone_jax.sweeps import Axis, Cell, Sweep, grid, tables
from cone_jax.sweeps.tables import Entry

ROWS, COLUMNS = Axis("λ", "a", (0.3, 0.7)), Axis("τ", "b", (0.1, 0.2))
SQUARE = Sweep(
    title="Weight and temperature",
    base="",
    cells=tuple(
        dataclasses.replace(cell, paper=value)
        for cell, value in zip(grid(ROWS, COLUMNS), (77.5, 77.4, 78.0, 78.1), strict=True)
    ),
    row_name="λ",
    column_name="τ",
    paper_setting="ImageNet",
)
LIST = Sweep(
    title="Parts",
    base="",
    cells=(Cell("CE", paper=76.9), Cell("CE | head"), Cell("all", paper=78.7)),
    row_name="parts",
)
VALUES = [(97.0, 98.0, 99.0), (96.5,), (), (99.25,)]


def square():
    return [Entry(cell, values) for cell, values in zip(SQUARE.cells, VALUES, strict=True)]


def test_markdown_grid():
    assert tables.as_markdown(SQUARE, square()).splitlines() == [
        "# Weight and temperature",
        "",
        "Numbers are test top-1, %. The paper's in brackets: ImageNet.",
        "",
        "| λ \\ τ | 0.1 | 0.2 |",
        "|---|---|---|",
        "| 0.3 | 98.00 ± 1.00 (77.5) | 96.50 (77.4) |",
        "| 0.7 | – (78.0) | 99.25 (78.1) |",
    ]


def test_markdown_list():
    measured = [Entry(cell, values) for cell, values in zip(LIST.cells, VALUES, strict=False)]
    assert tables.as_markdown(LIST, measured).splitlines()[-3:] == [
        "| CE | 98.00 ± 1.00 | 76.9 |",
        "| CE \\| head | 96.50 | – |",
        "| all | – | 78.7 |",
    ]


def test_csv():
    rows = list(csv.DictReader(io.StringIO(tables.as_csv(SQUARE, square()))))
    assert [(row["λ"], row["τ"]) for row in rows] == [
        ("0.3", "0.1"),
        ("0.3", "0.2"),
        ("0.7", "0.1"),
        ("0.7", "0.2"),
    ]
    assert float(rows[0]["mean"]) == 98.0
    assert float(rows[0]["deviation"]) == statistics.stdev(VALUES[0])
    assert [row["runs"] for row in rows] == ["3", "1", "0", "1"]
    assert rows[2]["mean"] == ""
    assert [float(row["paper"]) for row in rows] == [77.5, 77.4, 78.0, 78.1]


def test_heat_map_has_both_panels():
    figure = tables.heat_map(SQUARE, square())
    ours, theirs = figure.axes
    assert [text.get_text() for text in ours.texts] == ["98.0", "96.5", "99.2"]
    assert [text.get_text() for text in theirs.texts] == ["77.5", "77.4", "78.0", "78.1"]
    assert (ours.get_title(), theirs.get_title()) == ("here", "paper")
    assert (ours.get_xlabel(), ours.get_ylabel()) == ("τ", "λ")


def test_without_the_papers_values_there_is_one_panel():
    sweep = Sweep(title="t", base="", cells=(Cell("a"), Cell("b")), row_name="r")
    assert len(tables.heat_map(sweep, [Entry(cell, (1.0,)) for cell in sweep.cells]).axes) == 1


def test_files(tmp_path):
    empty = [Entry(cell, ()) for cell in SQUARE.cells]
    assert [path.name for path in tables.write(SQUARE, empty, tmp_path)] == [
        "table.csv",
        "table.md",
    ]
    names = {path.name for path in tables.write(SQUARE, square(), tmp_path)}
    assert names == {"table.csv", "table.md", "table.png", "table.svg"}
    assert names <= {path.name for path in tmp_path.iterdir()}
