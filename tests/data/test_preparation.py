import json
import shutil
from pathlib import Path

import pytest
import tensorflow_datasets as tfds
from array_record.python.array_record_data_source import ArrayRecordDataSource
from tensorboardX.record_writer import RecordWriter

from cone_jax.data import preparation
from cone_jax.data.sources import create
from cone_jax.errors import UserError


def records(data_dir: Path) -> list:
    return [
        create("tfds", split, name="tiny_birds", path=str(data_dir))[i]
        for split, count in (("train", 30), ("test", 10))
        for i in range(count)
    ]


@pytest.fixture
def tfrecord_dir(birds_dir: Path, tmp_path: Path) -> Path:
    """The same data set as TFDS prepares it by default, in TFRecord files."""
    data_dir = tmp_path / "tfds"
    shutil.copytree(birds_dir, data_dir)
    for file in sorted(data_dir.rglob("*.array_record-*")):
        writer = RecordWriter(str(file).replace(".array_record-", ".tfrecord-"))
        for record in ArrayRecordDataSource([str(file)]):
            writer.write(record)
        writer.close()
        file.unlink()
    info = data_dir / "tiny_birds/1.2.0/dataset_info.json"
    info.write_text(info.read_text().replace('"array_record"', '"tfrecord"'))
    return data_dir


def test_tfrecord_files_are_converted(tfrecord_dir, birds_dir):
    lines: list[str] = []
    preparation.prepare("tiny_birds", str(tfrecord_dir), report=lines.append)
    assert records(tfrecord_dir) == records(birds_dir)
    assert "tiny_birds/1.2.0 is ready" in lines[-1]
    assert "train 30, test 10" in lines[-1]
    assert len(list(tfrecord_dir.rglob("*.tfrecord-*"))) == 2, "the old files must stay"
    # TFDS itself finds both formats.
    info = tfds.builder_from_directory(tfrecord_dir / "tiny_birds/1.2.0").info
    assert {kind.value for kind in info.available_file_formats()} == {"tfrecord", "array_record"}


def test_what_is_ready_is_left_alone(birds_dir):
    before = {file: file.stat().st_mtime_ns for file in birds_dir.rglob("*")}
    lines: list[str] = []
    preparation.prepare("tiny_birds", str(birds_dir), report=lines.append)
    assert len(lines) == 1
    assert {file: file.stat().st_mtime_ns for file in birds_dir.rglob("*")} == before


def test_a_conversion_that_fails_changes_nothing_and_can_be_repeated(tfrecord_dir, birds_dir):
    (file,) = tfrecord_dir.rglob("tiny_birds-train.tfrecord-*")
    whole = file.read_bytes()
    files = sorted(tfrecord_dir.rglob("*"))
    file.write_bytes(whole[:-1])
    with pytest.raises(UserError, match="ends in the middle of a record"):
        preparation.prepare("tiny_birds", str(tfrecord_dir), report=lambda line: None)
    # Cut between two records, so that only their number shows it.
    file.write_bytes(b"")
    with pytest.raises(UserError, match="0 of 30 records"):
        preparation.prepare("tiny_birds", str(tfrecord_dir), report=lambda line: None)
    assert sorted(tfrecord_dir.rglob("*")) == files
    file.write_bytes(whole)
    preparation.prepare("tiny_birds", str(tfrecord_dir), report=lambda line: None)
    assert records(tfrecord_dir) == records(birds_dir)


def test_a_data_set_that_names_files_elsewhere_is_refused(tfrecord_dir):
    info = tfrecord_dir / "tiny_birds/1.2.0/dataset_info.json"
    content = json.loads(info.read_text())
    for split in content["splits"]:
        split["filepathTemplate"] = "../../../{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    info.write_text(json.dumps(content))
    for file in tfrecord_dir.rglob("*.tfrecord-*"):
        file.rename(tfrecord_dir.parent / file.name)
    before = sorted(tfrecord_dir.parent.rglob("*"))
    with pytest.raises(UserError, match="outside of it"):
        preparation.prepare("tiny_birds", str(tfrecord_dir), report=lambda line: None)
    assert sorted(tfrecord_dir.parent.rglob("*")) == before


def test_other_formats_are_refused(tfrecord_dir):
    info = tfrecord_dir / "tiny_birds/1.2.0/dataset_info.json"
    info.write_text(info.read_text().replace('"tfrecord"', '"riegeli"'))
    with pytest.raises(UserError, match=r"prepared as riegeli.*tfds build"):
        preparation.prepare("tiny_birds", str(tfrecord_dir))


def test_without_tensorflow_the_error_says_how_to_build(tmp_path):
    with pytest.raises(UserError) as error:
        preparation.prepare("cifar10", str(tmp_path))
    message = str(error.value)
    assert "\n" not in message
    assert "needs TensorFlow, in an environment of its own" in message
    assert "pip install tensorflow " in message
    assert message.endswith(
        f"tfds-env/bin/tfds build cifar10 --file_format=array_record --data_dir={tmp_path}"
    )


def test_an_unknown_name_is_not_worth_an_environment(tmp_path):
    with pytest.raises(UserError, match="did you mean 'cifar10'"):
        preparation.prepare("cfar10", str(tmp_path))
    with pytest.raises(UserError, match=r"data\.name is empty"):
        preparation.prepare("", str(tmp_path))


@pytest.fixture
def pretended_tensorflow(monkeypatch):
    """Tells `preparation` that TensorFlow is there; ``tiny_birds`` does not use it."""
    find_spec = preparation.importlib.util.find_spec
    monkeypatch.setattr(
        preparation.importlib.util,
        "find_spec",
        lambda name, *rest: "found" if name == "tensorflow" else find_spec(name, *rest),
    )


def test_with_tensorflow_the_set_is_built_as_array_record(
    birds_dir, tmp_path, pretended_tensorflow, capsys
):
    preparation.prepare("tiny_birds", str(tmp_path))
    assert "tiny_birds/1.2.0 is ready" in capsys.readouterr().out
    assert sorted(records(tmp_path)) == sorted(records(birds_dir))
    info = json.loads((tmp_path / "tiny_birds/1.2.0/dataset_info.json").read_text())
    assert info["fileFormat"] == "array_record"


def test_a_build_that_fails_is_one_line(birds_dir, tmp_path, pretended_tensorflow, monkeypatch):
    def fail(self, **options):
        raise AssertionError("Manual directory is empty.\n  Please download it.")

    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", fail)
    with pytest.raises(UserError, match=r"Manual directory is empty\. Please download it\."):
        preparation.prepare("tiny_birds", str(tmp_path))
