"""A trained encoder for use elsewhere, checked before it is handed over.

Every export is a directory ``<directory>/<format>/`` with the model and ``export.json``, which
describes it (model, classes, normalisation, resolution, versions). It appears only after it has
been read back and has reproduced the original's logits on a batch.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from cone_jax import models, storage
from cone_jax.data import on_device, transforms
from cone_jax.errors import UserError, closest
from cone_jax.interop import (
    detector_export,
    detectron2,
    exported_model,
    files,
    importing,
    layouts,
    metadata,
    onnx_export,
    stablehlo,
    state_dict,
)
from cone_jax.interop.metadata import ExportFailed, ExportMetadata

# The largest difference of logits from the original, as a part of the largest logit.
TOLERANCE = 1e-4
CHECKED_IMAGES = 3


@dataclasses.dataclass(frozen=True)
class Bundle:
    """What is exported: a float32 network, its variables as NumPy arrays, its description."""

    encoder: models.Encoder
    variables: Mapping[str, Any]
    metadata: ExportMetadata

    @property
    def layout(self) -> str:
        """The layout of `state_dict`."""
        return layouts.available(self.encoder)[0]

    def state_dict(self) -> state_dict.StateDict:
        return state_dict.to_state_dict(self.encoder, self.variables)

    def header(self) -> dict[str, str]:
        """The description in the form that file headers take: texts."""
        fields = {"model": self.encoder.spec.to_dict(), **dataclasses.asdict(self.metadata)}
        fields["versions"] = metadata.versions()
        return {name: json.dumps(value) for name, value in fields.items()}


@dataclasses.dataclass(frozen=True)
class Format:
    """How one kind of export is written, and which logits it gives when read back."""

    file: str
    write: Callable[[Bundle, Path], None]  # to the path of `file`
    reload: Callable[[Bundle, Path, np.ndarray], np.ndarray]  # directory, images
    named: bool = False  # holds tensors by name, in the bundle's layout
    takes_pictures: bool = False  # prepares a picture of any size itself


def export(
    format: str,
    variables: Mapping[str, Any],
    encoder: models.Encoder,
    data: ExportMetadata,
    directory: Path | str,
) -> Path:
    """Writes one export, reads it back, and compares its logits with the network's.

    Args:
        format: one of `FORMATS`.
        variables: ``params`` and ``batch_stats``.
        encoder: the network.
        data: how pictures become input, and what the classes are called.
        directory: the export is its subfolder `format`, and replaces an earlier one.

    Returns:
        The directory of the export.

    >>> import tempfile
    >>> from cone_jax import interop
    >>> encoder = models.create("resnet8", 2, stem="cifar", projection=None, width=4)
    >>> variables = encoder.init(jax.random.key(0), np.zeros((1, 8, 8, 3)), train=False)
    >>> data = ExportMetadata(("owl", "tit"), 8, mean=(0.5,) * 3, std=(0.25,) * 3)
    >>> place = export("safetensors", variables, encoder, data, tempfile.mkdtemp())
    >>> interop.open_export(place).logits(np.zeros((1, 8, 8, 3), np.float32)).shape
    (1, 2)
    """
    if encoder.inputs:
        return detector_export.export(format, variables, encoder, data, directory)
    if format not in FORMATS:
        raise UserError(f"--format ({format!r}) is unknown; {closest(format, FORMATS)}")
    if len(data.class_names) != encoder.spec.num_classes:
        raise ValueError(f"{len(data.class_names)} names for {encoder.spec.num_classes} classes")
    bundle = Bundle(
        exported_model.float32_network(encoder.spec),
        jax.tree.map(lambda value: np.asarray(value, np.float32), dict(variables)),
        data,
    )
    target = storage.path(directory, "--output") / format
    with storage.replacing_directory(target) as unfinished:
        chosen = FORMATS[format]
        chosen.write(bundle, unfinished / chosen.file)
        layout = bundle.layout if chosen.named else None
        metadata.write(unfinished, format, chosen.file, bundle.encoder.spec, data, layout)
        check = verify_pictures if chosen.takes_pictures else verify
        check(bundle, lambda images: chosen.reload(bundle, unfinished, images), format)
    return target


def verify(bundle: Bundle, logits: Callable[[np.ndarray], np.ndarray], format: str) -> None:
    """Raises `ExportFailed` unless `logits` agrees with the network on a batch."""
    size = bundle.metadata.image_size
    images = np.random.default_rng(0).normal(size=(CHECKED_IMAGES, size, size, 3))
    images = images.astype(np.float32)
    _require_agreement(bundle, logits(images), images, format)


def verify_pictures(
    bundle: Bundle, logits: Callable[[np.ndarray], np.ndarray], format: str
) -> None:
    """The same on pictures of several sizes, each prepared as the run prepares its own."""
    rng, described = np.random.default_rng(0), bundle.metadata
    size = described.image_size
    shapes = [(size, size), (2 * size + 3, 3 * size + 1), (size + 5, max(size // 2, 1))]
    prepare = transforms.parse(described.complete_transforms(), pixels=described.pixels)
    found, images = [], []
    for shape in shapes:
        picture = rng.integers(0, 256, (*shape, 3), np.uint8)
        found.append(logits(picture)[0])
        images.append(prepare(picture, rng))
    pixels = jax.numpy.asarray(np.stack(images))
    normalised = on_device.normalise_images(pixels, described.mean, described.std)
    _require_agreement(bundle, np.stack(found), np.asarray(normalised), format)


def _require_agreement(bundle: Bundle, found: np.ndarray, images: np.ndarray, format: str) -> None:
    expected = exported_model.network_logits(bundle.encoder, bundle.variables)(images)
    difference = np.max(np.abs(found - expected))
    # `not <=` also refuses NaN
    if not difference <= TOLERANCE * max(1.0, np.max(np.abs(expected))):
        raise ExportFailed(
            f"the export to {format} gives other logits than the network: they differ by "
            f"{difference:.2e}, with {np.max(np.abs(expected)):.2e} the largest"
        )


def _write_safetensors(bundle: Bundle, path: Path) -> None:
    header = bundle.header() | {"layout": json.dumps(bundle.layout)}
    files.write_safetensors(path, bundle.state_dict(), header)


def _write_torch(bundle: Bundle, path: Path) -> None:
    files.write_torch(path, bundle.state_dict())


def _write_orbax(bundle: Bundle, path: Path) -> None:
    files.write_orbax(path, bundle.variables)


def _write_stablehlo(bundle: Bundle, path: Path) -> None:
    stablehlo.write(path, bundle.encoder, bundle.variables, bundle.metadata.image_size)


def _write_onnx(bundle: Bundle, path: Path, pixels: ExportMetadata | None = None) -> None:
    size = bundle.metadata.image_size
    onnx_export.write(path, bundle.encoder, bundle.variables, size, bundle.header(), pixels)


def _write_onnx_pixels(bundle: Bundle, path: Path) -> None:
    _write_onnx(bundle, path, bundle.metadata)


def _write_detectron2(bundle: Bundle, path: Path) -> None:
    tensors = detectron2.backbone(bundle.encoder, bundle.state_dict())
    detectron2.write(path.parent, path.name, bundle.encoder, tensors, bundle.metadata)


def _reload(bundle: Bundle, directory: Path, images: np.ndarray) -> np.ndarray:
    return exported_model.open_export(directory).logits(images)


def _reload_detectron2(bundle: Bundle, directory: Path, images: np.ndarray) -> np.ndarray:
    """The original with its backbone replaced by the exported tensors under their own names."""
    original = bundle.state_dict()
    exported = detectron2.backbone(bundle.encoder, original)
    returned = {detectron2.from_detectron2(name): value for name, value in exported.items()}
    head = {name: original[name] for name in original.keys() - returned.keys()}
    zeros = jax.tree.map(np.zeros_like, bundle.variables)
    variables, _ = importing.from_tensors(
        {**returned, **head}, bundle.encoder, zeros, source=str(directory)
    )
    return exported_model.network_logits(bundle.encoder, variables)(images)


# The formats by name: the file of each, how it is written, and how it is read back.
FORMATS = {
    "safetensors": Format("model.safetensors", _write_safetensors, _reload, named=True),
    "pth": Format("model.pth", _write_torch, _reload, named=True),
    "orbax": Format("variables", _write_orbax, _reload),
    "stablehlo": Format("model.stablehlo", _write_stablehlo, _reload),
    "onnx": Format("model.onnx", _write_onnx, _reload),
    "onnx_pixels": Format("model.onnx", _write_onnx_pixels, _reload, takes_pictures=True),
    "detectron2": Format("model.pkl", _write_detectron2, _reload_detectron2),
}
