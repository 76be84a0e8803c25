"""Where corrupted pictures come from: made from a run's own, a TFDS set, or a tree of folders."""

import os
from pathlib import Path
from typing import NamedTuple

from cone_jax.data import decode, transforms
from cone_jax.data.sources import Source, tfds
from cone_jax.errors import UserError
from cone_jax.evaluation import other_sets
from cone_jax.evaluation.corruptions import CorruptedSource
from cone_jax.evaluation.registry import EvaluatedRun

# What TFDS's cifar10_corrupted calls them.
_ALIASES = {"glass_blur": "frosted_glass_blur", "elastic_transform": "elastic"}


class CorruptedSet(NamedTuple):
    """Pictures under one corruption at one severity, and how they go to the network."""

    source: Source
    transforms: tuple[str, ...]


def generated(
    run: EvaluatedRun, corruption: str, severity: int, *, seed: int, parameters: str
) -> CorruptedSet:
    """The run's own test pictures, cropped as always and then corrupted."""
    pipeline = transforms.parse(run.config.data.test_transforms)
    source = run.dataset.test
    return CorruptedSet(
        CorruptedSource(source, pipeline, corruption, severity, seed, parameters), ()
    )


def ready_made(run: EvaluatedRun, data: str, corruption: str, severity: int) -> CorruptedSet:
    """Pictures that are corrupted already: below a folder, or of a TFDS set, named by `data`."""
    folder = Path(data).expanduser()
    if folder.is_dir():
        one = str(_find_folder(folder, corruption, severity))
    elif os.sep in data:
        raise UserError(f"data ({data}) is no folder <corruption>/<severity>/<class>/")
    else:
        one = _find_tfds(run, data, corruption, severity)
    source = other_sets.open_set(run, one)
    return CorruptedSet(source, _fitting_transforms(run, source))


def _fitting_transforms(run: EvaluatedRun, source: Source) -> tuple[str, ...]:
    """The run's test transforms, or none where pictures already have the size they lead to."""
    specs = tuple(run.config.data.test_transforms)
    wanted = transforms.parse(specs).output_size()
    picture = decode.open_image(source[0].image)
    width, height = picture.size if isinstance(picture, decode.Picture) else picture.shape[1::-1]
    return () if (height, width) == wanted else specs


def _find_folder(root: Path, corruption: str, severity: int) -> Path:
    folder = root / corruption / str(severity)
    if not folder.is_dir():
        raise UserError(f"{folder} is missing; choose among what there is with corruptions=(...)")
    return folder


def _find_tfds(run: EvaluatedRun, name: str, corruption: str, severity: int) -> str:
    kinds = (corruption, _ALIASES.get(corruption, corruption))
    configs = [f"{name}/{kind}_{severity}" for kind in kinds]
    path = other_sets.tfds_path(run)
    return next((each for each in configs if tfds.find(each, path) is not None), configs[0])
