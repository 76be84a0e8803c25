import pickle

import numpy as np
import pytest

from cone_jax.data.sources.array import ArraySource, open_npz
from cone_jax.errors import UserError

IMAGES = np.arange(20 * 2 * 3 * 3, dtype=np.int64).astype(np.uint8).reshape(20, 2, 3, 3)
LABELS = np.arange(20) % 2


def pixels(source) -> list[bytes]:
    return [source[i].image.tobytes() for i in range(len(source))]


def test_a_single_file_is_split_by_class(tmp_path):
    np.savez(tmp_path / "x.npz", images=IMAGES, labels=LABELS, class_names=["even", "odd"])
    train, test = (open_npz(split, str(tmp_path / "x.npz"), 0.3) for split in ("train", "test"))
    assert train.class_names == test.class_names == ("even", "odd")
    assert [source[i].label for source in (test,) for i in range(6)].count(1) == 3
    assert len(test) == 6
    assert sorted(pixels(train) + pixels(test)) == sorted(image.tobytes() for image in IMAGES)
    lookup = {image.tobytes(): label for image, label in zip(IMAGES, LABELS, strict=True)}
    for source in (train, test):
        assert all(lookup[source[i].image.tobytes()] == source[i].label for i in range(len(source)))


def test_a_folder_with_a_file_for_each_split(tmp_path):
    np.savez(tmp_path / "train.npz", images=IMAGES[:15], labels=LABELS[:15])
    np.savez(tmp_path / "val.npz", images=IMAGES[15:], labels=LABELS[15:])
    train, test = (open_npz(split, str(tmp_path)) for split in ("train", "test"))
    assert pixels(train) == [image.tobytes() for image in IMAGES[:15]]
    assert pixels(test) == [image.tobytes() for image in IMAGES[15:]]
    assert train.class_names == ("0", "1")
    assert test.describe(2) == f"{tmp_path / 'val.npz'}[2]"


def test_one_channel_becomes_a_plain_image():
    source = ArraySource(IMAGES[..., :1], LABELS, ["even", "odd"])
    assert source[3].image.shape == (2, 3)
    copy = pickle.loads(pickle.dumps(source))
    assert pixels(copy) == pixels(source)


@pytest.mark.parametrize(
    ("images", "labels", "names", "message"),
    [
        (IMAGES / 255, LABELS, "ab", "images are float64"),
        (IMAGES[0, 0], LABELS[:3], "ab", "images are uint8"),
        (IMAGES[..., :2], LABELS, "ab", "images are uint8"),
        (IMAGES, LABELS.astype(float), "ab", "labels are float64"),
        (IMAGES, LABELS[:5], "ab", "labels are int64"),
        (IMAGES, LABELS, "a", "label 1 of image 1 is not in 0..0"),
        (IMAGES, LABELS - 1, "ab", "label -1 of image 0"),
        (IMAGES[:0], LABELS[:0], "ab", "no image"),
    ],
)
def test_wrong_arrays_are_refused(images, labels, names, message):
    with pytest.raises(UserError, match=message):
        ArraySource(images, labels, tuple(names), "mine")


def test_files_that_cannot_be_used_are_named(tmp_path):
    def refused(name: str, message: str, split: str = "train") -> None:
        with pytest.raises(UserError, match=message) as error:
            open_npz(split, str(tmp_path / name))
        assert "\n" not in str(error.value)

    np.savez(tmp_path / "gap.npz", images=IMAGES, labels=LABELS * 2)
    refused("gap.npz", "class 1 .'1'. has no image")
    np.savez(tmp_path / "empty.npz", images=IMAGES, labels=LABELS, class_names=["a", "b", "c"])
    refused("empty.npz", "class 2 .'c'. has no image")
    np.savez(tmp_path / "lacking.npz", images=IMAGES)
    refused("lacking.npz", "no array 'labels'")
    np.savez(tmp_path / "objects.npz", images=IMAGES, labels=np.array([None] * 20))
    refused("objects.npz", "not an .npz file of plain arrays")
    np.save(tmp_path / "lone.npy", IMAGES)
    refused("lone.npy", "not an .npz file")
    (tmp_path / "text.npz").write_text("hello")
    refused("text.npz", "not an .npz file")
    refused("nowhere", "nor a folder with train.npz")
    np.savez(tmp_path / "train.npz", images=IMAGES, labels=LABELS)
    refused("", "nor a folder with test.npz", "test")


def test_a_class_that_train_lacks_is_refused(tmp_path):
    np.savez(tmp_path / "train.npz", images=IMAGES, labels=LABELS)
    np.savez(tmp_path / "test.npz", images=IMAGES, labels=LABELS + 1)
    with pytest.raises(UserError, match=r"test.npz: label 2 of image 1 is not in 0..1"):
        open_npz("test", str(tmp_path))
