"""TFDS data sets prepared as ArrayRecord, read without TensorFlow.

A data set is found on disk by name, as TFDS lays it out (``<data_dir>/<name>/<version>``); the
code that made it is not needed, and nothing is downloaded. Images stay encoded. A record is read
by index from any thread; a pickled source opens its files again where it is unpickled.
"""

import os
import re
import shlex
from typing import TYPE_CHECKING, Any

from cone_jax.console import program
from cone_jax.data import decode
from cone_jax.data.sources.source import Record
from cone_jax.errors import UserError, closest

if TYPE_CHECKING:
    from tensorflow_datasets.core.dataset_builder import DatasetBuilder

IMAGE_KEY = "image"


class TfdsSource:
    """A split of a TFDS data set: any split expression, such as ``train[10%:]``."""

    def __init__(self, builder: "DatasetBuilder", split: str, label_key: str = "label") -> None:
        self._name = f"{builder.info.full_name}/{split}"
        self._label_key = label_key
        self.class_names = _class_names(builder, label_key)
        self._records = open_reader(builder, split)

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Record:
        record = read(self._records, index)
        label = int(record[self._label_key])
        if not 0 <= label < len(self.class_names):
            raise UserError(
                f"{self.describe(index)} has label {label}, not one of the "
                f"{len(self.class_names)} classes; choose a split with labels"
            )
        return Record(record[IMAGE_KEY], label)

    def feature(self, index: int, key: str) -> Any:
        """Another feature of a record, as TFDS has it."""
        record = self._records[index]
        if key not in record:
            raise UserError(f"{self._name} has no feature {key!r}; {closest(key, record)}")
        return record[key]

    def describe(self, index: int) -> str:
        return f"{self._name}[{index}]"


def open_reader(builder: "DatasetBuilder", split: str) -> Any:
    """The records of a split expression by index, their pictures encoded."""
    import tensorflow_datasets as tfds

    # Other features may be images too (a segmentation mask): nothing at all is decoded here.
    # (TFDS cannot skip a sequence; what is in one, such as several labels, costs little.)
    raw = {
        key: tfds.decode.SkipDecoding()
        for key, feature in builder.info.features.items()
        if not isinstance(feature, tfds.features.Sequence)
    }
    try:
        return builder.as_data_source(split, decoders=raw)
    except ValueError as error:
        parts = ", ".join(builder.info.splits)
        raise UserError(
            f"split {split!r} is not an expression over the splits of "
            f"{builder.info.full_name} ({parts}), or selects nothing"
        ) from error


def read(reader: Any, index: int) -> Any:
    """One record; `decode.DamagedImage` where its file is damaged or missing."""
    try:
        return reader[index]
    except RuntimeError as error:  # of the ArrayRecord reader
        raise decode.DamagedImage(f"cannot be read: {error}") from error


def open_tfds(split: str, name: str, path: str = "", label_key: str = "label") -> TfdsSource:
    """`split` of the data set `name`, such as ``cifar100`` or ``cifar100:3.0.2``.

    Args:
        split: a TFDS split expression.
        name: ``name[/config][:version]``; without a version the highest prepared one is read.
        path: the TFDS ``data_dir``; when empty, TFDS's own default.
        label_key: the feature to learn, such as ``coarse_label`` of CIFAR-100.
    """
    return TfdsSource(prepared(name, path), split, label_key)


def prepared(name: str, path: str) -> "DatasetBuilder":
    """What reads the data set `name`; `UserError` unless it is prepared as ArrayRecord."""
    builder = find(name, path)
    if builder is None:
        advice = unknown_name(name) or (
            f"run: {prepare_command(name, path)} (or: {build_command(name, path)})"
        )
        raise UserError(f"data.name ({name!r}) is not prepared in {data_dir(path)}; {advice}")
    if not is_array_record(builder):
        raise UserError(
            f"data.name ({name!r}) in {builder.data_path} is prepared as "
            f"{builder.info.file_format.value}, not as array_record; "
            f"run (TensorFlow is not needed): {prepare_command(name, path)}"
        )
    return builder


def find(name: str, path: str) -> "DatasetBuilder | None":
    """What reads the prepared data set `name`, in whatever format; None where there is none."""
    from tensorflow_datasets.core import read_only_builder, registered

    if not re.fullmatch(r"\w+(/\w[\w.\-]*)?(:[\d.*]+)?", name):
        raise UserError(f"data.name ({name!r}) must be a TFDS name: name[/config][:version]")
    try:
        return read_only_builder.builder_from_files(name, data_dir=data_dir(path))
    except registered.DatasetNotFoundError:
        return None
    except ImportError as error:
        raise UserError(f"data.path ({path}): {error} (pip install gcsfs)") from error


def is_array_record(builder: "DatasetBuilder") -> bool:
    """Whether the files allow random access as this project reads them."""
    return any(kind.value == "array_record" for kind in builder.info.available_file_formats())


def data_dir(path: str) -> str:
    """The TFDS ``data_dir`` that `path` means."""
    if path:
        return os.path.expanduser(path)
    return os.environ.get("TFDS_DATA_DIR", os.path.expanduser("~/tensorflow_datasets"))


def unknown_name(name: str) -> str:
    """What is wrong with a name TFDS does not know; empty for one it knows."""
    import tensorflow_datasets as tfds

    known = tfds.list_builders(with_community_datasets=False)
    base = re.split(r"[/:]", name)[0]
    if base in known:
        return ""
    # Of all 247 valid names only the near one makes a readable line.
    advice = closest(base, known).partition("Valid:")[0].strip()
    return f"TFDS knows no {base!r}; {advice or 'see its catalogue for names'}"


def prepare_command(name: str, path: str) -> str:
    """The command of this project that prepares `name`.

    >>> prepare_command("dtd", "")
    'python -m cone_jax --mode=prepare --config=configs/cifar.py --config.data.name=dtd'
    """
    words = ["--mode=prepare", "--config=configs/cifar.py", f"--config.data.name={name}"]
    if path:
        words.append(f"--config.data.path={data_dir(path)}")
    return shlex.join([*program(), *words])


def build_command(name: str, path: str) -> str:
    """The command line that prepares `name` for this project where TensorFlow is installed.

    >>> build_command("cifar10", "/data/tfds")
    'tfds build cifar10 --file_format=array_record --data_dir=/data/tfds'
    """
    return f"tfds build {name} --file_format=array_record --data_dir={shlex.quote(data_dir(path))}"


def _class_names(builder: "DatasetBuilder", label_key: str) -> tuple[str, ...]:
    features = builder.info.features
    for field, key in (("image feature", IMAGE_KEY), ("data.label_key", label_key)):
        if key not in features:
            raise UserError(
                f"{field} ({key!r}) is not in {builder.info.full_name}; {closest(key, features)}"
            )
    names = getattr(features[label_key], "names", None)
    if not names:
        raise UserError(
            f"data.label_key ({label_key!r}) of {builder.info.full_name} is not a class label"
        )
    return tuple(names)
