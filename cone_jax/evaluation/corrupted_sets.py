"""Where corrupted pictures come from: made from a run's own, a TFDS set, or a tree of folders."""

import os
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from cone_jax import storage
from cone_jax.data import decode, transforms
from cone_jax.data.sources import Source, splits
from cone_jax.errors import UserError
from cone_jax.evaluation import other_sets
from cone_jax.evaluation.corruptions import CorruptedSource
from cone_jax.evaluation.label_maps import RelabelledSource
from cone_jax.evaluation.registry import EvaluatedRun

# What TFDS's cifar10_corrupted calls them.
_ALIASES = {"glass_blur": "frosted_glass_blur", "elastic_transform": "elastic"}


class CorruptedSet(NamedTuple):
    """Pictures under one corruption at one severity, and how they go to the network."""

    source: Source
    transforms: tuple[str, ...]


def generated(
    run: EvaluatedRun,
    corruption: str,
    severity: int,
    *,
    seed: int,
    parameters: str,
    frost_folder: str = "",
) -> CorruptedSet:
    """The run's own test pictures, cropped as always and then corrupted."""
    data = run.config.data
    pipeline = transforms.parse(data.test_transforms, pixels=data.test_pixels)
    how = (corruption, severity, seed, parameters, frost_folder)
    return CorruptedSet(CorruptedSource(run.dataset.test, pipeline, *how), ())


def ready_made(run: EvaluatedRun, data: str, corruption: str, severity: int) -> CorruptedSet:
    """Pictures that are corrupted already: below a folder, or of a TFDS set, named by `data`."""
    folder = storage.path(data)
    if folder.is_dir():
        one = str(_find_folder(folder, corruption, severity))
    elif os.sep in data:
        raise UserError(f"data ({data}) is not a folder <corruption>/<severity>/<class>/")
    else:
        one = _find_tfds(run, data, corruption, severity)
    source = other_sets.open_set(run, one)
    return CorruptedSet(source, _fitting_transforms(run, source))


def clean_counterpart(test: Source, corrupted: Source) -> Source | None:
    """The pictures of `test` that `corrupted` was made from; None if that is not known.

    Files are known by their class and name. Records without names are the same where there are
    as many.
    """
    if isinstance(corrupted, CorruptedSource):
        return test
    places = {name: index for index, name in enumerate(_names(test))}
    names = _names(corrupted)
    if names and all(name in places for name in names):
        return splits.Subset(test, np.array([places[name] for name in names]))
    return test if len(test) == len(corrupted) else None


def _names(source: Source) -> list[str]:
    """<class>/<file> of each record, without its suffix; empty where records have no names."""
    own: Any = source.source if isinstance(source, RelabelledSource) else source
    if not hasattr(own, "relative_path"):
        return []
    paths = (PurePosixPath(own.relative_path(index)) for index in range(len(own)))
    return [str(path.with_suffix("")) for path in paths]


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
    return next((each for each in configs if other_sets.has_tfds(run, each)), configs[0])
