"""What a sweep is: a recipe, and the cells of a table, each with its own settings.

A file in `configs/sweeps/` defines ``get_sweep(options)``, which returns a `Sweep`.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from cone_jax import config as config_lib
from cone_jax import storage
from cone_jax.config import run_config
from cone_jax.errors import UserError
from cone_jax.workdir import flatten

# What TFDS calls the data of the paper's sweeps.
IMAGENET = "imagenet2012"


@dataclasses.dataclass(frozen=True)
class Axis:
    """One side of a grid: a config field and its values.

    >>> Axis("K", "bank.size", (256, 512)).items()
    [('256', 256), ('512', 512)]
    """

    name: str  # the heading in the table
    field: str  # the field's full name, such as bank.size
    values: tuple[Any, ...]  # one row or column for each
    labels: tuple[str, ...] = ()  # labels of the values; empty: the values themselves

    def items(self) -> list[tuple[str, Any]]:
        """Labels and values."""
        return list(zip(self.labels or map(str, self.values), self.values, strict=True))


@dataclasses.dataclass(frozen=True)
class Cell:
    """One place in the table.

    >>> cell_name(Cell("CE + head", options="cross_entropy,projection"))
    'CE-head'
    """

    row: str  # the label of its row
    column: str = ""  # the label of its column; empty in a table of one column
    options: str = ""  # options of the recipe, in addition to the sweep's
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # by full field name
    paper: float | None = None  # the paper's value, in the sweep's unit


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A table to fill.

    >>> sizes = Axis("K", "bank.size", (256, 512))
    >>> sweep = Sweep("Bank", base="configs/digits.py", cells=grid(sizes), row_name=sizes.name)
    >>> len(sweep.cells), sweep.metric
    (2, 'test/top1')
    """

    title: str  # the title of the table
    base: str  # a recipe and its options, as after --config=
    cells: tuple[Cell, ...]  # in reading order
    row_name: str  # what the rows vary
    column_name: str = ""  # what the columns vary
    metric: str = "test/top1"  # the metric of the finished runs to show
    factor: float = 100.0  # converts the metric to the table's unit
    unit: str = "test top-1, %"  # the unit, as the table names it
    paper_setting: str = ""  # the setting in which the paper's values were measured
    paper_data: str = ""  # the data for which the paper's values are shown; empty: any
    # Settings that make the recipe small enough for this sweep; ignored for a user's own recipe.
    size: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seeds: tuple[int, ...] = ()  # empty: the recipe's own
    mean_row: str = ""  # label of a last row with the mean of the others, for one column

    def __post_init__(self) -> None:
        places = [cell_name(cell) for cell in self.cells]
        if not {"", ".", ".."}.isdisjoint(places):  # directories below the sweep's
            raise UserError(f"sweep {self.title!r} has a cell without letters or digits; name it")
        twice = [place for place in places if places.count(place) > 1]
        if twice:
            raise UserError(f"sweep {self.title!r} has two cells {twice[0]!r}; name them apart")


def grid(rows: Axis, columns: Axis | None = None, *, options: str = "") -> tuple[Cell, ...]:
    """All combinations of the values of two axes, or the values of one, in reading order.

    Args:
        rows: one side of the table.
        columns: the other; None: a table of one column.
        options: the recipe's, in every cell.

    Returns:
        A cell for each combination.

    >>> cells = grid(Axis("N", "objective.cone.neighbours", (8, 16)))
    >>> cells[1].row, cells[1].settings
    ('16', {'objective.cone.neighbours': 16})
    """
    across = [("", None)] if columns is None else columns.items()
    cells = []
    for row, down in rows.items():
        for column, value in across:
            settings = {rows.field: down}
            if columns is not None:
                settings[columns.field] = value
            cells.append(Cell(row, column, options, settings))
    return tuple(cells)


