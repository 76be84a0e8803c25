"""What the sweeps and ablations of the paper have in common: their recipe, in two sizes."""

import dataclasses
import re

from cone_jax.analysis.paper_comparison import read_paper
from cone_jax.errors import UserError
from cone_jax.sweeps import definition
from cone_jax.sweeps.definition import Axis, Cell, Sweep, grid

IMAGENET = "configs/imagenet.py:resnet50,100ep"
DIGITS = "configs/digits.py"
# Small enough that the largest table fills in minutes on two CPU cores.
DIGITS_SIZE = {
    "epochs": 8,
    "model.options.width": 16,
    "model.head_hidden": 128,
    "model.predictor_hidden": 128,
    "evaluation.every_epochs": 0.0,
    "checkpoint.every_epochs": 0.0,
    "linear_stage.epochs": 8,
    "linear_stage.batch_size": 128,
}
PAPER_SETTING = "ResNet-50 on ImageNet, 100 epochs, as arXiv 2308.10761 reports them"


def paper_sweep(
    options: str,
    *,
    title: str,
    table: str,
    cells: tuple[Cell, ...],
    row_name: str,
    column_name: str = "",
    digits_cells: tuple[Cell, ...] | None = None,
) -> Sweep:
    """A table of the paper, on ImageNet or, with the option ``digits``, on digits.

    Args:
        options: what follows the colon: ``digits``, and ``3seeds``, which trains each cell three
            times.
        title: above the table.
        table: its name in docs/results/paper.csv, which has the paper's values in the order of the
            cells; beside other data than ImageNet they are not shown.
        cells: the places of the table.
        row_name: what the rows vary.
        column_name: what the columns vary.
        digits_cells: replace `cells` on digits, if their settings make no sense there.

    Returns:
        The table to fill.

    >>> rows = ("0.98", "0.99", "0.996", "0.999")
    >>> cells = tuple(Cell(m, settings={"ema.momentum": float(m)}) for m in rows)
    >>> sweep = paper_sweep("", title="m", table="momentum", cells=cells, row_name="m")
    >>> sweep.cells[2].paper
    78.7
    """
    digits, seeds = read_options(options)
    if digits and digits_cells is not None:
        cells = digits_cells
    values = [float(row.value) for row in read_paper() if row.table == table]
    cells = tuple(
        dataclasses.replace(cell, paper=value) for cell, value in zip(cells, values, strict=True)
    )
    return Sweep(
        title=f"{title} (digits)" if digits else title,
        base=DIGITS if digits else IMAGENET,
        size=DIGITS_SIZE if digits else {},
        cells=cells,
        row_name=row_name,
        column_name=column_name,
        paper_setting=PAPER_SETTING,
        paper_data=definition.IMAGENET,
        seeds=seeds,
    )


def paper_grid(
    options: str,
    title: str,
    table: str,
    rows: Axis,
    columns: Axis | None = None,
    *,
    digits_rows: Axis | None = None,
    recipe_options: str = "",
) -> Sweep:
    """A table of the paper in which one or two fields take several values.

    Args:
        options: what follows the colon, as for `paper_sweep`.
        title: above the table.
        table: its name in docs/results/paper.csv.
        rows: one side of the grid.
        columns: the other; None: a table of one column.
        digits_rows: replace `rows` on digits.
        recipe_options: options of the recipe, in every cell.

    Returns:
        The table to fill.

    >>> momenta = Axis("m", "ema.momentum", (0.98, 0.99, 0.996, 0.999))
    >>> [cell.paper for cell in paper_grid("", "Momentum", "momentum", momenta).cells]
    [78.5, 78.6, 78.7, 78.5]
    """
    return paper_sweep(
        options,
        title=title,
        table=table,
        cells=grid(rows, columns, options=recipe_options),
        row_name=rows.name,
        column_name=columns.name if columns else "",
        digits_cells=grid(digits_rows, columns, options=recipe_options) if digits_rows else None,
    )


def read_options(options: str) -> tuple[bool, tuple[int, ...]]:
    """What follows the colon: ``digits`` for the small variant, ``3seeds``; both or neither.

    >>> read_options("digits,3seeds"), read_options("")
    ((True, (0, 1, 2)), (False, ()))
    """
    digits = False
    seeds: tuple[int, ...] = ()
    for option in filter(None, (part.strip() for part in options.split(","))):
        counted = re.fullmatch(r"([1-9]\d*)seeds", option)
        if counted:
            seeds = tuple(range(int(counted[1])))
        elif option == "digits":
            digits = True
        else:
            raise UserError(f"sweep option ({option!r}) is unknown; there are digits and 3seeds")
    return digits, seeds
