"""``--mode=check``, ``prepare``, ``pack`` and ``preview``: data sets before training."""

from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from cone_jax.analysis import check_files
from cone_jax.console import plain_lines
from cone_jax.data import contact_sheet as previews
from cone_jax.data import datasets, inspection, packing, preparation
from cone_jax.errors import UserError
from cone_jax.modes.command_line import FLAGS, Arguments
from cone_jax.training.run_directory import RunDirectory

_SHOWN_FINDINGS, _SHOWN_CLASSES = 20, 50


def check(arguments: Arguments, console: Console) -> None:
    """Looks at every picture; prints what was found, writes ``check.csv`` and ``check.html``."""
    data, say = arguments.config.data, plain_lines(console)
    data.cache_bytes = 0  # files as they are, not pixels
    dataset = datasets.open_dataset(data)
    root = str(Path(data.path).expanduser()) if data.source == "image_folder" else ""
    found = inspection.inspect(dataset, data.image_size, root=root, threads=data.threads)
    say(
        f"{len(dataset.train):,} pictures to train on, {len(dataset.test):,} to test on, "
        f"{dataset.num_classes} classes"
    )
    for heading, rows in (
        (("class", "train", "test"), _class_rows(found)),
        (("problem", "times", "what it means"), check_files.summary(found)),
    ):
        table = Table(*heading, box=box.SIMPLE)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for finding in found.findings[:_SHOWN_FINDINGS]:
        say(f"{finding.problem}: {finding.path}: {finding.detail}")
    if len(found.findings) > _SHOWN_FINDINGS:
        say(f"... and {len(found.findings) - _SHOWN_FINDINGS} more")
    for path in check_files.write(found, dataset, arguments.workdir):
        say(f"written: {path}")


def _class_rows(found: inspection.Inspection) -> list[tuple[str, str, str]]:
    train, test = found.counts["train"], found.counts["test"]
    rows = [
        (name, f"{train[label]:,}", f"{test[label]:,}")
        for label, name in enumerate(found.class_names)
    ]
    left_out = len(rows) - _SHOWN_CLASSES
    return rows if left_out <= 0 else [*rows[:_SHOWN_CLASSES], (f"and {left_out} more", "", "")]


def prepare(arguments: Arguments, console: Console) -> None:
    """Brings the TFDS set of a recipe into the form that training reads."""
    data = arguments.config.data
    if data.source != "tfds":
        raise UserError(f"--mode=prepare is for TFDS; data.source ({data.source!r}) must be 'tfds'")
    preparation.prepare(data.name, data.path, report=plain_lines(console))


def pack(arguments: Arguments, console: Console) -> None:
    """Packs the image folder of a recipe into ArrayRecord files below --output."""
    data = arguments.config.data
    if data.source != "image_folder":
        raise UserError(
            f"--mode=pack is for image folders; data.source ({data.source!r}) must be "
            "'image_folder'"
        )
    output = arguments.output
    if output is None:
        raise UserError("--mode=pack needs --output, the folder to write to")
    packing.pack_folder(
        data.path,
        str(output),
        holdout=data.holdout,
        holdout_seed=data.holdout_seed,
        threads=data.threads,
        report=plain_lines(console),
    )


def preview(arguments: Arguments, console: Console) -> None:
    """Draws the first training samples as the network will see them.

    With --step it draws the very batch that a run took, or will take, in that step.
    """
    say, step = plain_lines(console), arguments.flags["step"]
    if step == FLAGS["step"][0]:
        path = arguments.output or arguments.workdir / "preview.png"
        written = previews.write_training_samples(arguments.config, path)
        train = datasets.open_split(arguments.config.data, arguments.config.data.train_split)
        previews.say_missing_characters(train.class_names, say)
        say(f"written: {written} (augmented training samples with their classes)")
        return
    run = RunDirectory.open(arguments.workdir).run
    if not (step.isdecimal() and 1 <= int(step) <= run.total_steps):
        raise UserError(f"--step ({step!r}) must be one of the run's steps, 1 to {run.total_steps}")
    batch = run.host_batch(int(step))
    path = arguments.output or arguments.workdir / f"batch_{int(step)}.png"
    images, names = previews.labelled(batch, run.dataset.class_names)
    if "label" in batch:
        names = [f"{record} {name}" for record, name in zip(batch["id"], names, strict=True)]
    written = previews.write(path, images, names)
    say(f"written: {written} (the batch of step {int(step)}, records and classes)")
