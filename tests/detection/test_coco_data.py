"""COCO's files: what is read, what is put right, what is refused, and how it is judged."""

import copy
import json

import jax
import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools import mask as coco_mask

from cone_jax import detection
from cone_jax.data import masks as mask_lib
from cone_jax.data import objects
from cone_jax.data.sources import coco
from cone_jax.errors import UserError
from cone_jax.evaluation import coco_metric
from tests.detection import torchvision_oracle

pytestmark = pytest.mark.optimised
paste_masks_in_image = (
    torchvision_oracle.torchvision.models.detection.roi_heads.paste_masks_in_image
)
HEIGHT, WIDTH = 40, 60
L_SHAPE = [[10.0, 5.0, 30.0, 5.0, 30.0, 15.0, 20.0, 15.0, 20.0, 25.0, 10.0, 25.0]]


@pytest.fixture
def content(tmp_path):
    """Three pictures: a polygon and a crowd; a box beyond the border and one without area; none."""
    for name in ("a.png", "b.png", "c.png"):
        Image.new("RGB", (WIDTH, HEIGHT), (200, 100, 50)).save(tmp_path / name)
    square = [[40.0, 20.0, 70.0, 20.0, 70.0, 30.0, 40.0, 30.0]]
    crowd = {"size": [HEIGHT, WIDTH], "counts": [400, 100, HEIGHT * WIDTH - 500]}
    sizes = {"height": HEIGHT, "width": WIDTH}
    return {
        "images": [
            {"id": 7, "file_name": "a.png", **sizes},
            {"id": 3, "file_name": "b.png", **sizes},
            {"id": 9, "file_name": "c.png", **sizes},
        ],
        "categories": [{"id": 18, "name": "dog"}, {"id": 2, "name": "bicycle"}],
        "annotations": [
            _object(1, 7, 18, [10, 5, 20, 20], L_SHAPE),
            _object(2, 7, 2, [10, 0, 3, 40], crowd) | {"iscrowd": 1},
            _object(3, 3, 2, [40, 20, 30, 10], square),
            _object(4, 3, 2, [5, 5, 0, 10], square),
        ],
    }


def _object(number, image, category, box, segmentation):
    return {
        "id": number,
        "image_id": image,
        "category_id": category,
        "bbox": box,
        "area": float(box[2] * box[3]),
        "segmentation": segmentation,
    }


def written(content, folder):
    path = folder / "instances.json"
    path.write_text(json.dumps(content))
    return path


def test_records_hold_what_the_file_says(content, tmp_path):
    data = coco.read(written(content, tmp_path), tmp_path)
    assert (data.category_ids, data.names) == ((2, 18), ("bicycle", "dog"))
    second, first = data.records
    assert (first.image_id, second.image_id) == (7, 3)
    assert first.boxes.tolist() == [[10, 5, 30, 25], [10, 0, 13, 40]]
    assert first.classes.tolist() == [2, 1]
    assert first.crowd.tolist() == [False, True]
    assert second.boxes.tolist() == [[40, 20, 60, 30]], "clipped at the border"
    assert (data.clipped_boxes, data.dropped_boxes, data.dropped_images) == (1, 1, 1)


def test_images_without_an_object_are_kept_on_request(content, tmp_path):
    data = coco.read(written(content, tmp_path), tmp_path, keep_empty=True)
    assert [record.image_id for record in data.records] == [3, 7, 9]
    example = coco.load(data.records[2])
    assert example.boxes.shape == (0, 4)
    batch = objects.stack([example], (64, 64), objects=3)
    assert not batch["valid"].any()


def set_field(section, index, field, value):
    return lambda content: content[section][index].__setitem__(field, value)


