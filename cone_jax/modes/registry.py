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
    "train": Mode(train.train, "train a recipe, or continue an interrupted run (default)", True),
    "preview": Mode(data.preview, "draw training samples as the network sees them"),
    "check": Mode(
        data.check, "look for damaged pictures, duplicates and other problems in the data"
    ),
    "prepare": Mode(data.prepare, "convert a TFDS data set to the form that training reads"),
    "pack": Mode(data.pack, "pack a folder of images into a few large files below --output"),
    "compile": Mode(
        compile.compile_run,
        "ask the compiler of a TPU or GPU what a recipe needs, without having one",
    ),
    "evaluate": Mode(
        evaluate.evaluate, "measure accuracy and more on a checkpoint of --workdir", True
    ),
    "label_errors": Mode(
        label_errors.find_label_errors,
        "find labels that are probably wrong, worst first, on a page to correct them",
    ),
    "robustness": Mode(
        robustness.robustness,
        "test a checkpoint on blurred, noisy and otherwise corrupted pictures",
        True,
    ),
    "probe": Mode(
        probe.probe, "measure frozen features with nearest neighbours and linear classifiers", True
    ),
    "transfer": Mode(
        transfer.transfer, "fine-tune --config.init_from on another data set, with a grid search"
    ),
    "weights": Mode(weights.weights, "list published weights; --model=PART searches"),
    "export": Mode(export.export, "write a checkpoint as --format, or upload it with --push"),
    "predict": Mode(predict.predict, "classify --images, or find objects on them"),
    "serve": Mode(serve.serve, "open a local web page: drop a picture, see its classes"),
    "report": Mode(report.report, "write the report of a run, finished or not"),
    "analyze": Mode(analyze.analyze, "draw the paper's figures for one run or several"),
    "compare": Mode(compare.compare, "compare --workdirs in a table and in curves"),
    "sweep": Mode(sweep.sweep, "train the runs of --sweep and fill a table with their results"),
}
