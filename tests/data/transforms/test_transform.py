"""What every operation promises, whatever the image: uint8 RGB, no surprise, no side effect."""

import concurrent.futures
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from cone_jax.data import decode, transforms
from cone_jax.data.transforms import parsing

EXAMPLES = (
    "random_resized_crop(17, scale=(0.08, 1))",
    "resize(9)",
    "centre_crop((12, 7))",
    "random_crop(16, padding=3)",
    "flip(1)",
    "colour_jitter(0.8, 0.8, 0.8, 0.2)",
    "grey(1)",
    "blur(1)",
    "auto_augment('imagenet')",
    "auto_augment('cifar10')",
    "auto_augment('v0')",
    "rand_augment(3, 30)",
    "rand_augment(3, 10, form='timm')",
    "rand_augment(3, 9, form='timm', increasing=True)",
    "rand_augment(3, 10, form='tf')",
    "cutout(5)",
    "random_erasing(1)",
    "random_erasing(1, fill='mean')",
)


def test_the_examples_cover_every_operation() -> None:
    assert {spec.split("(")[0] for spec in EXAMPLES} == set(parsing.OPERATIONS)


def forms(array: np.ndarray) -> list[object]:
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    return [array, Image.fromarray(array), decode.open_image(buffer.getvalue())]


@pytest.mark.parametrize("spec", EXAMPLES)
@settings(deadline=None, max_examples=25)
@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    seed=st.integers(0, 10_000),
    flat=st.booleans(),
)
def test_every_operation_on_images_of_any_size(
    spec: str, shape: tuple[int, int], seed: int, flat: bool
) -> None:
    array = np.random.default_rng(seed).integers(0, 256, (*shape, 3), np.uint8)
    if flat:
        array[:] = array[0, 0]
    original = array.copy()
    pipeline = transforms.parse((spec,))
    results = [pipeline(form, np.random.default_rng(seed)) for form in forms(array)]
    for result in results:
        assert result.dtype == np.uint8
        assert result.shape == (*pipeline.output_size(shape), 3)
        assert result.flags.c_contiguous
        np.testing.assert_array_equal(result, results[0])
    np.testing.assert_array_equal(array, original)


def test_no_transforms_give_the_image_itself() -> None:
    array = np.random.default_rng(0).integers(0, 256, (5, 6, 3), np.uint8)
    for form in forms(array):
        np.testing.assert_array_equal(transforms.parse(())(form, np.random.default_rng(0)), array)
    assert transforms.parse(()).output_size((5, 6)) == (5, 6)


def test_output_size_follows_the_transforms() -> None:
    def size(*specs: str) -> tuple[int, int] | None:
        return transforms.parse(specs).output_size()

    assert size("flip", "blur") is None
    assert size("random_resized_crop(8)", "flip") == (8, 8)
    assert size("random_resized_crop((8, 16))", "resize(4)") == (4, 8)
    assert size("centre_crop(8)", "resize((3, 5))", "cutout(2)") == (3, 5)


def test_damage_in_the_pixels_shows_when_they_are_read() -> None:
    buffer = io.BytesIO()
    Image.radial_gradient("L").convert("RGB").save(buffer, "JPEG")
    picture = decode.open_image(buffer.getvalue()[:-400])
    with pytest.raises(decode.DamagedImage):
        transforms.parse(("random_resized_crop(32)", "flip"))(picture, np.random.default_rng(0))


def test_threads_give_the_same_pixels_as_one_after_the_other() -> None:
    specs = ("random_resized_crop(24)", "colour_jitter(0.4, 0.4, 0.4, 0.1)", "rand_augment")
    pipeline = transforms.parse(specs)
    images = np.random.default_rng(0).integers(0, 256, (64, 40, 30, 3), np.uint8)

    def augmented(index: int) -> np.ndarray:
        return pipeline(images[index], np.random.default_rng((1, index)))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        parallel = list(pool.map(augmented, range(64)))
    np.testing.assert_array_equal(parallel, [augmented(index) for index in range(64)])
