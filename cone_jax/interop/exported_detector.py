"""Opens the export of a detector (`detector_export`), to find objects with."""

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
from flax import traverse_util
from jax import export as jax_export

from cone_jax.detection import Detections, Detector, Settings
from cone_jax.errors import UserError
from cone_jax.interop import files, torchvision_detector
from cone_jax.interop.detector_export import FILE
from cone_jax.interop.metadata import ExportMetadata


class ExportedDetector(NamedTuple):
    """The interface that it shares with a run's deployed network."""

    encoder: Any
    variables: dict[str, Any]
    metadata: ExportMetadata


class DetectorPrograms:
    """StableHLO programs with the interface of a `Detector`; the weights are inside."""

    inputs: ClassVar[tuple[str, ...]] = Detector.inputs

    def __init__(self, programs: Mapping[tuple[int, ...], jax_export.Exported]) -> None:
        self._programs = dict(programs)

    def apply(
        self, variables: Any, images: jax.Array, sizes: jax.Array, *, train: bool = False
    ) -> Detections:
        """Images [1, H, W, 3] of one of the exported shapes."""
        return Detections(**self._programs[tuple(images.shape)].call(images, sizes))


def is_detector(directory: Path) -> bool:
    """Whether the directory holds the export of a detector."""
    return (directory / FILE).exists()


def load(directory: Path) -> ExportedDetector:
    """Reads an export; `UserError` where something is missing or damaged."""
    try:
        content = json.loads((directory / FILE).read_text())
        settings = Settings(**{name: _fixed(x) for name, x in content["detector"].items()})
        names = [field.name for field in dataclasses.fields(ExportMetadata)]
        metadata = ExportMetadata(**{name: _fixed(content[name]) for name in names})
        for name in content["files"]:
            if not re.fullmatch(r"\w[\w.-]*", name):
                raise ValueError(f"file {name!r} is not beside it")
        paths = [directory / name for name in content["files"]]
        if content["format"] == "safetensors":
            return ExportedDetector(Detector(settings), _tensors(paths[0], settings), metadata)
        programs = [jax_export.deserialize(bytearray(path.read_bytes())) for path in paths]
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}; export the detector again") from error
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise UserError(
            f"{directory / FILE} is not a detector's description ({error}); export it again"
        ) from error
    by_shape = {tuple(each.in_avals[0].shape): each for each in programs}
    return ExportedDetector(DetectorPrograms(by_shape), {}, metadata)


def _tensors(path: Path, settings: Settings) -> dict[str, Any]:
    tensors = files.read_safetensors(path)
    if torchvision_detector.fits(settings):
        return torchvision_detector.from_torchvision(tensors, settings)
    return traverse_util.unflatten_dict(tensors, sep="/")


def _fixed(value: Any) -> Any:
    """JSON's lists as the tuples that they were."""
    return tuple(map(_fixed, value)) if isinstance(value, list) else value
