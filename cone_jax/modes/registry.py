"""Modes by name, in the order in which ``--help`` lists them."""

from collections.abc import Callable
from typing import NamedTuple

from rich.console import Console

from cone_jax.modes import (
    analyze,
    compare,
    data,
    evaluate,
    export,
    predict,
    probe,
    report,
    robustness,
    sweep,
    train,
    transfer,
)
from cone_jax.modes.command_line import Arguments


class Mode(NamedTuple):
    """A function of the parsed arguments, and its line in ``--help``."""

    run: Callable[[Arguments, Console], None]
    help: str
    joint: bool = False  # whether several processes can share the work


MODES = {
    "train": Mode(train.train, "train a recipe, or go on with an interrupted run (default)", True),
    "preview": Mode(data.preview, "draw training samples of a recipe, or a run's batch of --step"),
    "prepare": Mode(data.prepare, "bring a recipe's TFDS data set into the form training reads"),
    "pack": Mode(data.pack, "pack a recipe's image folder into few large files, below --output"),
    "evaluate": Mode(evaluate.evaluate, "score a checkpoint of --workdir by --evaluators", True),
    "robustness": Mode(robustness.robustness, "a checkpoint on corrupted test pictures", True),
    "probe": Mode(
        probe.probe, "nearest neighbours and linear classifiers on frozen features", True
    ),
    "transfer": Mode(transfer.transfer, "fine-tune --config.init_from: configs/transfer.py:SET"),
    "export": Mode(export.export, "write a checkpoint of --workdir as --format, and check it"),
    "predict": Mode(predict.predict, "classify --images with --workdir, a run or an export"),
    "report": Mode(report.report, "write the report of --workdir, finished or not"),
    "analyze": Mode(analyze.analyze, "draw the paper's figures of --workdir, or of --workdirs"),
    "compare": Mode(compare.compare, "put --workdirs side by side: table and curves"),
    "sweep": Mode(sweep.sweep, "fill a table with runs: --sweep=configs/sweeps/FILE"),
}
