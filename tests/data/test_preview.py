"""The preview shows what training will see, in a file that is complete or not there."""

import numpy as np
import pytest
from PIL import Image

from cone_jax.data import contact_sheet, datasets, sources
from cone_jax.errors import UserError
from tests.data.test_contact_sheet import solid


def test_the_file_is_written_with_its_captions(tmp_path):
    captions = ["wren", "owl", "tit", "tit"]
    path = contact_sheet.write(tmp_path / "new/preview.png", solid(4, 100), captions)
    expected = contact_sheet.draw(solid(4, 100), captions)
    np.testing.assert_array_equal(np.asarray(Image.open(path)), np.asarray(expected))
    assert [file.name for file in path.parent.iterdir()] == ["preview.png"]


@pytest.mark.parametrize("views", [1, 2])
def test_the_sheet_of_a_config_shows_the_first_samples_of_training(tmp_path, tiny_config, views):
    tiny_config.data.views = views
    path = contact_sheet.write_training_samples(tiny_config, tmp_path / "preview.png", limit=20)
    source = sources.create("digits", "train")
    batch = datasets.train_batches(tiny_config, source, num_steps=1)[0]
    names = [str(label) for label in batch["label"][:20]]  # digits are called what they are
    expected = contact_sheet.draw(batch["image"][:20], names)
    np.testing.assert_array_equal(np.asarray(Image.open(path)), np.asarray(expected))


def test_a_data_set_smaller_than_the_sheet_is_shown_whole(tmp_path, tiny_config):
    images = np.arange(5, dtype=np.uint8)[:, None, None] * np.ones((5, 8, 8), np.uint8)
    np.savez(tmp_path / "train.npz", images=images, labels=np.zeros(5, int))
    tiny_config.data.source, tiny_config.data.path = "array", str(tmp_path)
    sheet = Image.open(contact_sheet.write_training_samples(tiny_config, tmp_path / "preview.png"))
    assert {(i, i, i) for i in range(1, 5)} <= set(map(tuple, np.asarray(sheet).reshape(-1, 3)))


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/preview\.png cannot be written"):
        contact_sheet.write(tmp_path / "file/preview.png", solid(1, 8), ["a"])
