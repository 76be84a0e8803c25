"""Folders in COCO's form: which layouts are found, what is dropped, what happens to damage."""

import dataclasses
import json

import numpy as np
import pytest
from PIL import Image

from cone_jax.data import datasets
from cone_jax.data.pipeline import Share
from cone_jax.data.sources import create
from cone_jax.errors import UserError
from cone_jax.training import loop
from cone_jax.training.run import Run
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


def test_a_part_without_anything_is_refused(written):
    """A held-out part takes pictures from the one to train on, not their labels."""
    file = written / "instances.json"
    content = json.loads(file.read_text())
    options = {"path": str(written), "holdout": 0.5}
    tested = ids(create("coco", "test", **options))
    for image in set(range(6)) - set(tested):
        without_objects(content, image)
    file.write_text(json.dumps(content))
    with pytest.raises(UserError, match="no image to train on has an object; label some, or set"):
        create("coco", "train", **options)
    assert len(create("coco", "train", **options, empty_images="keep")) == 3
    content["images"], kept = content["images"][:1], content["images"][0]["id"]
    content["annotations"] = [x for x in content["annotations"] if x["image_id"] == kept]
    file.write_text(json.dumps(content))
    with pytest.raises(UserError, match="a single image leaves none to test on; add images"):
        create("coco", "test", **options)


# Of a set in one part: the JSON file, the folder of its pictures, what file names begin with.
WHOLE = {
    "CVAT's": ("annotations/instances_default.json", "images/default", ""),
    "CVAT's with one folder": ("annotations/instances_default.json", "images", ""),
    "Label Studio's": ("result.json", "images", "images/"),
    "labelme2coco's": ("annotations.json", "JPEGImages", "JPEGImages/"),
    "all in one folder": ("labels.json", "", ""),
}


@pytest.mark.parametrize("layout", WHOLE)
def test_one_file_of_any_labelling_program_is_found(layout, written, tmp_path):
    file, folder, prefix = WHOLE[layout]
    root = tmp_path / "mine"
    content = json.loads((written / "instances.json").read_text())
    (root / folder).mkdir(parents=True)
    for image in content["images"]:
        (written / "images" / image["file_name"]).rename(root / folder / image["file_name"])
        image["file_name"] = prefix + image["file_name"]
    (root / file).parent.mkdir(exist_ok=True)
    (root / file).write_text(json.dumps(content))
    options = {"path": str(root), "holdout": 0.5}
    train, test = (create("coco", split, **options) for split in ("train", "test"))
    assert (len(train), len(test)) == (3, 3)
    assert sorted(ids(train) + ids(test)) == list(range(6))
    assert all(train[index].image.startswith(b"\x89PNG") for index in range(3))


def test_classes_of_parts_that_are_numbered_differently_are_matched_by_name(written, tmp_path):
    """As where a labelling program lists the categories of each part that occur in it."""
    root = tmp_path / "mine"
    (written / "images").rename(tmp_path / "images")
    root.mkdir()
    (tmp_path / "images").rename(root / "images")
    content = json.loads((written / "instances.json").read_text())
    content["categories"].insert(0, {"id": 1, "name": "ring"})
    (root / "train.json").write_text(json.dumps(content))
    discs = [x for x in content["annotations"] if x["category_id"] == 8]
    tested = {
        **content,
        "annotations": [{**x, "category_id": 1} for x in discs],
        "categories": [{"id": 1, "name": "disc"}],
    }
    (root / "val.json").write_text(json.dumps(tested))
    data = tiny(root).data
    dataset = datasets.open_dataset(data)
    assert dataset.test.class_names == dataset.train.class_names == ("ring", "square", "disc")
    assert dataset.test.category_ids == (2, 3, 1), "those of the file, then unused ones"
    found = np.concatenate([dataset.test.objects(i).classes for i in range(len(dataset.test))])
    assert found.tolist() == [3] * len(discs)
    assert dataset.test[0].label.classes.tolist() == dataset.test.objects(0).classes.tolist()
    tested["categories"][0]["name"] = "star"
    (root / "val.json").write_text(json.dumps(tested))
    with pytest.raises(UserError, match=r"classes that train lacks: \['star'\]"):
        datasets.open_dataset(data)


def test_objects_to_be_tested_on_need_masks_before_training_starts(written, tmp_path):
    content = json.loads((written / "instances.json").read_text())
    (written / "train.json").write_text(json.dumps(content))
    del content["annotations"][0]["segmentation"]
    (written / "val.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"000\.png has one without a segmentation; add it, or set"):
        Run.open(tiny(written))


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
    with pytest.raises(UserError, match=r"file_name \(\"000.png\"\) must be a file in .*written;"):
        create("coco", "train", path=str(written))
    (written / "instances.json").rename(written / "train.json")
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


def test_what_was_put_right_in_the_labels_is_said_before_training(written):
    """And which classes nothing can be learnt of."""
    content = json.loads((written / "instances.json").read_text())
    content["categories"].append({"id": 11, "name": "star"})
    first, second = content["annotations"][:2]
    first["bbox"][2:], second["bbox"][2] = [500, 500], 0
    without_objects(content, 5)
    (written / "train.json").write_text(json.dumps(content))
    (written / "val.json").write_text(json.dumps(content))
    said = []
    config = tiny(written)
    datasets.check_classes(datasets.open_dataset(config.data), config.data, said.append)
    assert said == [
        f"data.path ({written}): boxes clipped to their picture: 1, boxes without area dropped: 1, "
        "pictures without an object dropped: 1",
        f"data.path ({written}): warning: 1 of 3 classes have no object to train on, such as "
        "'star'",
    ]
    (written / "val.json").write_text(json.dumps({**content, "annotations": []}))
    datasets.check_classes(datasets.open_dataset(config.data), config.data, said.append)
    assert said[-1].endswith("no picture to test on has an object, so there will be no AP")
    assert len(said) == 5


def test_pictures_that_cannot_be_used_are_found_before_training(tmp_path):
    """As those of a classifier are; another size would come out in the middle of the training."""
    root = shapes.write(tmp_path / "shapes", 24)
    run, said = Run.open(tiny(root)), []
    path = run.dataset.train.objects(5).path
    path.write_bytes(path.read_bytes()[:60])
    loop._look_before_training(run, said.append)
    assert any(line.startswith(f"unreadable: {path}: ") for line in said)
    assert "1 of 18 pictures cannot be read" in said
    Image.new("RGB", (5, 7)).save(path)
    with pytest.raises(UserError, match=r"5 x 7 pixels, but the JSON's width and height are"):
        loop._look_before_training(run, said.append)
    one_of_two = dataclasses.replace(run, share=Share(0, 2))  # the other would wait for ever
    loop._look_before_training(one_of_two, said.append)
    assert any(line.startswith(f"warning: {path}: 5 x 7 pixels") for line in said)
    for index in range(len(run.dataset.train)):
        run.dataset.train.objects(index).path.write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"18 of 18 images .*; repair the files or raise the limit"):
        loop._look_before_training(run, said.append)