BAD = [
    (
        set_field("images", 1, "file_name", "missing.png"),
        r'images\[1\].file_name \("missing.png"\)',
    ),
    (set_field("images", 0, "file_name", "../a.png"), r"images\[0\].file_name .* a name below"),
    (set_field("images", 0, "width", 0), r"images\[0\].width \(0\) must be at least 1"),
    (set_field("images", 0, "height", "40"), r"height \(\"40\"\) must be a whole number"),
    (set_field("images", 1, "id", 7), r"images\[1\].id \(7\) must be unique"),
    (set_field("categories", 1, "id", 18), r"categories\[1\].id \(18\) must be unique"),
    (set_field("categories", 0, "name", ""), r"categories\[0\].name"),
    (set_field("annotations", 0, "image_id", 99), r"annotations\[0\].image_id \(99\)"),
    (set_field("annotations", 0, "category_id", 99), r"annotations\[0\].category_id \(99\)"),
    (set_field("annotations", 1, "id", 1), r"annotations\[1\].id \(1\) must be unique"),
    (set_field("annotations", 0, "bbox", [1, 2, 3]), r"annotations\[0\].bbox .* four numbers"),
    (set_field("annotations", 0, "bbox", [1, 2, -3, 4]), r"sides of at least 0"),
    (set_field("annotations", 0, "bbox", [1, 2, float("nan"), 4]), r"four numbers"),
    (set_field("annotations", 0, "bbox", [0, 0, 1e39, 5]), r"within 100,000 pixels"),
    (set_field("annotations", 0, "bbox", [0, 0, 10**400, 5]), r"within 100,000 pixels"),
    (set_field("annotations", 0, "area", 10**400), r"area .* must be a number"),
    (set_field("annotations", 0, "iscrowd", 2), r"iscrowd \(2\) must be 0 or 1"),
    (set_field("annotations", 0, "segmentation", []), r"or read without masks"),
    (set_field("annotations", 0, "segmentation", [[1, 2, 3, 4]]), r"three points or more"),
    (
        set_field("annotations", 0, "segmentation", {"size": [1, 1], "counts": "0"}),
        r"size \[40, 60\]",
    ),
    (
        set_field("annotations", 0, "segmentation", {"size": None, "counts": "0"}),
        r"size \[40, 60\]",
    ),
    # pycocotools would fill the memory with the outline of this one.
    (
        set_field("annotations", 0, "segmentation", [[1e12, 2, 11, 2, 11, 12]]),
        r"within 100,000 pixels",
    ),
    *(
        (
            set_field("annotations", 1, "segmentation", {"size": [HEIGHT, WIDTH], "counts": runs}),
            r"add up to 40 x 60 pixels",
        )
        for runs in (
            *([], [400, 100], [-5, 2405], [2**40], [None], ["2400"], [2400.0]),
            *("", "22", "zz", "\x00", "é", "~" * 10_000),  # compressed
        )
    ),
    (set_field("images", 0, "file_name", "a" * 5000), r"images\[0\].file_name .* a file in"),
    (lambda content: content.pop("categories"), r"categories must be a list"),
    (lambda content: content["categories"].clear(), r"categories is empty"),
    (lambda content: content["images"].clear(), r"images is empty; list"),
    (
        lambda content: content["annotations"].clear(),
        r"no image to train on has an object; label some, or set data.empty_images to 'keep'",
    ),
]


