"""Everything a report shows about a network and its data at one checkpoint, kept in a file.

`take` runs the network on its data once. The results are stored in the run's directory, so that
the same report can be written again when the data set is gone. Pictures are not stored, only the
numbers of their records.
"""

import dataclasses
import json
import platform
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import cone_jax
from cone_jax import memory_bank, storage
from cone_jax.analysis import neighbourhoods
from cone_jax.analysis.embedding_map import FEWEST, embedding_map, spread_classes
from cone_jax.analysis.neighbourhoods import NeighbourSheet, NetworkAndBank, PullSheet
from cone_jax.data.datasets import test_pictures
from cone_jax.data.decode import DamagedImage
from cone_jax.data.sources import Source

DIRECTORY = "analysis"

# A map of more points takes longer than a report should, and shows no more.
_MAP_POINTS_A_CLASS, _ONE_CLASS_POINTS = 50, 300
# Training records looked at in search of one class; a source cannot be asked for a class.
_SEARCHED = 3000
_SHOWN_QUERIES = 4
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "pillow")


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
    """The results of one checkpoint; None for whatever its objective does not have."""

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
        with storage.replacing(path) as unfinished, unfinished.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
        return path

    @classmethod
    def load(cls, directory: Path, step: int) -> "Snapshot | None":
        """The stored snapshot of a step; None where there is none."""
        path = _path(directory, step)
        if not path.exists():
            return None
        with path.open("rb") as content, np.load(content, allow_pickle=False) as file:
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


def pictures_tested(directory: Path, step: int) -> int | None:
    """The number of test pictures in the snapshot of a step; None if it is not known."""
    try:
        snapshot = Snapshot.load(directory, step)
    except Exception:  # a store that is away now, or a file cut short: a number is missing
        return None
    return None if snapshot is None else len(snapshot.labels)


_PARTS: dict[str, Any] = {
    "classes_map": ClassesMap,
    "one_class_map": OneClassMap,
    "neighbours": NeighbourSheet,
    "pulls": PullSheet,
}


def _path(directory: Path, step: int) -> Path:
    return directory / DIRECTORY / f"snapshot-{step}.npz"


def take(network: NetworkAndBank) -> Snapshot:
    """Runs the network on the whole test split and a few hundred training pictures."""
    dataset = network.run.dataset
    shown = spread_classes(dataset.num_classes)
    tested = _look_at_test_split(network, shown)
    points = embedding_map(tested.map_features)
    bank = network.bank
    return Snapshot(
        step=network.step,
        class_names=dataset.class_names,
        versions=_versions(network),
        labels=tested.labels,
        predictions=tested.predictions,
        classes_map=None if points is None else ClassesMap(points, tested.map_labels),
        one_class_map=_one_class_map(network, shown),
        neighbours=None if bank is None else _nearest(network, bank, tested),
        pulls=None if bank is None else _pulls(network, bank),
    )


class _Tested(NamedTuple):
    records: np.ndarray  # [T]
    labels: np.ndarray  # [T]
    predictions: np.ndarray  # [T]
    confidence: np.ndarray  # [T], of the prediction, as the margin over the next class
    map_features: np.ndarray  # [n, d]
    map_labels: np.ndarray  # [n]


def _look_at_test_split(network: NetworkAndBank, shown: list[int]) -> _Tested:
    columns: list[tuple[np.ndarray, ...]] = []
    room = dict.fromkeys(shown, _MAP_POINTS_A_CLASS)
    kept: list[tuple[np.ndarray, np.ndarray]] = []
    for batch in network.look_at_test_split():
        ranked = np.sort(batch["logits"], axis=-1)
        margin = ranked[:, -1] - ranked[:, -2] if ranked.shape[-1] > 1 else ranked[:, -1]
        labels = batch["label"]
        columns.append((batch["id"], labels, batch["logits"].argmax(axis=-1), margin))
        for label in shown:
            rows = np.flatnonzero(labels == label)[: room[label]]
            room[label] -= len(rows)
            kept.append((batch["features"][rows], labels[rows]))
    records, labels, predictions, margin = map(np.concatenate, zip(*columns, strict=True))
    map_features, map_labels = map(np.concatenate, zip(*kept, strict=True))
    predictions = predictions.astype(labels.dtype)
    return _Tested(records, labels, predictions, margin, map_features, map_labels)


