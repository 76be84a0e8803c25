"""Picture files to predict, and files of predictions."""

import csv
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cone_jax import atomic_file
from cone_jax.data.sources.image_folder import EXTENSIONS
from cone_jax.errors import UserError
from cone_jax.prediction.predictor import Prediction


def find_images(paths: Iterable[Path | str]) -> list[Path]:
    """The picture files among `paths` and, sorted, below those of them that are folders."""
    found: list[Path] = []
    for path in map(Path, paths):
        path = path.expanduser()
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
    """One row a picture: its path, then class and probability from the best down, then errors."""
    rows = list(predictions)
    top = max((len(row.classes) for row in rows), default=0)
    ranks = [(f"class_{rank}", f"probability_{rank}") for rank in range(1, top + 1)]
    nothing: list[tuple[Any, Any]] = [("", "")] * top
    with (
        atomic_file.replacing(path) as unfinished,
        # Paths are written byte for byte, also those that are no text.
        unfinished.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(["path", *itertools.chain(*ranks), "error"])
        for row in rows:
            pairs = list(zip(row.classes, row.probabilities, strict=True))
            writer.writerow([row.path, *itertools.chain(*(pairs or nothing)), row.error])


def write_jsonl(path: Path, predictions: Iterable[Prediction]) -> None:
    """One object a line with the fields of `Prediction`."""
    with atomic_file.replacing(path) as unfinished, unfinished.open("w") as file:
        for row in predictions:
            file.write(json.dumps({**row._asdict(), "path": str(row.path)}) + "\n")
