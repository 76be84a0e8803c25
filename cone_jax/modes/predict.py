"""``--mode=predict``: the classes of pictures, by a run or an export."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from rich.console import Console

from cone_jax import prediction, storage
from cone_jax.console import Report, plain_lines
from cone_jax.errors import UserError
from cone_jax.interop import exported_detector
from cone_jax.modes.command_line import Arguments
from cone_jax.prediction import Prediction
from cone_jax.training import named_network
from cone_jax.training.run_directory import RunDirectory
from cone_jax.workdir import CONFIG_FILE

WRITERS = {".csv": prediction.write_csv, ".jsonl": prediction.write_jsonl}


def predict(arguments: Arguments, console: Console) -> None:
    """Prints the five most probable classes of every picture, and writes them to a file."""
    images = prediction.find_images(filter(None, arguments.flags["images"].split(",")))
    if not images:
        raise UserError("--images is empty; give files or folders, joined by commas")
    model = arguments.flags["model"]
    if not model and (
        exported_detector.is_detector(arguments.workdir) or _is_detector(arguments.workdir)
    ):
        _find_objects(arguments, images, console)
        return
    # Without a run there is no directory that predictions belong to.
    default = storage.path("predictions.csv") if model else arguments.workdir / "predictions.csv"
    output = arguments.output or default
    if output.suffix not in WRITERS:
        raise UserError(f"--output ({output}) must end in {' or '.join(WRITERS)}")
    if model:
        config = arguments.config
        predictor = prediction.open_published(
            model,
            plain_lines(console),
            named_network.options_of(config),
            named_network.pictures_of(config, arguments.recipe),
        )
    else:
        predictor = prediction.open_model(arguments.workdir, step=arguments.flags["step"])
    WRITERS[output.suffix](output, _print_each(predictor(images), console))
    plain_lines(console)(f"written: {output}")


def _is_detector(workdir: Path) -> bool:
    return (workdir / CONFIG_FILE).exists() and RunDirectory.open(workdir).has_objects


def _find_objects(arguments: Arguments, images: list[Path], console: Console) -> None:
    """Draws boxes and masks, and writes COCO's result JSON."""
    output = arguments.output or arguments.workdir / "detections.json"
    if output.suffix != ".json":
        raise UserError(f"--output ({output}) must end in .json for a detector")
    finder = _finder(arguments)
    say = plain_lines(console)
    lines = list(map(_said(say), prediction.write_detections(finder, finder(images), output)))
    if lines and all("cannot be read" in line for line in lines):
        raise UserError(
            f"--images: none of the pictures can be read, such as {images[-1]}; give JPEG, PNG, "
            "WebP or BMP files"
        )
    say(f"written: {output}")


def _finder(arguments: Arguments) -> prediction.ObjectFinder:
    """The detector of a run or of an export; an export's classes count from 1."""
    if exported_detector.is_detector(arguments.workdir):
        return prediction.ObjectFinder(exported_detector.load(arguments.workdir))
    directory = RunDirectory.open(arguments.workdir)
    try:
        category_ids = getattr(directory.dataset.train, "category_ids", None)
    except UserError:  # the data are gone: classes count from 1
        category_ids = None
    return prediction.ObjectFinder(directory.deployed(arguments.flags["step"]), category_ids)


def _said(say: Report) -> Callable[[str], str]:
    def say_and_keep(line: str) -> str:
        say(line)
        return line

    return say_and_keep


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
