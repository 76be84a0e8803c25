import os
import pickle
from pathlib import Path

import pytest

from cone_jax.data import decode
from cone_jax.data.sources import image_folder
from cone_jax.data.sources.image_folder import open_image_folder
from cone_jax.errors import UserError

SPLIT_LAYOUT = ["train/cat/1.jpg", "train/dog/2.png", "train/dog/3.webp", "val/dog/4.bmp"]


def listing(source, root: Path) -> list[tuple[str, int]]:
    return [
        (os.path.relpath(source.describe(i), root), source[i].label) for i in range(len(source))
    ]


def test_split_folders(make_folder):
    root = make_folder(SPLIT_LAYOUT)
    train = open_image_folder("train", str(root))
    test = open_image_folder("test", str(root))
    assert train.class_names == test.class_names == ("cat", "dog")
    assert listing(train, root) == [
        ("train/cat/1.jpg", 0),
        ("train/dog/2.png", 1),
        ("train/dog/3.webp", 1),
    ]
    # The label of dog stays 1, though it is the only class with a test image.
    assert listing(test, root) == [("val/dog/4.bmp", 1)]


def test_a_record_is_the_file_byte_for_byte(make_folder):
    root = make_folder(SPLIT_LAYOUT)
    source = open_image_folder("train", str(root))
    assert source[1].image == (root / "train/dog/2.png").read_bytes()


def test_nested_folders_hidden_files_other_files_and_upper_case(make_folder):
    root = make_folder(
        [
            "train/a/deep/er/1.JPG",
            "train/a/2.Jpeg",
            "train/a/notes.txt",
            "train/a/.3.jpg",
            "train/a/.cache/4.jpg",
            "train/.b/5.jpg",
            "train/readme",
            "test/a/6.png",
        ]
    )
    source = open_image_folder("train", str(root))
    assert listing(source, root) == [("train/a/2.Jpeg", 0), ("train/a/deep/er/1.JPG", 0)]


def test_names_of_any_bytes(make_folder):
    root = make_folder(["train/ça va/été.jpg", "test/ça va/x.jpg"])
    odd = os.fsencode(root) + b"/train/\xc3\xa7a va/\xff.jpg"
    os.link(root / "train/ça va/été.jpg", odd)
    source = open_image_folder("train", str(root))
    assert [source[i].image for i in range(2)] == [(root / "train/ça va/été.jpg").read_bytes()] * 2
    assert os.fsencode(source.describe(1)) == odd


@pytest.mark.parametrize("prefix", ["", "train/"])
def test_the_hold_out_is_stratified_and_complete(make_folder, prefix):
    files = [f"{prefix}{name}/{i:02}.jpg" for name, n in (("a", 20), ("b", 10)) for i in range(n)]
    root = make_folder(files)
    train, test = (
        listing(open_image_folder(split, str(root), 0.3, 7), root) for split in ("train", "val")
    )
    assert sorted(train + test) == sorted((file, int("b/" in file)) for file in files)
    assert [label for _, label in test] == [0] * 6 + [1] * 3
    assert train == sorted(train)
    assert test == sorted(test)
    assert listing(open_image_folder("val", str(root), 0.3, 8), root) != test


def test_a_class_may_be_called_train(make_folder):
    root = make_folder(["bus/1.jpg", "bus/2.jpg", "train/3.jpg", "train/4.jpg"])
    assert open_image_folder("train", str(root)).class_names == ("bus", "train")


def test_links_are_followed_but_not_in_circles(make_folder):
    root = make_folder(["train/a/1.jpg", "test/a/2.jpg", "elsewhere/3.jpg"])
    (root / "train/b").symlink_to(root / "elsewhere")
    assert len(open_image_folder("train", str(root))) == 2
    (root / "train/a/loop").symlink_to(root / "train")
    with pytest.raises(UserError, match="loop"):
        open_image_folder("train", str(root))


def test_files_are_not_opened_by_the_scan(make_folder):
    root = make_folder(["train/a/1.jpg", "train/a/2.jpg", "train/a/3.jpg", "test/a/1.jpg"])
    (root / "train/a/1.jpg").write_bytes(b"")
    (root / "train/a/2.jpg").unlink()
    (root / "train/a/2.jpg").symlink_to("nowhere.jpg")
    source = open_image_folder("train", str(root))
    assert len(source) == 3
    assert source[0].image == b""
    assert source.describe(1) == str(root / "train/a/2.jpg")
    with pytest.raises(decode.DamagedImage, match="No such file"):
        source[1]
    assert source[2].image


def test_it_can_be_sent_to_another_process(make_folder):
    root = make_folder(SPLIT_LAYOUT)
    source = open_image_folder("train", str(root))
    copy = pickle.loads(pickle.dumps(source))
    assert listing(copy, root) == listing(source, root)
    assert copy.class_names == source.class_names


def test_the_home_directory_is_expanded(make_folder, monkeypatch):
    root = make_folder(SPLIT_LAYOUT)
    monkeypatch.setenv("HOME", str(root.parent))
    assert len(open_image_folder("train", "~/photos")) == 3


@pytest.mark.parametrize(
    ("files", "split", "message"),
    [
        ([], "train", "holds no class folders"),
        (["1.jpg", "2.jpg"], "train", "holds no class folders"),
        (["train/a/x.txt", "test/a/1.jpg"], "train", "train/a holds no image"),
        (["train/a/1.jpg", "test/a/x.txt"], "test", "test/a holds no image"),
        (["train/a/1.jpg", "test/b/1.jpg"], "test", "test/b is a class that train lacks"),
        (["train/a/1.jpg", "test/a/1.jpg"], "tests", "'tests'"),
        (["a/1.jpg", "b/1.jpg"], "test", "nothing is left to test on"),
    ],
)
def test_mistakes_are_named(make_folder, files, split, message):
    root = make_folder(files)
    with pytest.raises(UserError, match=message) as error:
        open_image_folder(split, str(root))
    assert "\n" not in str(error.value)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(UserError, match="nowhere"):
        open_image_folder("train", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"data.path is empty"):
        open_image_folder("train", "")


def test_a_folder_that_may_not_be_read_is_named(make_folder, monkeypatch):
    root = make_folder(SPLIT_LAYOUT)
    scandir = os.scandir

    def guarded(path):
        if str(path).endswith("dog"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(image_folder.os, "scandir", guarded)
    with pytest.raises(UserError, match="train/dog cannot be read: Permission denied"):
        open_image_folder("train", str(root))


def test_split_names(make_folder):
    root = make_folder(SPLIT_LAYOUT)
    assert image_folder.split_names(str(root)) == ("train", "val")
    assert image_folder.split_names(str(root / "train")) == ("train", "test")
