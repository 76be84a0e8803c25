"""From the strings of a config to a pipeline.

A spec is an operation's name, or a call of it with literal arguments: `flip`,
`random_crop(32, padding=4)`. It is read as a Python expression but never evaluated, so a config
can name only what `OPERATIONS` lists. A mistake is a `UserError` that quotes the spec and says
what would be right.
"""

from collections.abc import Iterable

from cone_jax import spec_strings
from cone_jax.data.transforms import auto_augment, colour, geometry, occlusion
from cone_jax.data.transforms.transform import Pipeline, Transform
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
