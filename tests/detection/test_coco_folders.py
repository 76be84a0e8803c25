"""Folders in COCO's form: which layouts are found, what is dropped, what happens to damage."""

import json

import numpy as np
import pytest

from cone_jax.data import datasets
from cone_jax.data.sources import create
from cone_jax.errors import UserError
from tests.detection import shapes
from tests.detection.test_detector_training import tiny

# Of a layout: the JSON files of training and test, and the folders of their pictures.
LAYOUTS = {
    "COCO's": (
        *("annotations/instances_train2017.json", "train2017"),
        *("annotations/instances_val2017.json", "val2017"),
    ),
    "COCO's without a year": (
        *("annotations/instances_train.json", "images/train"),
        *("annotations/instances_val.json", "images/val"),
    ),
    "COCO's with one folder": (
        *("annotations/instances_train.json", "images"),
        *("annotations/instances_val.json", "images"),
    ),
    "a labelling program's": (
        *("train/_annotations.coco.json", "train"),
        *("valid/_annotations.coco.json", "valid"),
    ),
    "two files and two folders": ("train.json", "train", "val.json", "val"),
    "two files and one folder": ("train.json", "images", "val.json", "images"),
}


@pytest.fixture
def written(tmp_path):
    return shapes.write(tmp_path / "written", 6, standing=False)


def ids(source):
    return [source.objects(index).image_id for index in range(len(source))]


def without_objects(content, image):
    content["annotations"] = [x for x in content["annotations"] if x["image_id"] != image]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_found(layout, written, tmp_path):
    """Of the pictures without an object only that of training is dropped."""
    root = tmp_path / "mine"
    train, train_folder, test, test_folder = LAYOUTS[layout]
    for file, folder, kept, empty in (
        (train, train_folder, range(4), (1,)),
        (test, test_folder, range(4, 6), (4, 5)),
    ):
        content = json.loads((written / "instances.json").read_text())
        for image in empty:
            without_objects(content, image)
        content["images"] = [each for each in content["images"] if each["id"] in kept]
        content["annotations"] = [x for x in content["annotations"] if x["image_id"] in kept]
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(json.dumps(content))
        (root / folder).mkdir(parents=True, exist_ok=True)
        for image in content["images"]:
            picture = (written / "images" / image["file_name"]).read_bytes()
            (root / folder / image["file_name"]).write_bytes(picture)
    found = create("coco", "train", path=str(root))
    assert ids(found) == [0, 2, 3]
    assert found[0].image == (written / "images" / "000.png").read_bytes()
    assert ids(create("coco", "train", path=str(root), empty_images="keep")) == [0, 1, 2, 3]
    assert ids(create("coco", "test", path=str(root))) == [4, 5]


def test_of_one_file_a_part_is_held_out(written):
    content = json.loads((written / "instances.json").read_text())
    for image in range(5):
        without_objects(content, image)
    (written / "instances.json").write_text(json.dumps(content))
    options = {"path": str(written), "holdout": 0.5}
    train, test = (create("coco", split, **options) for split in ("train", "test"))
    assert len(test) == 3
    assert set(ids(train)) == {5} - set(ids(test)), "what holds no object is not trained on"
    whole = create("coco", "train", **options, empty_images="keep")
    assert sorted(ids(whole) + ids(test)) == list(range(6))


def test_folders_without_what_is_needed_are_refused_in_one_line(written, tmp_path):
    for path, said in (
        ("", "data.path is empty"),
        (tmp_path / "none", "is not a folder"),
        (tmp_path, "has no JSON file of 'train'; expected"),
    ):
        with pytest.raises(UserError, match=said) as caught:
            create("coco", "train", path=str(path))
        assert "\n" not in str(caught.value)
    (written / "images").rename(written / "pictures")
    with pytest.raises(UserError, match=r"has no folder of pictures; expected .*images"):
        create("coco", "train", path=str(written))


def test_a_damaged_picture_is_replaced_in_training_and_black_in_a_test(tmp_path):
    root = shapes.write(tmp_path / "shapes", 12, standing=False)
    config = tiny(root, **{"data.threads": 1})
    parts = {split: datasets.open_split(config.data, split) for split in ("train", "test")}
    damaged = {split: source.objects(0).path for split, source in parts.items()}
    for path in damaged.values():
        path.write_bytes(path.read_bytes()[:60])
    batches = datasets.train_batches(config, parts["train"], num_steps=3)
    seen = [batches[step] for step in range(3)]
    reported = {int(each) for batch in seen for each in batch["damaged"] if each >= 0}
    assert reported == {0}
    assert 0 not in {int(each) for batch in seen for each in batch["id"]}
    first = datasets.eval_batches(config, parts["test"])[0]
    place = first["id"].tolist().index(0)
    assert first["damaged"][place] == 0
    assert first["mask"][place], "what is missed on it counts"
    height, width = first["size"][place]
    assert not np.any(first["image"][place, :height, :width])
