"""Modes by name, in the order in which ``--help`` lists them."""

from collections.abc import Callable
from typing import NamedTuple

from rich.console import Console

from cone_jax.modes import (
    analyze,
    compare,
    compile,
    data,
    evaluate,
    export,
    label_errors,
    predict,
    probe,
    report,
    robustness,
    serve,
    sweep,
    train,
    transfer,
    weights,
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
    "check": Mode(data.check, "look at every picture of a recipe's data set for problems"),
    "prepare": Mode(data.prepare, "bring a recipe's TFDS data set into the form training reads"),
    "pack": Mode(data.pack, "pack a recipe's image folder into few large files, below --output"),
    "compile": Mode(
        compile.compile_run, "what --topology's compiler says of a recipe, without one"
    ),
    "evaluate": Mode(evaluate.evaluate, "score a checkpoint of --workdir by --evaluators", True),
    "label_errors": Mode(
        label_errors.find_label_errors, "rank the labels of --workdir's data by doubt: a page"
    ),
    "robustness": Mode(robustness.robustness, "a checkpoint on corrupted test pictures", True),
    "probe": Mode(
        probe.probe, "nearest neighbours and linear classifiers on frozen features", True
    ),
    "transfer": Mode(transfer.transfer, "fine-tune --config.init_from: configs/transfer.py:SET"),
    "weights": Mode(weights.weights, "list published weights; --model=PART searches"),
    "export": Mode(export.export, "write a checkpoint of --workdir as --format, or --push it"),
    "predict": Mode(predict.predict, "classify --images with --workdir (run, export) or --model"),
    "serve": Mode(serve.serve, "a local web page for --workdir: drop a picture, see its classes"),
    "report": Mode(report.report, "write the report of --workdir, finished or not"),
    "analyze": Mode(analyze.analyze, "draw the paper's figures of --workdir, or of --workdirs"),
    "compare": Mode(compare.compare, "put --workdirs side by side: table and curves"),
    "sweep": Mode(sweep.sweep, "fill a table with runs: --sweep=configs/sweeps/FILE"),
}
