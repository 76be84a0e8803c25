"""All that a report shows of a network and its data at one checkpoint, kept in a file.

It is stored in the run's directory, so that a report can be written again when the data set is
gone, and comes out the same. Pictures are not in it, only the records they are.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cone_jax import atomic_file
from cone_jax.analysis.neighbourhoods import NeighbourSheet, PullSheet

DIRECTORY = "analysis"


class ClassesMap(NamedTuple):
    """Test pictures of up to ten classes."""

    points: np.ndarray  # [n, 2]
    labels: np.ndarray  # [n]


class OneClassMap(NamedTuple):
    """Training pictures of one class."""

    points: np.ndarray  # [n, 2]
    correct: np.ndarray  # [n], whether the network gets the picture right
    label: np.ndarray  # [], the class


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """What one checkpoint does; None for what its objective does not have."""

    step: int
    class_names: tuple[str, ...]
    versions: dict[str, str]
    labels: np.ndarray  # of the test pictures that could be read
    predictions: np.ndarray
    classes_map: ClassesMap | None = None
    one_class_map: OneClassMap | None = None
    neighbours: NeighbourSheet | None = None
    pulls: PullSheet | None = None

    def save(self, directory: Path) -> Path:
        """Writes it below the run's `directory`."""
        path = _path(directory, self.step)
        about = {"class_names": self.class_names, "versions": self.versions}
        arrays = {"about": np.array(json.dumps(about))}
        arrays |= {"labels": self.labels, "predictions": self.predictions}
        for name in _PARTS:
            part = getattr(self, name)
            if part is not None:
                arrays |= {f"{name}.{field}": value for field, value in part._asdict().items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file.replacing(path) as unfinished, unfinished.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
        return path

    @classmethod
    def load(cls, directory: Path, step: int) -> "Snapshot | None":
        """The stored snapshot of a step; None where there is none."""
        path = _path(directory, step)
        if not path.exists():
            return None
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        about = json.loads(str(arrays.pop("about")))
        parts: dict[str, Any] = {}
        for name, kind in _PARTS.items():
            if f"{name}.{kind._fields[0]}" in arrays:
                parts[name] = kind(*(arrays[f"{name}.{field}"] for field in kind._fields))
        return cls(
            step=step,
            class_names=tuple(about["class_names"]),
            versions=about["versions"],
            labels=arrays["labels"],
            predictions=arrays["predictions"],
            **parts,
        )


_PARTS: dict[str, Any] = {
    "classes_map": ClassesMap,
    "one_class_map": OneClassMap,
    "neighbours": NeighbourSheet,
    "pulls": PullSheet,
}


def _path(directory: Path, step: int) -> Path:
    return directory / DIRECTORY / f"snapshot-{step}.npz"
