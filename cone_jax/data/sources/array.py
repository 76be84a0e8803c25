"""Images that fit in memory: arrays, ``.npz`` files, and scikit-learn's handwritten digits.

The digits are 1,797 grey 8x8 images that come with the install.
"""

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cone_jax.data.sources import splits
from cone_jax.data.sources.source import Record
from cone_jax.errors import UserError


class ArraySource:
    """Pixels uint8 [N, H, W] or [N, H, W, 3] and labels [N] in ``range(len(class_names))``.

    `name` is where they are, as records are described.
    """

    is_holdout = False  # whether it is what `data.holdout` leaves to test on

    def __init__(
        self,
        images: np.ndarray,
        labels: np.ndarray,
        class_names: Sequence[str],
        name: str = "array",
    ) -> None:
        channels = images.shape[3:]
        if images.dtype != np.uint8 or images.ndim < 3 or channels not in ((), (1,), (3,)):
            raise UserError(
                f"{name}: images are {images.dtype} {list(images.shape)}; they must be uint8 "
                "[N, height, width] or [N, height, width, 3]"
            )
        if not np.issubdtype(labels.dtype, np.integer) or labels.shape != images.shape[:1]:
            raise UserError(
                f"{name}: labels are {labels.dtype} {list(labels.shape)}; they must be integers, "
                f"one for each of the {len(images)} images"
            )
        if not len(labels):
            raise UserError(f"{name}: there is no image in it")
        wrong = np.flatnonzero((labels < 0) | (labels >= len(class_names)))
        if wrong.size:
            raise UserError(
                f"{name}: label {labels[wrong[0]]} of image {wrong[0]} is not in "
                f"0..{len(class_names) - 1}, the classes to train on"
            )
        self._images = images[..., 0] if channels == (1,) else images
        self.labels = labels
        self.class_names = tuple(class_names)
        self.name = name

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Record:
        return Record(self._images[index], int(self.labels[index]))

    def describe(self, index: int) -> str:
        return f"{self.name}[{index}]"


def open_npz(split: str, path: str, holdout: float = 0.1, holdout_seed: int = 0) -> ArraySource:
    """The images of `split` in `path`: one ``.npz`` file, or a folder with one for each split.

    A file holds ``images`` and ``labels``, and may hold ``class_names``. From a single file, a
    seeded hold-out of each class forms the part to test on, as in an image folder. In a folder,
    ``train.npz`` says what the classes are.
    """
    if not path:
        raise UserError("data.path is empty; give an .npz file, or a folder with train.npz in it")
    root = Path(path).expanduser()
    if root.is_file():
        splits.check_holdout(holdout, split, f"data.path ({root})")
        labels = _member(root, "labels")
        chosen = _holdout_part(labels, splits.part(split), holdout, holdout_seed)
        images = _member(root, "images")
        whole = ArraySource(images, labels, _class_names(root, labels), str(root))
        part = ArraySource(images[chosen], labels[chosen], whole.class_names, f"{root}:{split}")
        part.is_holdout = splits.part(split) == "held-out"
        return part
    files = {file.stem: file for file in sorted(root.glob("*.npz"))}
    train, own = splits.match("train", files), splits.match(split, files)
    if train is None or own is None:
        missing = "train" if train is None else split
        raise UserError(
            f"data.path ({root}) is neither an .npz file nor a folder with {missing}.npz; give one "
            "of them"
        )
    names = _class_names(files[train], _member(files[train], "labels"))
    file = files[own]
    return ArraySource(_member(file, "images"), _member(file, "labels"), names, str(file))


def _member(file: Path, key: str) -> np.ndarray:
    array = _optional_member(file, key)
    if array is None:
        raise UserError(f"{file} has no array {key!r}; it must hold images and labels")
    return array


def _optional_member(file: Path, key: str) -> np.ndarray | None:
    try:
        # Opened here, since NumPy leaves a file that it cannot read open.
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            return arrays.get(key)
    # A lone .npy array is no context manager: TypeError.
    except (OSError, ValueError, TypeError, zipfile.BadZipFile) as error:
        raise UserError(
            f"{file} is not an .npz file of plain arrays; write it with np.savez(file, images=..., "
            "labels=...)"
        ) from error


def _class_names(file: Path, labels: np.ndarray) -> tuple[str, ...]:
    """The classes to train on. Each must have an image."""
    named = _optional_member(file, "class_names")
    seen = np.unique(labels)
    numbered = range(int(seen.max(initial=-1)) + 1)
    names = tuple(str(name) for name in (numbered if named is None else named))
    empty = sorted(set(range(len(names))) - set(seen.tolist()))
    if empty:
        raise UserError(
            f"{file}: class {empty[0]} ({names[empty[0]]!r}) has no image; "
            "number the classes that have images from 0, without gaps"
        )
    return names


def _holdout_part(labels: np.ndarray, part: splits.Part, fraction: float, seed: int) -> np.ndarray:
    """Positions of the images of `part`, in order."""
    out = np.zeros(labels.shape, bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        keys = [int(member).to_bytes(8, "little") for member in members]
        out[members[sorted(splits.held_out(keys, fraction, seed))]] = True
    return np.flatnonzero(out if part == "held-out" else ~out)


NUM_TRAIN = 1437
# The split is part of the data set's definition, like CIFAR's: it does not follow config.seed.
SPLIT_SEED = 0


def open_digits(split: str) -> ArraySource:
    """The ``train`` (1,437 images) or ``test`` (360) part of a fixed, seeded split."""
    # scikit-learn takes a second to import; only this source needs it.
    from sklearn.datasets import load_digits

    part = splits.part(split)
    data = load_digits()
    order = np.random.Generator(np.random.PCG64(SPLIT_SEED)).permutation(len(data.target))
    chosen = order[:NUM_TRAIN] if part == "train" else order[NUM_TRAIN:]
    # Pixels are counts 0..16 of set bits in a 4x4 cell; scaled to the full range.
    images = np.round(data.images[chosen] * (255.0 / 16.0)).astype(np.uint8)
    names = [str(name) for name in data.target_names]
    return ArraySource(images, data.target[chosen].astype(np.int32), names, f"digits/{split}")
