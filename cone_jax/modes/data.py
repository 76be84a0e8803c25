"""``--mode=prepare``, ``pack`` and ``preview``: data sets before training."""

from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from cone_jax.command_line import Arguments
from cone_jax.data import packing, preparation
from cone_jax.data import preview as previews
from cone_jax.errors import UserError


def prepare(arguments: Arguments, console: Console) -> None:
    """Brings the TFDS set of a recipe into the form that training reads."""
    data = arguments.config.data
    if data.source != "tfds":
        raise UserError(f"--mode=prepare is for TFDS; data.source is {data.source!r}")
    preparation.prepare(data.name, data.path, report=_reporter(console))


def pack(arguments: Arguments, console: Console) -> None:
    """Packs the image folder of a recipe into ArrayRecord files below --output."""
    data = arguments.config.data
    if data.source != "image_folder":
        raise UserError(f"--mode=pack is for image folders; data.source is {data.source!r}")
    output = arguments.flags["output"]
    if not output:
        raise UserError("--mode=pack needs --output, the folder to write to")
    packing.pack_folder(
        data.path,
        output,
        holdout=data.holdout,
        holdout_seed=data.holdout_seed,
        threads=data.threads,
        report=_reporter(console),
    )


def preview(arguments: Arguments, console: Console) -> None:
    """Draws the first training samples as the network will see them."""
    path = Path(arguments.flags["output"] or arguments.workdir / "preview.png")
    written = previews.write_training_samples(arguments.config, path)
    _reporter(console)(f"augmented training samples with their classes: {written}")


def _reporter(console: Console) -> Callable[[str], None]:
    return lambda line: console.print(line, soft_wrap=True, markup=False)
