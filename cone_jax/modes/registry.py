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
    """A function of the parsed arguments, and what ``--help`` says about it."""

    run: Callable[[Arguments, Console], None]
    help: str
    example: str  # the flags of a command
    page: str  # of the documentation
    flags: tuple[str, ...] = ()  # those it reads, beside --config and --workdir
    joint: bool = False  # whether several processes can share the work


MODES = {
    "train": Mode(
        train.train,
        "train a recipe, or continue an interrupted run (default)",
        "--config=digits --workdir=runs/digits",
        "docs/quick_start.md",
        joint=True,
    ),
    "preview": Mode(
        data.preview,
        "draw training samples as the network sees them",
        "--config=folder --config.data.path=photos --workdir=runs/photos",
        "docs/data.md",
        ("output", "step"),
    ),
    "check": Mode(
        data.check,
        "look for damaged pictures, duplicates and other problems in the data",
        "--config=folder --config.data.path=photos",
        "docs/own_images.md",
    ),
    "prepare": Mode(
        data.prepare,
        "convert a TFDS data set to the form that training reads",
        "--config=cifar:100 --config.data.path=tensorflow_datasets",
        "docs/data.md",
    ),
    "pack": Mode(
        data.pack,
        "pack a folder of images into a few large files below --output",
        "--config=folder --config.data.path=photos --output=photos-packed",
        "docs/data.md",
        ("output",),
    ),
    "compile": Mode(
        compile.compile_run,
        "ask the compiler of a TPU or GPU what a recipe needs, without having one",
        "--config=imagenet --topology=v5e:4x4 --train_images=1281167",
        "docs/compile.md",
        ("topology", "slices", "train_images", "cures"),
    ),
    "evaluate": Mode(
        evaluate.evaluate,
        "measure the accuracy and more of a checkpoint of --workdir",
        "--workdir=runs/digits --step=best",
        "docs/evaluation.md",
        ("step", "evaluators", "model"),
        joint=True,
    ),
    "label_errors": Mode(
        label_errors.find_label_errors,
        "find labels that are probably wrong, worst first, on a page to correct them",
        "--workdir=runs/photos",
        "docs/own_images.md",
        ("step", "folds"),
    ),
    "robustness": Mode(
        robustness.robustness,
        "test a checkpoint on blurred, noisy and otherwise corrupted pictures",
        "--workdir=runs/photos",
        "docs/evaluation.md",
        ("step", "corrupted", "baseline", "frost", "model"),
        joint=True,
    ),
    "probe": Mode(
        probe.probe,
        "judge frozen features by nearest neighbours and linear classifiers",
        "--workdir=runs/digits",
        "docs/evaluation.md",
        ("step", "output"),
        joint=True,
    ),
    "transfer": Mode(
        transfer.transfer,
        "fine-tune --config.init_from on another data set, with a grid search",
        "--config=transfer:pets --config.init_from=runs/imagenet",
        "docs/evaluation.md",
        ("step", "jobs", "workdirs"),
    ),
    "weights": Mode(
        weights.weights,
        "list published weights; --model=PART searches",
        "--model=resnet50",
        "docs/weights.md",
        ("model",),
    ),
    "export": Mode(
        export.export,
        "write a checkpoint as --format, or upload it with --push",
        "--workdir=runs/digits --format=onnx",
        "docs/models.md",
        ("step", "model", "format", "push", "license", "yes", "output"),
    ),
    "predict": Mode(
        predict.predict,
        "classify --images, or find objects on them",
        "--workdir=runs/digits --images=photos/",
        "docs/own_images.md",
        ("step", "model", "images", "output"),
    ),
    "serve": Mode(
        serve.serve,
        "open a local web page: drop a picture, see its classes",
        "--workdir=runs/photos",
        "docs/own_images.md",
        ("step", "address"),
    ),
    "report": Mode(
        report.report,
        "write the report of a run, finished or not",
        "--workdir=runs/digits",
        "docs/report.md",
        ("step",),
    ),
    "analyze": Mode(
        analyze.analyze,
        "draw the paper's figures for one run or several",
        "--workdirs=runs/a,runs/b",
        "docs/report.md",
        ("step", "workdirs"),
    ),
    "compare": Mode(
        compare.compare,
        "compare --workdirs in a table and in curves",
        "--workdirs=runs/a,runs/b",
        "docs/report.md",
        ("workdirs",),
    ),
    "sweep": Mode(
        sweep.sweep,
        "train the runs of --sweep and fill a table with their results",
        "--sweep=momentum:digits --jobs=2",
        "docs/report.md",
        ("sweep", "jobs"),
    ),
}
