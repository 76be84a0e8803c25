"""Modes by name, in the order in which ``--help`` lists them."""

from collections.abc import Callable
from typing import NamedTuple

from rich.console import Console

from cone_jax.command_line import Arguments
from cone_jax.modes import analyze, compare, data, evaluate, export, predict, report, sweep, train


class Mode(NamedTuple):
    """A function of the parsed arguments, and its line in ``--help``."""

    run: Callable[[Arguments, Console], None]
    help: str


MODES = {
    "train": Mode(train.train, "train a recipe, or go on with an interrupted run (default)"),
    "preview": Mode(data.preview, "draw augmented training samples of a recipe as one PNG"),
    "prepare": Mode(data.prepare, "bring a recipe's TFDS data set into the form training reads"),
    "pack": Mode(data.pack, "pack a recipe's image folder into few large files, below --output"),
    "evaluate": Mode(evaluate.evaluate, "score a checkpoint of --workdir on its test split"),
    "export": Mode(export.export, "write a checkpoint of --workdir as --format, and check it"),
    "predict": Mode(predict.predict, "classify --images with --workdir, a run or an export"),
    "report": Mode(report.report, "write the report of --workdir, finished or not"),
    "analyze": Mode(analyze.analyze, "draw the paper's figures of --workdir, or of --workdirs"),
    "compare": Mode(compare.compare, "put --workdirs side by side: table and curves"),
    "sweep": Mode(sweep.sweep, "fill a table with runs: --sweep=configs/sweeps/FILE"),
}
