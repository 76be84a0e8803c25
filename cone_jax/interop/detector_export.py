"""A trained detector for use elsewhere, read back and compared before it is handed over.

``safetensors``: torchvision's names where it has such a detector (those with a feature pyramid),
else ours. ``stablehlo``: one program per shape of padded pictures, weights
inside. Beside either lies ``detector.json``: settings, classes, transforms, normalisation.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jax import export as jax_export

from cone_jax import storage
from cone_jax.data import objects
from cone_jax.errors import UserError, closest
from cone_jax.interop import files, stablehlo, torchvision_detector
from cone_jax.interop.metadata import ExportFailed, ExportMetadata, versions

FILE = "detector.json"
FORMATS = ("safetensors", "stablehlo")
TOLERANCE = 1e-4  # of scores, of boxes in parts of the picture, and of masks

Infer = Callable[[np.ndarray, np.ndarray], dict[str, np.ndarray]]


def export(
    format: str,
    variables: Mapping[str, Any],
    detector: Any,
    data: ExportMetadata,
    directory: Path | str,
) -> Path:
    """Writes and checks one export; returns its directory, which replaces an earlier one."""
    if format not in FORMATS:
        raise UserError(f"--format ({format!r}) of a detector; {closest(format, FORMATS)}")
    network = detector.clone(settings=dataclasses.replace(detector.settings, dtype="float32"))
    values = jax.tree.map(lambda value: np.asarray(value, np.float32), dict(variables))
    target = storage.path(directory, "--output") / format
    with storage.replacing_directory(target) as unfinished:
        write = _write_tensors if format == "safetensors" else _write_programs
        write(unfinished, values, network, data)
    return target


def _write_tensors(
    folder: Path, variables: Mapping[str, Any], detector: Any, data: ExportMetadata
) -> None:
    settings, path = detector.settings, folder / "model.safetensors"
    known = torchvision_detector.fits(settings)
    if known:
        tensors = torchvision_detector.to_torchvision(variables, settings)
    else:
        tensors = traverse_util.flatten_dict(dict(variables), sep="/")
    layout = "torchvision" if known else "cone_jax"
    files.write_safetensors(path, tensors, {"layout": layout})
    read = files.read_safetensors(path)
    if known:
        back = torchvision_detector.from_torchvision(read, settings)
    else:
        back = traverse_util.unflatten_dict(read, sep="/")
    shape = _shapes(data)[0]
    _verify(_network(detector, variables), _network(detector, back), shape, "safetensors")
    _describe(folder, "safetensors", [path.name], detector, data, layout=layout)


def _write_programs(
    folder: Path, variables: Mapping[str, Any], detector: Any, data: ExportMetadata
) -> None:
    infer = jax.jit(_inference(detector, variables))
    names = []
    for shape in _shapes(data):
        images = jax.ShapeDtypeStruct((1, *shape, 3), jnp.float32)
        sizes = jax.ShapeDtypeStruct((1, 2), jnp.int32)
        program = jax_export.export(infer, platforms=stablehlo.PLATFORMS)(images, sizes)
        path = folder / f"model_{shape[0]}x{shape[1]}.stablehlo"
        path.write_bytes(program.serialize())
        again = jax_export.deserialize(bytearray(path.read_bytes()))
        _verify(_network(detector, variables), again.call, shape, "stablehlo")
        names.append(path.name)
    _describe(folder, "stablehlo", names, detector, data)


def _shapes(data: ExportMetadata) -> list[tuple[int, int]]:
    """The shapes that pictures are padded to."""
    pad = objects.parse(data.transforms, "data.test_transforms").pad
    return [pad.shape(False)] if pad.one_shape else [pad.shape(False), pad.shape(True)]


def _inference(detector: Any, variables: Mapping[str, Any]) -> Callable[..., dict[str, jax.Array]]:
    def infer(images: jax.Array, sizes: jax.Array) -> dict[str, jax.Array]:
        found = detector.apply(variables, images, sizes)
        return {each.name: getattr(found, each.name) for each in dataclasses.fields(found)}

    return infer


def _network(detector: Any, variables: Mapping[str, Any]) -> Infer:
    return jax.jit(_inference(detector, variables))


def _verify(original: Any, again: Any, shape: tuple[int, int], format: str) -> None:
    """Raises `ExportFailed` unless both find the same on a picture of noise."""
    images = np.random.default_rng(0).normal(size=(1, *shape, 3)).astype(np.float32)
    sizes = np.array([shape], np.int32)
    expected, found = jax.device_get((original(images, sizes), again(images, sizes)))
    scale = {"boxes": float(max(shape))}
    for name, value in expected.items():
        difference = np.max(np.abs(found[name] * 1.0 - value * 1.0), initial=0.0)
        if not difference <= TOLERANCE * scale.get(name, 1.0):  # `not <=` also refuses NaN
            raise ExportFailed(
                f"the export to {format} finds other {name} than the detector: they differ by "
                f"{difference:.2e}"
            )


def _describe(
    folder: Path, format: str, names: list[str], detector: Any, data: ExportMetadata, **more: str
) -> None:
    content = {
        "format": format,
        "files": names,
        "detector": dataclasses.asdict(detector.settings),
        **more,
        **dataclasses.asdict(data),
        "versions": versions(),
    }
    (folder / FILE).write_text(json.dumps(content, indent=2) + "\n")
