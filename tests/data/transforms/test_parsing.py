"""Specs become pipelines; mistakes become one-line errors that say what would be right."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cone_jax import spec_strings
from cone_jax.data import transforms
from cone_jax.data.transforms import geometry, parsing
from cone_jax.data.transforms.colour import ColourJitter
from cone_jax.errors import UserError


def test_specs_set_fields_by_position_and_by_name() -> None:
    pipeline = transforms.parse(
        [
            " random_resized_crop(224, scale=(0.2, 1)) ",
            "flip",
            "flip()",
            "colour_jitter(0.4, 0.4, hue=0.1, p=0.8)",
            "resize([10, 20])",
        ]
    )
    assert pipeline.transforms == (
        geometry.RandomResizedCrop(224, scale=(0.2, 1)),
        geometry.Flip(0.5),
        geometry.Flip(0.5),
        ColourJitter(0.4, 0.4, 0.0, 0.1, 0.8),
        geometry.Resize((10, 20)),
    )


def test_pipelines_are_values() -> None:
    specs = ("random_crop(32, padding=4)", "flip", "auto_augment('cifar10')", "cutout(16)")
    one, other = transforms.parse(specs), transforms.parse(list(specs))
    assert one == other
    assert hash(one) == hash(other)
    copy = pickle.loads(pickle.dumps(one))
    assert copy == one
    image = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    np.testing.assert_array_equal(
        one(image, np.random.default_rng(5)), copy(image, np.random.default_rng(5))
    )


@pytest.mark.parametrize(
    ("spec", "cure"),
    [
        ("centre_corp(224)", "no operation 'centre_corp'; the closest is centre_crop(size)"),
        ("color_jitter(0.4)", "the closest is colour_jitter(brightness=0.0"),
        ("zzz", "no operation 'zzz'; there are random_resized_crop, resize"),
        ("centre_crop", "missing 1 required positional argument: 'size'; use centre_crop(size)"),
        ("flip(prob=0.5)", "unexpected keyword argument 'prob'; use flip(p=0.5)"),
        ("flip(1.5)", "p must be a number from 0 to 1, not 1.5; use flip(p=0.5)"),
        ("flip('yes')", "p must be a number from 0 to 1, not 'yes'"),
        ("flip(True)", "p must be a number from 0 to 1, not True"),
        ("blur(sigma=2)", "sigma must be two ascending numbers of at least 0, not 2"),
        ("blur(sigma=(2, 1))", "sigma must be two ascending numbers of at least 0, not (2, 1)"),
        ("blur(sigma=(0, 1e999))", "sigma must be two ascending numbers of at least 0"),
        ("random_resized_crop(0)", "size must be a whole number of at least 1, not 0"),
        ("random_resized_crop((1, 2, 3))", "size must be a number or (height, width)"),
        ("random_resized_crop(9, scale=(0.5, 2))", "scale must be two ascending numbers between"),
        ("resize(9, 'cubic')", "interpolation must be one of bilinear, bicubic, not 'cubic'"),
        ("random_crop(32, padding=-1)", "padding must be a whole number of at least 0, not -1"),
        ("colour_jitter(hue=0.6)", "hue must be a number from 0 to 0.5, not 0.6"),
        ("auto_augment('cifar')", "policy must be one of imagenet, cifar10, v0, not 'cifar'"),
        ("auto_augment(fill=300)", "fill must be 0..255 or three of them, not 300"),
        ("rand_augment(form='tv')", "form must be one of torchvision, timm, tf, not 'tv'"),
        ("rand_augment(2, 31)", "m must be a number from 0 to 30, not 31"),
        ("rand_augment(2, 9.5)", "m must be a whole number of at least 0, not 9.5"),
        ("rand_augment(increasing=True)", "True only with form='timm'"),
        ("cutout(16, holes=0)", "holes must be a whole number of at least 1, not 0"),
        ("random_erasing(fill='black')", "fill must be one of noise, mean, not 'black'"),
        ("random_erasing(mean=0.5)", "mean must be three numbers from 0 to 1, not 0.5"),
    ],
)
def test_mistakes_are_explained_in_one_line(spec: str, cure: str) -> None:
    with pytest.raises(UserError) as caught:
        transforms.parse(("flip", spec))
    message = str(caught.value)
    assert message.startswith(f"transform {spec!r}: ")
    assert cure in message
    assert "\n" not in message
    if "there are" not in message:
        assert "size" in message or "=" in message  # the signature


NO_CALLS = ["", "'flip'", "3", 3, None, "flip(", "flip; blur", "flip + blur", "(lambda: 0)()"]
NO_LITERALS = [
    "os.system('x')",
    "flip(open('x'))",
    "flip(p=q)",
    "flip(*(0.5,))",
    "flip(**{'p': 1})",
]


@pytest.mark.parametrize("spec", [*NO_CALLS, *NO_LITERALS, "flip(\0)"])
def test_anything_but_a_call_with_literals_is_refused(spec: object) -> None:
    with pytest.raises(UserError, match=r"^transform .*"):
        transforms.parse((spec,))


def test_a_string_is_not_a_list_of_strings() -> None:
    with pytest.raises(UserError, match="must be a list of strings, not the one string 'flip'"):
        transforms.parse("flip")


@settings(deadline=None, max_examples=200)
@given(st.text("flipcrop_(), =0123456789.'[]-*{}:", max_size=24))
def test_no_text_ends_in_anything_but_a_user_error(spec: str) -> None:
    try:
        transforms.parse((spec,))
    except UserError as error:
        assert repr(spec) in str(error)  # noqa: PT017 - either outcome is right


def test_every_operation_has_a_signature_and_a_docstring() -> None:
    for name, operation in parsing.OPERATIONS.items():
        assert spec_strings.signature(name, operation).startswith(f"{name}(")
        assert operation.__doc__
        assert not operation.__doc__.startswith(operation.__name__ + "(")  # a dataclass's own
