import pickle
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from cone_jax.data import decode
from cone_jax.data.sources import create
from cone_jax.errors import UserError


def grey_values(source) -> list[int]:
    values = []
    for i in range(len(source)):
        picture = np.asarray(decode.Picture(source[i].image).full())
        assert picture.shape == (4, 6, 3)
        assert picture.min() == picture.max()
        values.append(int(picture.max()))
    return values


@pytest.fixture
def birds(birds_dir):
    return lambda split, **options: create(
        "tfds", split, name="tiny_birds", path=str(birds_dir), **options
    )


def test_images_stay_encoded_and_belong_to_their_labels(birds):
    source = birds("train")
    assert source.class_names == ("owl", "tit")
    assert source[0].image.startswith(b"\x89PNG")
    values = grey_values(source)
    assert sorted(values) == list(range(30))
    assert [source[i].label for i in range(30)] == [value % 2 for value in values]
    assert source.describe(3) == "tiny_birds/1.2.0/train[3]"
    assert "tensorflow" not in sys.modules


def test_another_label(birds):
    source = birds("train", label_key="colour")
    assert source.class_names == ("red", "green", "blue")
    assert [source[i].label for i in range(30)] == [value % 3 for value in grey_values(source)]


def test_split_expressions(birds):
    whole = grey_values(birds("train"))
    assert grey_values(birds("train[:90%]")) == whole[:27]
    assert grey_values(birds("train[10%:]")) == whole[3:]
    assert len(birds("train[5:7]+test")) == 12


def test_a_version_may_be_given(birds_dir):
    source = create("tfds", "test", name="tiny_birds:1.*.*", path=str(birds_dir))
    assert len(source) == 10


def test_threads_and_other_processes_read_the_same(birds):
    source = birds("train")
    expected = [source[i] for i in range(30)]
    copy = pickle.loads(pickle.dumps(source))
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(copy.__getitem__, list(range(30)) * 4)) == expected * 4


def test_the_default_data_dir_is_that_of_tfds(birds_dir, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(birds_dir))
    assert len(create("tfds", "test", name="tiny_birds")) == 10


@pytest.mark.parametrize("split", ["trian", "train[", "train[:200%]", "train[:0]"])
def test_a_wrong_split_names_the_right_ones(birds, split):
    with pytest.raises(UserError, match="train, test"):
        birds(split)


def test_wrong_label_keys(birds):
    with pytest.raises(UserError, match="did you mean 'colour'"):
        birds("train", label_key="color")
    with pytest.raises(UserError, match=r"'note'.*is not a class label"):
        birds("train", label_key="note")


def test_records_without_a_label_are_refused(birds):
    source = birds("train", label_key="unlabelled")
    with pytest.raises(UserError, match=r"tiny_birds/1.2.0/train\[4\] has label -1"):
        source[4]


def test_a_missing_set_ends_with_the_commands_that_prepare_it(tmp_path):
    with pytest.raises(UserError) as error:
        create("tfds", "train", name="cifar10", path=str(tmp_path))
    message = str(error.value)
    assert "\n" not in message
    assert (
        "python -m cone_jax --mode=prepare --config=configs/cifar.py "
        f"--config.data.name=cifar10 --config.data.path={tmp_path} " in message
    )
    assert f"tfds build cifar10 --file_format=array_record --data_dir={tmp_path}" in message


def test_an_unknown_name(tmp_path):
    with pytest.raises(UserError, match="did you mean 'cifar10'"):
        create("tfds", "train", name="cfiar10", path=str(tmp_path))
    for name in ("", "../birds", "cifar10 train"):
        with pytest.raises(UserError, match="must be a TFDS name"):
            create("tfds", "train", name=name, path=str(tmp_path))


def test_a_set_prepared_as_tfrecord_ends_with_the_command_that_converts_it(birds_dir, tmp_path):
    shutil.copytree(birds_dir, tmp_path / "old")
    info = tmp_path / "old/tiny_birds/1.2.0/dataset_info.json"
    info.write_text(info.read_text().replace('"array_record"', '"tfrecord"'))
    with pytest.raises(UserError, match=r"prepared as tfrecord.*--mode=prepare"):
        create("tfds", "train", name="tiny_birds", path=str(tmp_path / "old"))


def test_a_damaged_file_damages_its_records(birds_dir, tmp_path):
    shutil.copytree(birds_dir, tmp_path / "copy")
    (file,) = (tmp_path / "copy").rglob("tiny_birds-train*")
    file.write_bytes(file.read_bytes()[:200])
    source = create("tfds", "train", name="tiny_birds", path=str(tmp_path / "copy"))
    with pytest.raises(decode.DamagedImage, match="cannot be read"):
        source[29]
