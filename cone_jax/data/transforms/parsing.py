"""From the strings of a config to a pipeline.

A spec is an operation's name, or a call of it with literal arguments: `flip`,
`random_crop(32, padding=4)`. It is read as a Python expression but never evaluated, so a config
can name only what `OPERATIONS` lists. A mistake is a `UserError` that quotes the spec and says
what would be right.
"""

import difflib
from collections.abc import Iterable

from cone_jax import call_spec
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


def parse(specs: Iterable[str], field: str = "transform") -> Pipeline:
    """The pipeline that a config's list of transforms describes; errors name its `field`.

    >>> parse(("resize(256)", "centre_crop(224)")).output_size()
    (224, 224)
    >>> parse(("centre_corp(224)",))
    Traceback (most recent call last):
    cone_jax.errors.UserError: transform 'centre_corp(224)': no operation 'centre_corp'; \
the closest is centre_crop(size)
    """
    if isinstance(specs, str):
        raise UserError(f"{field} must be a list of strings, not the one string {specs!r}")
    return Pipeline(geometry.fused(tuple(_transform(spec, field) for spec in specs)))


def signature(name: str) -> str:
    """An operation as its documentation would write it.

    >>> signature("random_crop")
    'random_crop(size, padding=0)'
    """
    return call_spec.signature(name, OPERATIONS[name])


def _transform(spec: str, field: str) -> Transform:
    name, positional, named = _read(spec, field)
    if name not in OPERATIONS:
        near = difflib.get_close_matches(name, OPERATIONS, n=1, cutoff=0.4)
        cure = f"the closest is {signature(near[0])}" if near else f"there are {_listing()}"
        raise UserError(f"{field} {spec!r}: no operation {name!r}; {cure}")
    try:
        return OPERATIONS[name](*positional, **named)
    except (TypeError, ValueError) as error:
        reason = str(error).removeprefix(f"{OPERATIONS[name].__name__}.__init__() ")
        raise UserError(f"{field} {spec!r}: {reason}; use {signature(name)}") from error


def _listing() -> str:
    return ", ".join(OPERATIONS)


def _read(spec: str, field: str) -> call_spec.CallSpec:
    """Name, positional and named arguments of a spec, literals only."""
    try:
        return call_spec.read(spec)
    except ValueError as error:
        raise UserError(
            f"{field} {spec!r} must read like {signature('random_crop')}: a name from "
            f"{_listing()}, and numbers, strings or tuples in brackets"
        ) from error
