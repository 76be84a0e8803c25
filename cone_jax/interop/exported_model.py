"""Opens an export, as a function of images with a description."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from cone_jax import models, storage
from cone_jax.errors import UserError
from cone_jax.interop import files, importing, metadata, onnx_export, stablehlo
from cone_jax.interop.metadata import ExportMetadata
from cone_jax.models import ModelSpec


@dataclasses.dataclass(frozen=True)
class ExportedModel:
    """Normalised images, float32 [B, S, S, 3], to logits [B, C].

    An export that prepares pictures itself has `probabilities` as well: both of its functions take
    one picture of any size, uint8 [H, W, 3], and return [1, C].

    >>> data = ExportMetadata(("owl", "tit"), 8, mean=(0.5,) * 3, std=(0.25,) * 3)
    >>> model = ExportedModel(lambda images: images[:, 0, 0, :2], data)
    >>> model.logits(np.zeros((3, 8, 8, 3))).shape, model.metadata.class_names
    ((3, 2), ('owl', 'tit'))
    """

    logits: Callable[[np.ndarray], np.ndarray]  # images to logits [B, C]
    metadata: ExportMetadata  # its description
    probabilities: Callable[[np.ndarray], np.ndarray] | None = None  # a picture to [1, C]


def open_export(directory: Path | str) -> ExportedModel:
    """Opens an export from its description alone.

        model = interop.open_export("runs/birds/exports/onnx")
        logits = model.logits(images)  # float32 [B, S, S, 3] to [B, C]

    `export` has an example that runs.

    Args:
        directory: of one export, such as ``runs/birds/exports/onnx``.

    Returns:
        A function of normalised images, and the export's description.
    """
    directory = storage.path(directory)
    content, spec, data = metadata.read(directory)
    path = directory / content["file"]
    if content["format"] == "stablehlo":
        return ExportedModel(stablehlo.open_logits(path), data)
    if content["format"] == "onnx":
        (logits,) = onnx_export.open_outputs(path)
        return ExportedModel(logits, data)
    if content["format"] == "onnx_pixels":
        logits, probabilities = onnx_export.open_outputs(path, ("logits", "probabilities"))
        return ExportedModel(logits, data, probabilities)
    if content["format"] == "detectron2":
        raise UserError(f"{directory} is a backbone for Detectron2, which cannot classify")
    weights = files.read_weights(directory)
    return ExportedModel(_network(spec, weights, data.image_size, str(directory)), data)


def float32_network(spec: ModelSpec) -> models.Encoder:
    """The network as exports compute it: in float32, with convolutions that suit any machine."""
    spec = dataclasses.replace(spec, dtype="float32")
    return models.build(spec, platform=models.ANY_PLATFORM)


def network_logits(
    encoder: models.Encoder, variables: Mapping[str, Any]
) -> Callable[[np.ndarray], np.ndarray]:
    """images -> logits in evaluation mode, compiled."""

    @jax.jit
    def logits(variables: Mapping[str, Any], images: jax.Array) -> jax.Array:
        out: Any = encoder.apply(variables, images, train=False)
        return out.logits

    return lambda images: np.asarray(logits(variables, images))


def _network(
    spec: ModelSpec, weights: files.Weights, image_size: int, source: str
) -> Callable[[np.ndarray], np.ndarray]:
    encoder = float32_network(spec)
    shapes = models.abstract_variables(encoder, image_size)
    variables, report = importing.from_tensors(
        weights.tensors, encoder, shapes, source=source, layout=weights.layout
    )
    if report.reinitialised:
        raise UserError(f"{source}: its weights are not of the {spec.num_classes} classes it names")
    return network_logits(encoder, variables)