def _one_class_map(network: NetworkAndBank, classes: list[int]) -> OneClassMap | None:
    """The map of the first class that has enough training pictures within reach."""
    train = network.run.dataset.train
    found = _training_records(train, network.bank, classes)
    for label in classes:
        records = found[label][:_ONE_CLASS_POINTS]
        if len(records) < FEWEST:
            continue
        said = network.look(np.stack(test_pictures(network.run.config, train, records)))
        points = embedding_map(said["features"])
        if points is not None:
            correct = said["logits"].argmax(axis=-1) == label
            return OneClassMap(points, correct, np.array(label))
    return None


def _training_records(
    train: Source, bank: memory_bank.MemoryBank | None, classes: list[int]
) -> dict[int, list[int]]:
    """Training records of some classes: a random sample of all, and what the bank holds."""
    found: dict[int, dict[int, None]] = {label: {} for label in classes}
    order = np.random.default_rng(0).permutation(len(train))[:_SEARCHED]
    for record in order.tolist():
        try:
            label = train[record].label
        except DamagedImage:
            continue
        if label in found:
            found[label][record] = None
    if bank is not None:
        ids, labels = np.asarray(bank.ids), np.asarray(bank.labels)
        for label, records in found.items():
            rows = (labels == label) & (ids != memory_bank.NO_ID)
            records.update(dict.fromkeys(ids[rows].tolist()))
    return {label: list(records) for label, records in found.items()}


def _nearest(
    network: NetworkAndBank, bank: memory_bank.MemoryBank, tested: _Tested
) -> NeighbourSheet:
    """Neighbours of the most confident mistakes, and of correct answers of different classes."""
    wrong = np.flatnonzero(tested.labels != tested.predictions)
    wrong = wrong[np.argsort(-tested.confidence[wrong], kind="stable")][:_SHOWN_QUERIES]
    right = np.flatnonzero(tested.labels == tested.predictions)
    _, firsts = np.unique(tested.labels[right], return_index=True)
    spread = [firsts[i] for i in spread_classes(len(firsts), _SHOWN_QUERIES)] if len(right) else []
    rows = np.concatenate([right[spread], wrong]).astype(int)
    test = network.run.dataset.test
    records = tested.records[rows]
    images = np.stack(test_pictures(network.run.config, test, records.tolist()))
    return neighbourhoods.nearest(
        bank,
        network.embed(images),
        records,
        tested.labels[rows],
        tested.predictions[rows],
    )


def _pulls(network: NetworkAndBank, bank: memory_bank.MemoryBank) -> PullSheet | None:
    """The pull on one training picture of each of a few classes."""
    temperature = getattr(network.run.learner.objective, "sup_temperature", None)
    ids, labels = np.asarray(bank.ids), np.asarray(bank.labels)
    known = np.flatnonzero(ids != memory_bank.NO_ID)
    classes, firsts = np.unique(labels[known], return_index=True)
    if temperature is None or not len(classes):
        return None
    rows = known[[firsts[i] for i in spread_classes(len(classes), _SHOWN_QUERIES)]]
    train = network.run.dataset.train
    images = np.stack(test_pictures(network.run.config, train, ids[rows].tolist()))
    sheet = neighbourhoods.pull(
        bank, network.embed(images), ids[rows], labels[rows], temperature=temperature
    )
    return sheet if sheet.positives.shape[1] else None


def _versions(network: NetworkAndBank) -> dict[str, str]:
    kinds = sorted({device.device_kind for device in network.run.mesh.devices.flat})
    versions = {"cone_jax": cone_jax.__version__, "Python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in _PACKAGES}
    return versions | {"devices": f"{network.run.mesh.size} x {', '.join(kinds)}"}
