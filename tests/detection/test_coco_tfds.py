"""TFDS's ``coco/2017``: boxes in pixels, crowds, empty pictures, COCO's ids; and no masks."""

import dataclasses
import io
import pickle
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from cone_jax.data.sources import coco_source, create
from cone_jax.errors import UserError

HEIGHT, WIDTH = 40, 60
# Per picture: its id, and objects as x, y, width, height, TFDS's label, crowd.
PICTURES = {
    "train": [
        (139, [((10, 5, 20, 20), 16, False), ((0, 0, 30, 40), 0, True)]),
        (285, []),
        (632, [((6.5, 20, 30, 10.25), 79, False), ((3, 3, 0, 5), 1, False)]),
        (724, [((1, 2, 3, 4), 0, True)]),
    ],
    "validation": [(885, [((12, 8, 24, 16), 2, False)]), (900, [])],
}
KEYS = {"path": "", "name": "coco/2017", "label_key": "objects"}


@dataclasses.dataclass
class _Config(tfds.core.BuilderConfig):
    pass


class Coco(tfds.core.GeneratorBasedBuilder):
    """The features of TFDS's own builder of this name."""

    VERSION = tfds.core.Version("1.1.0")
    BUILDER_CONFIGS = [_Config(name="2017")]  # noqa: RUF012 - TFDS's interface
    folder = None

    def _info(self):
        objects = {
            "area": tfds.features.Scalar(np.int64),
            "bbox": tfds.features.BBoxFeature(),
            "id": tfds.features.Scalar(np.int64),
            "is_crowd": tfds.features.Scalar(np.bool_),
            "label": tfds.features.ClassLabel(names=[f"thing {k}" for k in range(80)]),
        }
        features = {
            "image": tfds.features.Image(encoding_format="jpeg"),
            "image/filename": tfds.features.Text(),
            "image/id": tfds.features.Scalar(np.int64),
            "objects": tfds.features.Sequence(objects),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(split) for split in PICTURES}

    def _generate_examples(self, split):
        for number, objects in PICTURES[split]:
            path = self.folder / f"{number:012}.jpg"
            Image.new("RGB", (WIDTH, HEIGHT), (number % 256, 100, 50)).save(path)
            yield (
                number,
                {
                    "image": path,
                    "image/filename": path.name,
                    "image/id": number,
                    "objects": [
                        {
                            "area": int(w * h),
                            "bbox": tfds.features.BBox(
                                y / HEIGHT, x / WIDTH, (y + h) / HEIGHT, (x + w) / WIDTH
                            ),
                            "id": place,
                            "is_crowd": crowd,
                            "label": label,
                        }
                        for place, ((x, y, w, h), label, crowd) in enumerate(objects)
                    ],
                },
            )


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    tfds.disable_progress_bar()
    Coco.folder = tmp_path_factory.mktemp("pictures")
    folder = tmp_path_factory.mktemp("tfds")
    builder = Coco(config="2017", data_dir=folder, file_format="array_record")
    builder.download_and_prepare(
        download_config=tfds.download.DownloadConfig(try_download_gcs=False)
    )
    return str(folder)


@pytest.fixture
def opened(data_dir):
    return lambda split, **options: create("tfds", split, **KEYS | {"path": data_dir} | options)


def by_id(source):
    records = (coco_source.objects_of(source, index) for index in range(len(source)))
    return {record.image_id: record for record in records}


def test_objects_are_those_of_the_builder_in_pixels(opened):
    records = by_id(opened("train"))
    first, second = records[139], records[632]
    assert (first.size, first.classes.tolist()) == ((HEIGHT, WIDTH), [17, 1])
    assert first.crowd.tolist() == [False, True]
    np.testing.assert_allclose(first.boxes, [[10, 5, 30, 25], [0, 0, 30, 40]], atol=1e-4)
    np.testing.assert_allclose(second.boxes, [[6.5, 20, 36.5, 30.25]], atol=1e-4)
    np.testing.assert_allclose(second.stated, [[6.5, 20, 30, 10.25]], atol=1e-4)
    assert second.areas.tolist() == [307], "TFDS stores whole pixels"
    assert second.path.name == "000000000632.jpg"
    assert "tensorflow" not in sys.modules


def test_pictures_belong_to_their_objects_here_and_in_other_processes(opened):
    source = opened("train")
    for each in (source, pickle.loads(pickle.dumps(source))):
        for index in range(len(each)):
            image, record = each[index]
            assert image.startswith(b"\xff\xd8")
            shown = np.asarray(Image.open(io.BytesIO(image)))[0, 0, 0]
            assert abs(int(shown) - record.image_id % 256) <= 3
    assert source.describe(0).startswith("coco/2017/1.1.0/train[")


def test_empty_pictures_are_dropped_from_training_alone(opened):
    assert sorted(by_id(opened("train"))) == [139, 632], "a crowd is not an object"
    assert sorted(by_id(opened("train", empty_images="keep"))) == [139, 285, 632, 724]
    assert sorted(by_id(opened("validation"))) == [885, 900]


def test_categories_have_cocos_ids(opened):
    ids = opened("validation").category_ids
    assert (len(ids), ids[0], ids[11], ids[-1]) == (80, 1, 13, 90)


def test_a_set_without_the_feature_is_refused(opened):
    with pytest.raises(UserError, match=r"data.label_key \('label'\) is not in coco/2017"):
        opened("train", label_key="label")
    with pytest.raises(UserError, match="split 'test' is not an expression"):
        opened("test")
