"""The published recipes, written out; each parses and gives images of its size."""

import numpy as np
import pytest
from PIL import Image

from cone_jax.data import transforms
from cone_jax.data.transforms import recipes
from cone_jax.errors import UserError

CROP = "random_resized_crop(224, scale=(0.08, 1.0))"
STRONG_JITTER = "colour_jitter(0.8, 0.8, 0.8, 0.2, p=0.8)"
JITTER = "colour_jitter(0.4, 0.4, 0.4, 0.1, p=0.8)"
GREY, BLUR = "grey(p=0.2)", "blur(p=0.5)"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (recipes.standard(), (CROP, "flip")),
        (recipes.simclr(), (CROP, "flip", STRONG_JITTER, GREY, BLUR)),
        (
            recipes.simclr(32, 0.5, blur=False, scale=(0.2, 1.0)),
            ("random_resized_crop(32, scale=(0.2, 1.0))", "flip", JITTER, GREY),
        ),
        (recipes.auto_augment(), (CROP, "flip", "auto_augment('imagenet')")),
        (recipes.auto_augment(policy="v0"), (CROP, "flip", "auto_augment('v0')")),
        (recipes.rand_augment(), (CROP, "flip", "rand_augment(2, 9, form='torchvision')")),
        (
            recipes.stacked(form="supcon"),
            (CROP, "flip", STRONG_JITTER, "rand_augment(2, 10, form='tf')", GREY, BLUR),
        ),
        (
            recipes.stacked(),
            (CROP, "flip", STRONG_JITTER, BLUR, "rand_augment(2, 10, form='timm')", GREY),
        ),
        (
            recipes.stacked(form="paco", n=3, m=12),
            (
                *(CROP, "flip", "colour_jitter(0.4, 0.4, 0.4, 0, p=1)", GREY, BLUR),
                "rand_augment(3, 12, form='timm')",
            ),
        ),
        (
            recipes.cifar_strong_query(),
            ("random_crop(32, padding=4)", "flip", "auto_augment('cifar10')", "cutout(16)"),
        ),
        (
            recipes.cifar_strong_key(),
            ("random_resized_crop(32, scale=(0.2, 1.0))", "flip", JITTER, GREY, BLUR),
        ),
        (recipes.evaluation(232), ("resize(232, interpolation='bilinear')", "centre_crop(224)")),
        (recipes.deit(m=7, erasing=0)[2:], ("rand_augment(2, 7, form='timm', increasing=True)",)),
        (recipes.deit()[3], "random_erasing(0.25)"),
    ],
)
def test_recipes_are_the_published_ones(found: tuple[str, ...], expected: tuple[str, ...]) -> None:
    if isinstance(expected, str):
        assert found == expected
    else:
        assert transforms.parse(found) == transforms.parse(expected)


@pytest.mark.parametrize(
    ("specs", "size"),
    [
        (recipes.standard(48), 48),
        (recipes.simclr(48), 48),
        (recipes.auto_augment(48), 48),
        (recipes.rand_augment(48), 48),
        (recipes.stacked(48, "supcon"), 48),
        (recipes.stacked(48, "infomin"), 48),
        (recipes.stacked(48, "paco"), 48),
        (recipes.deit(48), 48),
        (recipes.cifar_standard(), 32),
        (recipes.cifar_strong_query(), 32),
        (recipes.cifar_strong_key(), 32),
        (recipes.evaluation(60, 48), 48),
    ],
)
def test_recipes_give_images_of_their_size_and_repeat(specs: tuple[str, ...], size: int) -> None:
    pipeline = transforms.parse(specs)
    assert pipeline.output_size() == (size, size)
    image = Image.radial_gradient("L").resize((75, 50)).convert("RGB")
    different = set()
    for seed in range(8):
        first = pipeline(image, np.random.default_rng(seed))
        again = pipeline(np.asarray(image), np.random.default_rng(seed))
        assert first.shape == (size, size, 3)
        np.testing.assert_array_equal(first, again)
        different.add(first.tobytes())
    if specs == recipes.evaluation(60, 48):
        assert len(different) == 1
    else:
        # Not 8: the TF form's 100 pixels can leave nothing of an image of 48.
        assert len(different) >= 4


def test_an_unknown_form_is_named() -> None:
    with pytest.raises(UserError, match=r"stacked form must be .* not 'simclr'"):
        recipes.stacked(form="simclr")
