import io
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from cone_jax.data import decode
from cone_jax.data.sources import CachedSource, Record


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


class ListSource:
    """Records from a list; counts how often each is read."""

    class_names = ("a", "b")

    def __init__(self, images):
        self.images = images
        self.reads = [0] * len(images)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        self.reads[index] += 1
        return Record(self.images[index], index % 2)

    def describe(self, index):
        return f"list[{index}]"


@pytest.fixture
def pictures():
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (h, w, 3), np.uint8) for h, w in ((4, 5), (10, 10), (6, 3))]


def test_small_pictures_are_decoded_once_and_large_ones_never(pictures):
    inner = ListSource([png(picture) for picture in pictures])
    # 100 bytes each: 4x5x3 = 60 and 6x3x3 = 54 fit, 10x10x3 = 300 does not.
    source = CachedSource(inner, max_bytes=300)
    for _ in range(3):
        for index in (2, 0, 1):
            image, label = source[index]
            assert label == index % 2
            if index == 1:
                assert image == inner.images[1]
            else:
                np.testing.assert_array_equal(image, pictures[index])
    assert inner.reads == [1, 3, 1]
    assert len(source) == 3
    assert source.class_names == ("a", "b")
    assert source.describe(1) == "list[1]"


def test_a_picture_of_exactly_its_share_is_kept(pictures):
    data = [png(pictures[0])] * 2
    assert isinstance(CachedSource(ListSource(data), max_bytes=120)[0].image, np.ndarray)
    assert CachedSource(ListSource(data), max_bytes=119)[0].image == data[0]


def test_what_is_kept_cannot_be_spoilt(pictures):
    source = CachedSource(ListSource([png(pictures[0])]), max_bytes=1000)
    with pytest.raises(ValueError, match="read-only"):
        source[0].image[0, 0, 0] = 1


def test_damaged_and_decoded_records_pass_through(pictures):
    damaged = png(pictures[0])[:40]
    inner = ListSource([damaged, pictures[1], png(pictures[2])])
    source = CachedSource(inner, max_bytes=10**6, max_pixels=17)
    assert source[0].image == damaged
    assert source[1].image is pictures[1]
    assert source[2].image == inner.images[2]  # 18 pixels: the reader will refuse it
    with pytest.raises(decode.DamagedImage):
        decode.open_image(source[2].image, max_pixels=17)


def test_threads_read_the_same(pictures):
    source = CachedSource(ListSource([png(pictures[i % 3]) for i in range(12)]), max_bytes=10**6)
    with ThreadPoolExecutor(8) as pool:
        for index, record in enumerate(pool.map(source.__getitem__, list(range(12)) * 5)):
            np.testing.assert_array_equal(record.image, pictures[index % 12 % 3])


def test_another_process_starts_with_an_empty_cache(pictures):
    source = CachedSource(ListSource([png(pictures[1])] * 50), max_bytes=10**6)
    empty = len(pickle.dumps(source))
    for index in range(50):
        source[index]
    assert len(pickle.dumps(source)) - empty < 1000
    copy = pickle.loads(pickle.dumps(source))
    np.testing.assert_array_equal(copy[7].image, pictures[1])


def test_where_pictures_are_wanted_as_stored_those_to_be_turned_stay_encoded(pictures):
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    Image.fromarray(pictures[0]).save(buffer, "JPEG", exif=exif)
    turned = buffer.getvalue()
    inner = ListSource([turned, png(pictures[1])])
    source = CachedSource(inner, max_bytes=10**6, upright=False)
    assert source[0].image == turned
    np.testing.assert_array_equal(source[1].image, pictures[1])
    assert CachedSource(inner, max_bytes=10**6)[0].image.shape == (5, 4, 3)
