"""Gets a TFDS data set into the form the source ``tfds`` reads: ArrayRecord.

* Already prepared so: nothing to do.
* Prepared as TFRecord, the TFDS default: each file is rewritten beside the old one, and the
  data set's own description then lists both formats. TensorFlow is not needed: TFRecord files are
  read here.
* Not prepared: TFDS downloads and builds it, which needs TensorFlow. It must not share an
  environment with this project's run time, so where it is missing the error is the command
  that makes another environment and builds the data set there.

The same command goes on after an interruption: files appear under their names only when complete.

A TFRecord file is a sequence of: length (8 bytes, little-endian), its checksum (4), the record,
its checksum (4). The checksum of each length is verified, which finds truncation and lost
positions; those of the records are not, as that takes minutes per gigabyte in Python.
"""

import importlib.util
import json
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cone_jax import storage
from cone_jax.console import Report
from cone_jax.data import array_record_file
from cone_jax.data.sources import tfds as tfds_source
from cone_jax.errors import UserError

if TYPE_CHECKING:
    from tensorflow_datasets.core.dataset_builder import DatasetBuilder


def prepare(name: str, path: str = "", *, report: Report = print) -> None:
    """Makes the TFDS set `name` readable in the TFDS ``data_dir`` `path` (empty: TFDS's own).

    `report` is given one line of text for each thing done.
    """
    if not name:
        raise UserError("data.name is empty; give the TFDS name of the data set to prepare")
    if storage.is_remote(path):
        raise UserError(
            f"data.path ({path}) is in a bucket; prepare the data set in a local folder, and copy "
            "it there"
        )
    builder = tfds_source.find(name, path)
    if builder is None:
        _build(name, path)
    elif not tfds_source.is_array_record(builder):
        _convert(builder, report)
    ready = tfds_source.find(name, path)
    if ready is None or not tfds_source.is_array_record(ready):
        raise UserError(f"data.name ({name!r}): TFDS has built another version; leave it out")
    sizes = ", ".join(f"{split} {info.num_examples}" for split, info in ready.info.splits.items())
    report(f"{ready.info.full_name} is ready in {ready.data_path}: {sizes}")


def described_classes(name: str, label_key: str) -> int:
    """The number of classes of an unprepared set, by TFDS's own description; 0: unknown."""
    import tensorflow_datasets as tfds

    with tempfile.TemporaryDirectory() as nowhere:
        try:
            builder = tfds.builder(name, data_dir=nowhere, try_gcs=False)
            features = builder.info.features
            return int(getattr(features[label_key], "num_classes", 0))
        # An unknown name or version, or a description that needs a package.
        except (KeyError, ValueError, OSError, AssertionError, ImportError):
            return 0


def _build(name: str, path: str) -> None:
    import tensorflow_datasets as tfds

    if importlib.util.find_spec("tensorflow") is None:
        advice = tfds_source.unknown_name(name) or (
            f"building it needs TensorFlow, in an environment of its own: "
            f"{separate_build(name, path)}"
        )
        raise UserError(f"data.name ({name!r}) is not in {tfds_source.data_dir(path)}; {advice}")
    try:
        builder = tfds.builder(name, data_dir=tfds_source.data_dir(path), try_gcs=False)
        builder.download_and_prepare(
            download_config=tfds.download.DownloadConfig(try_download_gcs=False),
            file_format="array_record",
        )
    # What TFDS raises for an unknown name or version, a dead download, files to fetch by hand.
    except (ValueError, OSError, AssertionError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"data.name ({name!r}) could not be built by TFDS: {reason}") from error


def separate_build(name: str, path: str) -> str:
    """The command that builds `name` in an environment of its own, with TensorFlow in it."""
    # The last two are imported by the tfds command line, though it does not require them.
    packages = (
        "tensorflow tensorflow-datasets array_record importlib_resources apache-beam mlcroissant"
    )
    return (
        f"python -m venv tfds-env && tfds-env/bin/pip install {packages} && "
        f"tfds-env/bin/{tfds_source.build_command(name, path)}"
    )


def _convert(builder: "DatasetBuilder", report: Report) -> None:
    """Adds the ArrayRecord form of every file of a data set that is prepared as TFRecord."""
    kind = builder.info.file_format.value
    folder = Path(builder.data_path)
    if kind != "tfrecord" or not folder.is_dir():
        raise UserError(
            f"{folder} is prepared as {kind}; only local TFRecord files can be converted; build it "
            f"in another data_dir: {tfds_source.build_command(builder.info.full_name, '/NEW')}"
        )
    try:
        for split in builder.info.splits.values():
            template = split.filename_template.replace(filetype_suffix="array_record")
            targets = sorted(template.sharded_filepaths(split.num_shards))
            shards = zip(sorted(split.filepaths), targets, split.shard_lengths, strict=True)
            for old, new, length in shards:
                if Path(new).parent != folder:
                    raise UserError(f"{folder}: its dataset_info.json names {new}, outside of it")
                if not new.exists():
                    records = read_records(Path(old))
                    array_record_file.write(Path(new), records, length, compress=True)
                    report(f"{new.name}: {length} records")
        _announce(folder / "dataset_info.json")
    except OSError as error:
        raise UserError(f"{error.filename or folder} cannot be used: {error.strerror}") from error


def _announce(info_file: Path) -> None:
    """Lists array_record among the formats the data set is available in."""
    info = json.loads(info_file.read_text())
    info["alternativeFileFormats"] = [*info.get("alternativeFileFormats", []), "array_record"]
    with storage.replacing(info_file) as file:
        file.write_text(json.dumps(info, indent=2))


_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")


def read_records(path: Path) -> Iterator[bytes]:
    """The records of a file, in order."""
    # Imports PyTorch where that is installed, which takes seconds.
    from tensorboardX.record_writer import masked_crc32c

    with open(path, "rb") as file:
        while header := file.read(_LENGTH.size):
            checksum = file.read(_CHECKSUM.size)
            if checksum != _CHECKSUM.pack(masked_crc32c(header)):
                raise UserError(f"{path} is not a TFRecord file, or is damaged at {file.tell()}")
            (length,) = _LENGTH.unpack(header)
            record = file.read(length)
            if len(record) + len(file.read(_CHECKSUM.size)) != length + _CHECKSUM.size:
                raise UserError(f"{path} ends in the middle of a record; copy or build it again")
            yield record
