"""The FGVC-Aircraft archive, in its own layout."""

import numpy as np
import pytest
from PIL import Image

from cone_jax.data import decode, sources
from cone_jax.errors import UserError

LISTS = {"train": {"0034309": "707-320", "0034958": "F/A-18"}, "val": {"0081642": "Fokker 100"}}
LISTS["test"] = {"1234567": "707-320", "7654321": "Fokker 100"}


@pytest.fixture
def archive(tmp_path):
    data = tmp_path / "fgvc-aircraft-2013b" / "data"
    (data / "images").mkdir(parents=True)
    (data / "variants.txt").write_text("707-320\nF/A-18\nFokker 100\n")
    for part, pictures in LISTS.items():
        lines = [f"{name} {variant}\n" for name, variant in pictures.items()]
        (data / f"images_variant_{part}.txt").write_text("".join(lines))
        for name in pictures:
            pixels = np.full((60, 40, 3), 200, np.uint8)
            pixels[-20:] = 0  # the banner
            Image.fromarray(pixels).save(data / "images" / f"{name}.jpg", quality=100)
    return tmp_path / "fgvc-aircraft-2013b"


def test_parts_labels_and_names(archive):
    train = sources.create("fgvc_aircraft", "train", path=str(archive))
    assert train.class_names == ("707-320", "F/A-18", "Fokker 100")
    assert [train[i].label for i in range(len(train))] == [0, 1]
    assert train.describe(1).endswith("images/0034958.jpg")
    both = sources.create("fgvc_aircraft", "train+validation", path=str(archive / "data"))
    assert [both[i].label for i in range(len(both))] == [0, 1, 2]
    test = sources.create("fgvc_aircraft", "test", path=str(archive))
    assert [test[i].label for i in range(len(test))] == [0, 2]


def test_the_banner_is_gone(archive):
    pixels = sources.create("fgvc_aircraft", "test", path=str(archive))[0].image
    assert pixels.shape == (40, 40, 3)
    # JPEG works in blocks of 8 or 16 rows, one of which has some of both.
    assert np.all(pixels[:32] == 200)


def test_a_lost_picture_counts_as_damaged(archive):
    (archive / "data" / "images" / "1234567.jpg").unlink()
    with pytest.raises(decode.DamagedImage):
        sources.create("fgvc_aircraft", "test", path=str(archive))[0]


def test_mistakes_are_named(archive, tmp_path):
    with pytest.raises(UserError, match=r"variants\.txt cannot be read.*fgvc-aircraft-2013b"):
        sources.create("fgvc_aircraft", "train", path=str(tmp_path))
    with pytest.raises(UserError, match=r"'extra' is not a part"):
        sources.create("fgvc_aircraft", "extra", path=str(archive))
    (archive / "data" / "images_variant_val.txt").write_text("0081642 Concorde\n")
    with pytest.raises(UserError, match=r"'Concorde' of 0081642"):
        sources.create("fgvc_aircraft", "val", path=str(archive))
