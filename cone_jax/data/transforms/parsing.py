"""From the strings of a config to a pipeline.

A spec is an operation's name, or a call of it with literal arguments: `flip`,
`random_crop(32, padding=4)`. It is read as a Python expression but never evaluated, so a config
can name only what `OPERATIONS` lists. A mistake is a `UserError` that quotes the spec and says
what would be right.
"""

import dataclasses
from collections.abc import Iterable

import numpy as np

from cone_jax import spec_strings
from cone_jax.data import decode
from cone_jax.data.decode import Raster
from cone_jax.data.transforms import auto_augment, colour, geometry, occlusion
from cone_jax.data.transforms.transform import Transform
from cone_jax.errors import UserError

OPERATIONS: dict[str, type[Transform]] = {
    "random_resized_crop": geometry.RandomResizedCrop,
    "resize": geometry.Resize,
    "centre_crop": geometry.CentreCrop,
    "random_crop": geometry.RandomCrop,
    "flip": geometry.Flip,
    "colour_jitter": colour.ColourJitter,
    "grey": colour.Grey,
    "blur": colour.Blur,
    "auto_augment": auto_augment.AutoAugment,
    "rand_augment": auto_augment.RandAugment,
    "cutout": occlusion.Cutout,
    "random_erasing": occlusion.RandomErasing,
}


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """The transforms of one view, in order.

    `pixels` "fast" decodes no more of a JPEG than is needed, and crops and resizes in one pass.
    "exact" gives bit for bit what Pillow gives on the whole picture, step after step, which is how
    torchvision and timm evaluate. "stored" does the same without turning a picture by its EXIF
    orientation: so do their loaders of folders.
    """

    transforms: tuple[Transform, ...]
    pixels: str = "fast"

    def open(self, data: bytes | np.ndarray) -> "decode.Picture | np.ndarray":
        """What `__call__` takes, of an encoded file or an array."""
        return decode.open_image(data, upright=self.pixels != "stored")

    def __call__(self, image: Raster, rng: np.random.Generator) -> np.ndarray:
        """Augments one image.

        Args:
            image: what `decode.open_image` returned (or an RGB Pillow image). Not modified; it may
                be passed again for another view, and is then not decoded again.
            rng: the generator of this record and view; nothing else may draw from it.

        Returns:
            uint8 [H, W, 3], C-contiguous, possibly read-only or the input array itself.

        Raises:
            decode.DamagedImage: the pixels of an encoded picture turn out to be unreadable.
        """
        if self.pixels != "fast" and isinstance(image, decode.Picture):
            image = image.full()
        for transform in self.transforms:
            image = transform(image, rng)
        return np.ascontiguousarray(decode.as_array(image))

    def output_size(self, size: tuple[int, int] | None = None) -> tuple[int, int] | None:
        """(height, width) of every result, or None where it depends on the image.

        Args:
            size: (height, width) of the inputs if they are all alike, as in CIFAR.
        """
        for transform in self.transforms:
            size = transform.size_after(size)
        return size


def parse(specs: Iterable[str], field: str = "transform", pixels: str = "fast") -> Pipeline:
    """The pipeline that a config's list of transforms describes; errors name its `field`.

    `pixels` is how exactly it computes: see `Pipeline`.

    >>> parse(("resize(256)", "centre_crop(224)")).output_size()
    (224, 224)
    >>> parse(("centre_corp(224)",))
    Traceback (most recent call last):
    cone_jax.errors.UserError: transform 'centre_corp(224)': no operation 'centre_corp'; \
the closest is centre_crop(size)
    """
    if isinstance(specs, str):
        raise UserError(f"{field} must be a list of strings, not the one string {specs!r}")
    steps = tuple(_transform(spec, field) for spec in specs)
    return Pipeline(geometry.fused(steps, exact=pixels != "fast"), pixels)


def _transform(spec: str, field: str) -> Transform:
    return spec_strings.build(
        spec,
        OPERATIONS,
        where=f"{field} {spec!r}",
        noun="operation",
        example="random_crop(32, padding=4)",
    )
