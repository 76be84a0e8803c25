"""The overfitting study: which pictures it takes, and that its settings are valid."""

import argparse
import json

import pytest
from PIL import Image

from cone_jax import config as config_lib
from cone_jax import runtime
from tests.conftest import ROOT

with pytest.MonkeyPatch.context() as patch:
    # The environment of a program is not that of the tests.
    patch.setattr(runtime, "set_up", lambda: None)
    patch.syspath_prepend(str(ROOT / "benchmarks"))
    import study_detection


@pytest.fixture
def data(tmp_path):
    """Pictures of 100 pixels: (id, areas of its objects, crowd)."""
    pictures = [
        (1, [50], 0),
        (2, [90, 10], 0),
        (3, [80], 1),
        (4, [20], 0),
        (5, [99] * 6, 0),
        (6, [], 0),
    ]
    (tmp_path / "images").mkdir()
    content = {"images": [], "annotations": [], "categories": [{"id": 1, "name": "thing"}]}
    for number, areas, crowd in pictures:
        name = f"{number}.png"
        Image.new("RGB", (10, 10)).save(tmp_path / "images" / name)
        content["images"].append({"id": number, "file_name": name, "height": 10, "width": 10})
        content["annotations"] += [
            {"image_id": number, "area": area, "iscrowd": crowd} for area in areas
        ]
    (tmp_path / "instances.json").write_text(json.dumps(content))
    return tmp_path


def test_the_pictures_are_those_with_the_largest_smallest_object(data, tmp_path):
    target = study_detection.write_subset(data, tmp_path / "subset", 2)
    for part in ("train", "val"):
        content = json.loads((target / f"{part}.json").read_text())
        assert [image["id"] for image in content["images"]] == [1, 4]
        assert [each["image_id"] for each in content["annotations"]] == [1, 4]
    assert sorted(path.name for path in (target / "images").iterdir()) == ["1.png", "4.png"]


@pytest.mark.parametrize("neck", ["fpn", "c4"])
def test_the_settings_are_valid(neck, tmp_path):
    arguments = argparse.Namespace(
        neck=neck, side=128, steps=40, batch=8, pictures=16, rate=1e-3, seed=0, init_from=""
    )
    config = study_detection.settings(arguments, tmp_path)
    config_lib.validate(config)
    assert config.objective.detection.neck == neck
    assert config.evaluation.every_epochs == 2.5, "eight evaluations of 20 epochs"
