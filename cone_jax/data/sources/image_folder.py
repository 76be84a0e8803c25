"""A folder of photographs: ``root/<split>/<class>/*``, or ``root/<class>/*`` with a hold-out.

Which layout it is: ``root/train`` (or ``training``) that holds folders makes the first, anything
else the second. With a train folder but no folder to test on, the hold-out is taken from train.

* The folder names below train are the class names, sorted; labels are their positions.
* Images are found by extension at any depth below their class; hidden files and folders are
  ignored; links are followed. Order is by name, so it is the same on every machine.
* No file is opened before it is asked for. A million files are scanned in seconds and kept in
  tens of megabytes, which is what a worker process receives.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from cone_jax import storage
from cone_jax.data import decode
from cone_jax.data.sources import splits
from cone_jax.data.sources.source import Record
from cone_jax.errors import UserError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp")


class PathTable:
    """Many short paths in one block: half the memory of a list of strings, and quick to pickle."""

    def __init__(self, paths: list[bytes]) -> None:
        self._block = b"".join(paths)
        self._ends = np.cumsum([len(path) for path in paths], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> str:
        start = self._ends[index - 1] if index else 0
        return os.fsdecode(self._block[start : self._ends[index]])


class ImageFolderSource:
    """Files of one part of an image folder, read when asked for."""

    def __init__(
        self,
        root: Path,
        class_names: tuple[str, ...],
        paths: list[bytes],
        labels: list[int],
        is_holdout: bool = False,
    ) -> None:
        self._root = os.fspath(root)
        self._paths = PathTable(paths)
        self.labels = np.asarray(labels, np.int32)
        self.class_names = class_names
        self.is_holdout = is_holdout

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Record:
        try:
            with open(self.describe(index), "rb") as file:
                return Record(file.read(), int(self.labels[index]))
        except OSError as error:  # deleted since the scan, a dangling link, a bad sector
            raise decode.DamagedImage(f"cannot be read: {error.strerror}") from error

    def describe(self, index: int) -> str:
        return os.path.join(self._root, self._paths[index])

    def relative_path(self, index: int) -> str:
        """The path of a file below the folder of its split: ``<class>/.../<file>``."""
        return self._paths[index]


def open_image_folder(
    split: str, path: str, holdout: float = 0.1, holdout_seed: int = 0
) -> ImageFolderSource:
    """The images of `split` below `path`.

    Args:
        split: ``train``, or ``validation`` or ``test`` in any of their usual spellings.
        path: the root of either layout; ``~`` is expanded.
        holdout: fraction of each class to test on where no folder to test on exists.
        holdout_seed: which images those are.
    """
    try:
        return _open(_root(path), split, holdout, holdout_seed)
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}") from error


def split_names(path: str) -> tuple[str, ...]:
    """The parts `path` has: its split folders, or ``train`` and ``test`` of a hold-out."""
    found = tuple(_split_folders(_root(path)))
    return found if splits.match("test", found) else ("train", "test")


def has_parts(path: str) -> bool:
    """Whether `path` holds a folder per part, instead of one per class."""
    return bool(_split_folders(_root(path)))


def open_whole(path: str) -> ImageFolderSource:
    """All images of the class folders in `path`, none held out."""
    root = _root(path)
    return _scan(root, _class_names(root))


def _root(path: str) -> Path:
    if not path:
        raise UserError("data.path is empty; give the folder that holds the images")
    if storage.is_remote(path):
        raise UserError(
            f"data.path ({path}) is in a bucket, and single images are read from a disk; copy the "
            "folder here, or train on a packed one"
        )
    root = Path(path).expanduser()
    if not root.is_dir():
        raise UserError(f"data.path ({root}) is not a folder; give the one that holds the images")
    return root


def _open(root: Path, split: str, holdout: float, holdout_seed: int) -> ImageFolderSource:
    parts = _split_folders(root)
    if not parts:
        return _with_holdout(root, split, holdout, holdout_seed)
    train = root / str(splits.match("train", parts))
    own = splits.match(split, parts)
    if own is not None and root / own != train:
        return _scan(root / own, _class_names(train))
    if splits.part(split) == "held-out" or splits.match("test", parts) is None:
        return _with_holdout(train, split, holdout, holdout_seed)
    return _scan(train, _class_names(train))


def _split_folders(root: Path) -> list[str]:
    """Names of the folders that are splits; none where root holds classes."""
    folders = [name for name, is_folder in _visible(root) if is_folder]
    train = splits.match("train", folders)
    # A class may be called "train" too; it would hold images, not folders.
    if train is None or not any(is_folder for _, is_folder in _visible(root / train)):
        return []
    wanted = (splits.match(split, folders) for split in ("train", "validation", "test"))
    return sorted({name for name in wanted if name is not None})


def _with_holdout(folder: Path, split: str, holdout: float, seed: int) -> ImageFolderSource:
    splits.check_holdout(holdout, split, f"data.path ({folder})")
    return _scan(folder, _class_names(folder), splits.part(split), holdout, seed)


def _class_names(folder: Path) -> tuple[str, ...]:
    names = tuple(sorted(name for name, is_folder in _visible(folder) if is_folder))
    if not names:
        raise UserError(
            f"data.path ({folder}) holds no class folders; "
            f"expected {folder / '<class>' / '*.jpg'} (or png, webp, bmp)"
        )
    return names


def _scan(
    folder: Path,
    class_names: tuple[str, ...],
    part: splits.Part | None = None,
    holdout: float = 0.0,
    seed: int = 0,
) -> ImageFolderSource:
    """The images below `folder`: all of them, or one `part` of a hold-out."""
    own = _class_names(folder)
    unknown = sorted(set(own) - set(class_names))
    if unknown:
        raise UserError(
            f"{folder / unknown[0]} is a class that train lacks "
            f"({len(unknown)} in all); add it to train or remove it"
        )
    paths: list[bytes] = []
    labels: list[int] = []
    for label, name in enumerate(class_names):
        if name not in own:
            continue
        files = sorted(_images_below(folder, name))
        if not files:
            raise UserError(
                f"{folder / name} holds no image ({', '.join(EXTENSIONS)}); "
                "add images or remove the folder"
            )
        if part is not None:
            out = splits.held_out(files, holdout, seed)
            files = [file for i, file in enumerate(files) if (i in out) == (part == "held-out")]
        paths += files
        labels += [label] * len(files)
    if not paths:
        raise UserError(
            f"{folder} has one image per class, so nothing is left to test on; add more"
        )
    return ImageFolderSource(folder, class_names, paths, labels, part == "held-out")


def _images_below(root: Path, relative: str) -> Iterator[bytes]:
    """Paths of the images below ``root/relative``, relative to root, separated by ``/``."""
    folder = os.path.join(root, relative)
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            below = f"{relative}/{entry.name}"
            if entry.is_dir():
                if entry.is_symlink() and Path(folder).resolve().is_relative_to(
                    Path(entry.path).resolve()
                ):
                    raise UserError(f"{entry.path} is a link to a folder it is in; remove it")
                yield from _images_below(root, below)
            elif entry.name.lower().endswith(EXTENSIONS):
                yield os.fsencode(below)


def _visible(folder: Path) -> Iterator[tuple[str, bool]]:
    """Name and whether it is a folder, of everything in `folder` that is not hidden."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                yield entry.name, entry.is_dir()
