"""Picture files to predict, and files of predictions."""

import csv
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from cone_jax import storage
from cone_jax.data.sources.image_folder import EXTENSIONS
from cone_jax.errors import UserError
from cone_jax.evaluation.detection import SHOWN_SCORE
from cone_jax.prediction.detections import FoundObjects, ObjectFinder
from cone_jax.prediction.predictor import Prediction


def find_images(paths: Iterable[Path | str]) -> list[Path]:
    """The picture files among `paths` and, sorted, below those of them that are folders.

    Args:
        paths: files and folders; one that does not exist is a `UserError`.

    Returns:
        Files, in the order of `paths`.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("b.png", "a.jpg", "notes.txt"):
    ...     (folder / name).touch()
    >>> [path.name for path in find_images([folder])]
    ['a.jpg', 'b.png']
    """
    found: list[Path] = []
    for path in (storage.path(given, "--images") for given in paths):
        if path.is_dir():
            below = [file for file in sorted(path.rglob("*")) if _is_picture(file, path)]
            if not below:
                raise UserError(f"--images ({path}) holds no {', '.join(EXTENSIONS)} file")
            found += below
        elif path.is_file():
            found.append(path)
        else:
            raise UserError(f"--images ({path}) does not exist; give files or folders")
    return found


def _is_picture(file: Path, folder: Path) -> bool:
    """As in the image folders to train on: by extension, and not hidden."""
    hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
    return file.suffix.lower() in EXTENSIONS and not hidden


def write_csv(path: Path, predictions: Iterable[Prediction]) -> None:
    """One row per picture: its path, then class and probability from the best down, then errors.

    Args:
        path: the file to write.
        predictions: what a `Predictor` gives.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "birds.csv")
    >>> write_csv(file, [Prediction(Path("a.jpg"), ("owl", "tit"), (0.9, 0.1))])
    >>> print(file.read_text().splitlines()[1])
    a.jpg,owl,0.9,tit,0.1,
    """
    rows = list(predictions)
    top = max((len(row.classes) for row in rows), default=0)
    ranks = [(f"class_{rank}", f"probability_{rank}") for rank in range(1, top + 1)]
    nothing: list[tuple[Any, Any]] = [("", "")] * top
    with (
        storage.replacing(path) as unfinished,
        # Paths are written byte for byte, also those that are not text.
        unfinished.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(["path", *itertools.chain(*ranks), "error"])
        for row in rows:
            pairs = list(zip(row.classes, row.probabilities, strict=True))
            writer.writerow([row.path, *itertools.chain(*(pairs or nothing)), row.error])


def write_jsonl(path: Path, predictions: Iterable[Prediction]) -> None:
    """One object per line with the fields of `Prediction`.

    Args:
        path: the file to write.
        predictions: what a `Predictor` gives.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "birds.jsonl")
    >>> write_jsonl(file, [Prediction(Path("a.jpg"), ("owl",), (1.0,))])
    >>> print(file.read_text().strip())
    {"path": "a.jpg", "classes": ["owl"], "probabilities": [1.0], "error": ""}
    """
    with storage.replacing(path) as unfinished, unfinished.open("w") as file:
        for row in predictions:
            file.write(json.dumps({**row._asdict(), "path": str(row.path)}) + "\n")


def write_detections(
    finder: ObjectFinder, found: Iterable[FoundObjects], output: Path
) -> Iterator[str]:
    """Writes `output`, COCO's result JSON, and the drawn pictures below a folder of its name.

    ``<output>.images.json`` says which file belongs to an image_id, and what the category ids mean.

        finder = prediction.ObjectFinder(network)
        for line in prediction.write_detections(finder, finder(["street.jpg"]), Path("found.json")):
            print(line)

    Args:
        finder: the detector, which draws.
        found: what it found.
        output: the JSON file.

    Yields:
        A line for each picture, as it is written.
    """
    folder = output.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    entries: list[dict[str, Any]] = []
    images: list[dict[str, Any]] = []
    for number, each in enumerate(found, 1):
        images.append({"id": number, "file_name": str(each.path), "error": each.error})
        if each.error:
            yield f"{each.path}: cannot be read: {each.error}"
            continue
        entries += each.entries
        drawn = folder / f"{number:05}_{each.path.stem}.png"
        with storage.replacing(drawn) as unfinished:
            Image.fromarray(finder.drawn(each)).save(unfinished, "PNG")
        shown = sum(entry["score"] >= SHOWN_SCORE for entry in each.entries)
        yield f"{each.path}: objects: {shown} of {len(each.entries)} candidates, drawn: {drawn}"
    categories = [
        {"id": int(key), "name": name}
        for key, name in zip(finder.category_ids, finder.class_names, strict=True)
    ]
    described = {"images": images, "categories": categories}
    for path, content in ((output, entries), (output.with_suffix(".images.json"), described)):
        with storage.replacing(path) as unfinished:
            unfinished.write_text(json.dumps(content) + "\n")
