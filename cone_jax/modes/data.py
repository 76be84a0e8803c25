"""``--mode=prepare``, ``pack`` and ``preview``: data sets before training."""

from pathlib import Path

from rich.console import Console

from cone_jax.console import plain_lines
from cone_jax.data import contact_sheet as previews
from cone_jax.data import packing, preparation
from cone_jax.errors import UserError
from cone_jax.modes.command_line import FLAGS, Arguments
from cone_jax.training.run_directory import RunDirectory


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
    output = arguments.flags["output"]
    if not output:
        raise UserError("--mode=pack needs --output, the folder to write to")
    packing.pack_folder(
        data.path,
        output,
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
        path = Path(arguments.flags["output"] or arguments.workdir / "preview.png")
        written = previews.write_training_samples(arguments.config, path)
        say(f"written: {written} (augmented training samples with their classes)")
        return
    run = RunDirectory.open(arguments.workdir).run
    if not (step.isdecimal() and 1 <= int(step) <= run.total_steps):
        raise UserError(f"--step ({step!r}) must be one of the run's steps, 1 to {run.total_steps}")
    batch = run.host_batch(int(step))
    path = Path(arguments.flags["output"] or arguments.workdir / f"batch_{int(step)}.png")
    names = run.dataset.class_names
    captions = [
        f"{record} {names[label]}"
        for record, label in zip(batch["id"], batch["label"], strict=True)
    ]
    written = previews.write(path, batch["image"], captions)
    say(f"written: {written} (the batch of step {int(step)}, records and classes)")