def load_sweep(file: str) -> Sweep:
    """The sweep that ``get_sweep(options)`` of ``FILE:OPTIONS`` or ``NAME:OPTIONS`` returns.

    Args:
        file: as after ``--sweep=``.

    Returns:
        The table to fill.

    >>> load_sweep("momentum:digits").row_name
    'm'
    """
    path, _, options = file.partition(":")
    sweep = run_config.call(path, options, flag="--sweep", function="get_sweep", folder="sweeps")
    if not isinstance(sweep, Sweep):
        raise UserError(f"--sweep ({path}): get_sweep must return a cone_jax.sweeps.Sweep")
    return sweep


def beside(sweep: Sweep, config: ConfigDict) -> Sweep:
    """`sweep` for the data of `config`: without the paper's values if these are for other data."""
    if not sweep.paper_data or _holds(config.data, sweep.paper_data):
        return sweep
    cells = tuple(dataclasses.replace(cell, paper=None) for cell in sweep.cells)
    return dataclasses.replace(sweep, cells=cells, paper_setting="")


def _holds(data: ConfigDict, name: str) -> bool:
    """Whether a config's data are those that TFDS calls `name`; ImageNet may be a folder, too."""
    if data.source == "tfds":
        return re.split(r"[/:]", data.name)[0] == name
    if data.source != "image_folder" or name != IMAGENET or not data.path:
        return False
    train = storage.path(data.path, "data.path") / "train"
    folders = [path.name for path in train.iterdir()] if train.is_dir() else []
    return sum(re.fullmatch(r"n\d{8}", folder) is not None for folder in folders) == 1000


def base_config(sweep: Sweep) -> ConfigDict:
    """The sweep's own recipe, at the sweep's size.

    Args:
        sweep: of `load_sweep`.

    Returns:
        A config to change and give to `train`.

    >>> base_config(load_sweep("momentum:digits")).epochs
    8
    """
    return _recipe(sweep, sweep.base)


def overrides(sweep: Sweep, recipe: str, config: ConfigDict) -> dict[str, Any]:
    """The fields in which `config` differs from `recipe`: what the user set by hand."""
    before, now = (flatten(c) for c in (_recipe(sweep, recipe), config))
    return {field: value for field, value in now.items() if value != before.get(field)}


def cell_config(
    sweep: Sweep, cell: Cell, recipe: str, changes: Mapping[str, Any], seed: int | None
) -> ConfigDict:
    """The config of one run, checked; the cell's settings override the user's `changes`."""
    separator = "," if ":" in recipe else ":"
    config = _recipe(sweep, f"{recipe}{separator}{cell.options}" if cell.options else recipe)
    seeds = {} if seed is None else {"seed": seed}
    config = apply_settings(config, {**changes, **cell.settings, **seeds})
    config_lib.validate(config)
    return config


def _recipe(sweep: Sweep, named: str) -> ConfigDict:
    path, _, options = named.partition(":")
    base, _, base_options = sweep.base.partition(":")
    config = config_lib.load_recipe(path, options)
    own = run_config.find(path) == run_config.find(base) and options.startswith(base_options)
    return apply_settings(config, sweep.size) if own else config


def apply_settings(config: ConfigDict, settings: Mapping[str, Any]) -> ConfigDict:
    """A copy of `config` with some fields changed; `UserError` for one that cannot be."""
    changed = config.copy_and_resolve_references()
    for field, value in settings.items():
        try:
            changed.update_from_flattened_dict({field: value})
        except (KeyError, AttributeError, TypeError, ValueError) as error:
            raise UserError(f"sweep: {field} cannot be set to {value!r}: {error}") from error
    if "derive" not in settings:
        changed.derive = tuple(pair for pair in changed.derive if pair[0] not in settings)
    return changed


def cell_name(cell: Cell) -> str:
    """The directory of a cell.

    >>> cell_name(Cell("0.7", "0.1")), cell_name(Cell("CE + head"))
    ('0.7_0.1', 'CE-head')
    """
    parts = (re.sub(r"[^\w.]+", "-", part).strip("-") for part in (cell.row, cell.column) if part)
    return "_".join(parts)