@pytest.mark.parametrize(("change", "said"), BAD)
def test_what_is_malformed_is_refused_in_one_line(content, tmp_path, change, said):
    change(content)
    path = written(content, tmp_path)
    with pytest.raises(UserError, match=said) as caught:
        coco.read(path, tmp_path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_byte_order_mark_is_no_harm(content, tmp_path):
    """Programs on Windows write one."""
    path = written(content, tmp_path)
    expected = coco.read(path, tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    found = coco.read(path, tmp_path)
    assert found.names == expected.names
    assert len(found.records) == len(expected.records)


def test_files_that_are_not_json_or_not_pictures_are_refused(content, tmp_path):
    with pytest.raises(UserError, match="No such file"):
        coco.read(tmp_path / "none.json", tmp_path)
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(UserError, match="not JSON"):
        coco.read(tmp_path / "broken.json", tmp_path)
    (tmp_path / "deep.json").write_text("[" * 200_000)
    with pytest.raises(UserError, match="not JSON"):
        coco.read(tmp_path / "deep.json", tmp_path)
    data = coco.read(written(content, tmp_path), tmp_path)
    (tmp_path / "a.png").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"a\.png: not a readable picture"):
        coco.load(data.records[1])
    Image.new("RGB", (5, 5)).save(tmp_path / "a.png")
    with pytest.raises(UserError, match="5 x 5 pixels, but"):
        coco.load(data.records[1])


@pytest.mark.parametrize("turned", [False, True])
def test_photographs_are_the_way_up_that_they_were_labelled(content, tmp_path, turned):
    """A camera's picture of 60 x 40 that asks to be turned: labelled as stored, or as shown."""
    rows = np.arange(HEIGHT, dtype=np.uint8)[:, None, None]
    stored = np.broadcast_to(5 * rows, (HEIGHT, WIDTH, 3))
    exif = Image.Exif()
    exif[0x0112] = 6  # clockwise
    Image.fromarray(stored).save(tmp_path / "a.png", exif=exif)
    if turned:
        content["images"][0].update(height=WIDTH, width=HEIGHT)
        del content["annotations"][1]  # its runs are of the other size
    (record,) = [
        each
        for each in coco.read(written(content, tmp_path), tmp_path).records
        if each.image_id == 7
    ]
    expected = np.rot90(stored, -1) if turned else stored
    np.testing.assert_array_equal(coco.load(record).image, expected)


@pytest.mark.parametrize("form", ["polygons", "uncompressed", "compressed"])
def test_segmentations_are_decoded_as_by_pycocotools(form, content):
    rng = np.random.default_rng(0)
    bitmap = np.kron(rng.uniform(size=(8, 10)) > 0.5, np.ones((5, 6))).astype(np.uint8)
    if form == "polygons":
        code = L_SHAPE
        bitmap[:] = 0
        bitmap[5:15, 10:30] = bitmap[5:25, 10:20] = 1
    elif form == "compressed":
        code = mask_lib.encode_mask(bitmap.astype(bool))
    else:
        code = content["annotations"][1]["segmentation"]
        bitmap = np.zeros(HEIGHT * WIDTH, np.uint8)
        bitmap[400:500] = 1
        bitmap = bitmap.reshape(WIDTH, HEIGHT).T
    np.testing.assert_array_equal(coco.decode_mask(code, (HEIGHT, WIDTH)), bitmap)


def test_run_lengths_survive_the_way_there_and_back():
    rng = np.random.default_rng(1)
    for side in (1, 7, 300):
        mask = rng.uniform(size=(side, side + 1)) > rng.uniform()
        code = coco_mask.encode(np.asfortranarray(mask, dtype=np.uint8))["counts"]
        np.testing.assert_array_equal(mask_lib.decode_mask(code, mask.shape), mask)


def test_masks_are_pasted_as_by_torchvision():
    rng = np.random.default_rng(2)
    masks = rng.uniform(size=(30, 28, 28)).astype(np.float32)
    low = rng.uniform(-5, 35, size=(30, 2))
    boxes = np.concatenate([low, low + rng.uniform(0, 40, size=(30, 2))], axis=1)
    boxes = boxes.astype(np.float32)
    theirs = paste_masks_in_image(
        torch.from_numpy(masks)[:, None], torch.from_numpy(boxes), (HEIGHT, WIDTH)
    )[:, 0].numpy()
    for mask, box, expected in zip(masks, boxes, theirs, strict=True):
        ours = mask_lib.paste_mask(mask, box, (HEIGHT, WIDTH), threshold=None)
        np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_targets_from_cropped_masks_are_those_from_whole_bitmaps(content, tmp_path):
    """The compact form costs little: of the targets' pixels one in a hundred differs."""
    rng = np.random.default_rng(3)
    y, x = np.mgrid[:400, :600]
    bitmap = ((x - 250) / 180) ** 2 + ((y - 200) / 130) ** 2 + 0.3 * np.sin(x / 25) < 1
    box = np.array([x[bitmap].min(), y[bitmap].min(), x[bitmap].max() + 1, y[bitmap].max() + 1])
    crop, frame = objects.crop_mask(bitmap, box)
    shifts = rng.normal(scale=20, size=(50, 4))
    boxes = (box + shifts).astype(np.float32)

    def targets(mask, frame):
        cropped = jax.jit(lambda m, f, b: detection.crop_masks(m, f, b, output_size=28))(
            np.tile(mask.astype(np.float32), (50, 1, 1)),
            np.tile(np.asarray(frame, np.float32), (50, 1)),
            boxes,
        )
        return np.asarray(cropped)

    exact, compact = targets(bitmap, [0, 0, 600, 400]), targets(crop / 255, frame)
    assert np.abs(exact - compact).mean() < 2e-3
    assert ((exact >= 0.5) != (compact >= 0.5)).mean() < 0.01


def test_transforms_move_picture_boxes_and_masks_together(content, tmp_path):
    """A mask drawn after the transformations lies on the pixels that it was on before."""
    record = coco.read(written(content, tmp_path), tmp_path).records[1]
    bitmap = coco.decode_mask(L_SHAPE, record.size)
    picture = np.where(bitmap[..., None], 255, 0).astype(np.uint8).repeat(3, axis=2)
    Image.fromarray(picture).save(record.path)
    example = objects.flip(objects.resize(coco.load(record), short=80, long=200))
    assert example.size == (80, 120)
    assert example.boxes[0].tolist() == [60, 10, 100, 50]
    frame = np.round(example.frames[0]).astype(int)
    sides = (frame[2] - frame[0], frame[3] - frame[1])
    drawn = np.asarray(Image.fromarray(np.ascontiguousarray(example.masks[0])).resize(sides))
    shown = example.image[frame[1] : frame[3], frame[0] : frame[2], 0]
    assert np.abs(drawn.astype(int) - shown).mean() < 10
    batch = objects.stack([example], (96, 128), objects=1)
    assert batch["image"][0, 79, 119].any() == example.image[-1, -1].any()
    assert not batch["image"][0, 80:].any()
    assert batch["size"].tolist() == [[80, 120]]
    assert batch["boxes"][0].tolist() == [[60, 10, 100, 50]], "the largest object stays"


def perfect(data, masks=True):
    """Detections that repeat the ground truth, as a detector would give them."""
    records = [r for r in data.records if not np.all(r.crowd)]
    shape = (len(records), 2)
    boxes, classes = np.zeros((*shape, 4), np.float32), np.ones(shape, np.int32)
    valid, crops = np.zeros(shape, bool), np.zeros((*shape, 28, 28), np.float32)
    for place, record in enumerate(records):
        box = record.boxes[0]
        boxes[place, 0], classes[place, 0], valid[place, 0] = 2 * box, record.classes[0], True
        bitmap = coco.decode_mask(record.segmentations[0], record.size).astype(np.float32)
        crops[place, 0] = detection.crop_masks(
            bitmap[None], np.array([[0, 0, WIDTH, HEIGHT]], np.float32), box[None], output_size=28
        )[0]
    scores = np.where(valid, 0.9, 0).astype(np.float32)
    found = detection.Detections(boxes, scores, classes, valid, crops)
    sizes = np.array([[2 * HEIGHT, 2 * WIDTH]] * len(records))
    return coco_metric.results(
        [r.image_id for r in records],
        [r.size for r in records],
        sizes,
        found,
        data.category_ids,
        masks=masks,
    )


def test_what_repeats_the_ground_truth_scores_100(content, tmp_path):
    content["annotations"] = content["annotations"][:3]
    content["annotations"][2]["bbox"] = [40, 20, 20, 10]  # inside, as the reader clips it
    content["annotations"][2]["segmentation"] = [[40, 20, 60, 20, 60, 30, 40, 30]]
    data = coco.read(written(content, tmp_path), tmp_path)
    found = perfect(data)
    assert {entry["category_id"] for entry in found} == {2, 18}
    for kind in ("bbox", "segm"):
        score = coco_metric.evaluate(content, found, kind=kind)
        assert score.summary["ap50"] == pytest.approx(100)
        assert score.per_class.keys() == {2, 18}
    boxes = coco_metric.evaluate(content, found, kind="bbox")
    assert boxes.summary["ap"] == pytest.approx(100)
    assert np.isnan(boxes.summary["ap_large"]), "there is none"
    assert boxes.precision.shape == (10, 101, 2)


def test_an_object_with_the_id_0_can_be_found(content, tmp_path):
    """pycocotools takes a match with it for none; labelling programs do count from 0."""
    data = coco.read(written(content, tmp_path), tmp_path)
    found = perfect(data, masks=False)
    content["annotations"][0]["id"] = 0
    alone = coco_metric.evaluate(content, found, kind="bbox", image_ids=[7])
    assert alone.per_class[18] == pytest.approx(100)


def test_nothing_found_scores_0_and_false_boxes_cost(content, tmp_path):
    data = coco.read(written(content, tmp_path), tmp_path)
    assert coco_metric.evaluate(content, [], kind="bbox").summary["ap"] == 0
    found = perfect(data, masks=False)
    alone = coco_metric.evaluate(content, found, kind="bbox", image_ids=[7])
    assert alone.per_class[18] == pytest.approx(100)
    false = copy.deepcopy(found)
    for entry in false:
        entry.update(bbox=[0, 0, 5, 5], score=0.99)
    both = coco_metric.evaluate(content, [*found, *false], kind="bbox", image_ids=[7])
    assert both.per_class[18] == pytest.approx(50, abs=1)
