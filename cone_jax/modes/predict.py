"""``--mode=predict``: the classes of pictures, by a run or an export."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.console import Console

from cone_jax import prediction
from cone_jax.console import plain_lines
from cone_jax.errors import UserError
from cone_jax.modes.command_line import Arguments
from cone_jax.prediction import Prediction

WRITERS = {".csv": prediction.write_csv, ".jsonl": prediction.write_jsonl}


def predict(arguments: Arguments, console: Console) -> None:
    """Prints the five most probable classes of every picture, and writes them to a file."""
    images = prediction.find_images(filter(None, arguments.flags["images"].split(",")))
    if not images:
        raise UserError("--images is empty; give files or folders, joined by commas")
    output = Path(arguments.flags["output"] or arguments.workdir / "predictions.csv").expanduser()
    if output.suffix not in WRITERS:
        raise UserError(f"--output ({output}) must end in {' or '.join(WRITERS)}")
    predictor = prediction.open_model(arguments.workdir, step=arguments.flags["step"])
    WRITERS[output.suffix](output, _print_each(predictor(images), console))
    plain_lines(console)(f"written: {output}")


def _print_each(predictions: Iterable[Prediction], console: Console) -> Iterator[Prediction]:
    say = plain_lines(console)
    any_read, last = False, None
    for result in predictions:
        ranked = zip(result.classes, result.probabilities, strict=True)
        listing = ", ".join(f"{name} {probability:.1%}" for name, probability in ranked)
        text = listing or f"cannot be read: {result.error}"
        say(f"{result.path}: {text}")
        any_read, last = any_read or not result.error, result
        yield result
    if last is not None and not any_read:
        raise UserError(
            f"--images: none of the pictures can be read, such as {last.path} "
            f"({last.error}); give JPEG, PNG, WebP or BMP files"
        )
