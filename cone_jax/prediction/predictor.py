"""Picture files to classes, a batch at a time."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cone_jax import distributed, interop, storage, workdir
from cone_jax.console import Report
from cone_jax.data import decode, on_device, transforms
from cone_jax.errors import UserError
from cone_jax.evaluation import inference
from cone_jax.evaluation.inference import PlacedNetwork
from cone_jax.interop import metadata
from cone_jax.interop.metadata import ExportMetadata
from cone_jax.models import EncoderOutput
from cone_jax.training import named_network
from cone_jax.training.run_directory import DeployedNetwork, RunDirectory


class Prediction(NamedTuple):
    """The most probable classes of one picture, best first; none if it is damaged.

    >>> found = Prediction(Path("owl.jpg"), ("owl", "tit"), (0.9, 0.1))
    >>> found.classes[0], found.probabilities[0]
    ('owl', 0.9)
    """

    path: Path  # the picture file
    classes: tuple[str, ...] = ()  # names of the most probable classes
    probabilities: tuple[float, ...] = ()  # their probabilities
    error: str = ""  # what is wrong with the file


class Predictor:
    """Classifies picture files with a network. `open_model` makes one.

    Args:
        logits: normalised images [B, S, S, 3] to logits [B, C].
        description: how pictures become input, and the names of the classes.
        top: the number of classes to name.
        batch_size: the number of pictures in one forward pass.

    >>> data = ExportMetadata(("dark", "light"), 8, mean=(0.5,) * 3, std=(0.5,) * 3)
    >>> predictor = Predictor(lambda images: images[:, 0, 0, :2] * [-1, 1], data)
    >>> white = np.full((8, 8, 3), 255, np.uint8)
    >>> ((classes, probabilities),) = predictor.classify([white])
    >>> classes[0], round(probabilities[0], 2)
    ('light', 0.88)
    """

    def __init__(
        self,
        logits: Callable[[np.ndarray], np.ndarray],
        description: ExportMetadata,
        *,
        top: int = 5,
        batch_size: int = 32,
    ) -> None:
        self.metadata = description  # how pictures become input
        self._logits = logits
        self._top = min(top, len(description.class_names))
        self._batch_size = batch_size
        steps = description.complete_transforms()
        self._transforms = transforms.parse(steps, pixels=description.pixels)

    def __call__(self, paths: Iterable[Path | str]) -> Iterator[Prediction]:
        """Predicts file after file, a batch at a time, in the order given."""
        for batch in _batches(map(storage.path, paths), self._batch_size):
            pictures = [self._read(path) for path in batch]
            pixels = [picture for picture in pictures if isinstance(picture, np.ndarray)]
            predicted = iter(self.classify(pixels) if pixels else ())
            for path, picture in zip(batch, pictures, strict=True):
                if isinstance(picture, np.ndarray):
                    yield Prediction(path, *next(predicted))
                else:
                    yield Prediction(path, error=picture)

    def _read(self, path: Path) -> np.ndarray | str:
        """The picture as the network sees it before normalisation, or what is wrong with it."""
        try:
            return self.pixels(path.read_bytes())
        except OSError as error:
            return error.strerror or str(error)

    def pixels(self, data: bytes) -> np.ndarray | str:
        """An encoded picture as the network sees it before normalisation, or what is wrong."""
        try:
            return self._transforms(self._transforms.open(data), np.random.default_rng(0))
        except decode.DamagedImage as error:
            return str(error)

    def classify(
        self, pixels: Sequence[np.ndarray]
    ) -> Iterator[tuple[tuple[str, ...], tuple[float, ...]]]:
        """The most probable classes of up to a batch of pictures that `pixels` gave."""
        (batch,) = inference.batches_of(np.stack(pixels), self._batch_size)
        images = on_device.normalise_images(
            jnp.asarray(batch["image"]), self.metadata.mean, self.metadata.std
        )
        logits = self._logits(np.asarray(images))
        yield from self._named(np.asarray(jax.nn.softmax(logits, axis=-1))[batch["mask"]])

    def _named(
        self, probabilities: np.ndarray
    ) -> Iterator[tuple[tuple[str, ...], tuple[float, ...]]]:
        best = np.argsort(-probabilities, axis=-1, kind="stable")[:, : self._top]
        for row, order in zip(probabilities, best, strict=True):
            names = tuple(self.metadata.class_names[index] for index in order)
            yield names, tuple(float(row[index]) for index in order)


class WholePredictor(Predictor):
    """A graph that prepares pictures itself: it takes them one by one, as they are decoded."""

    def pixels(self, data: bytes) -> np.ndarray | str:
        try:
            return decode.as_array(self._transforms.open(data))
        except decode.DamagedImage as error:
            return str(error)

    def classify(
        self, pixels: Sequence[np.ndarray]
    ) -> Iterator[tuple[tuple[str, ...], tuple[float, ...]]]:
        yield from self._named(np.concatenate([self._logits(picture) for picture in pixels]))


def open_model(path: Path | str, *, step: int | str = "latest", **options: Any) -> Predictor:
    """The predictor of a run or of an export.

        predictor = cone_jax.open_model("runs/birds")
        for result in predictor(["owl.jpg"]):
            print(result.path, result.classes[0], result.probabilities[0])

    Args:
        path: the directory of a run, or an export such as ``runs/birds/exports/onnx``.
        step: a run's checkpoint: its number, ``latest`` or ``best``.
        options: ``top``, the number of classes to name (5), and ``batch_size`` (32).

    Returns:
        A function of picture files.
    """
    path = storage.path(path)
    if (path / metadata.FILE).exists():
        model = interop.open_export(path)
        if model.probabilities is not None:
            return WholePredictor(model.probabilities, model.metadata, **options)
        return Predictor(model.logits, model.metadata, **options)
    if not (path / workdir.CONFIG_FILE).exists():
        raise UserError(
            f"{path} is neither the directory of a run (no {workdir.CONFIG_FILE}) nor an export "
            f"(no {metadata.FILE}); give one of them as --workdir"
        )
    network = RunDirectory.open(path).deployed(step)
    return Predictor(_logits_of(network), network.metadata, **options)


def open_published(
    reference: str,
    report: Report = lambda line: None,
    architecture: Mapping[str, Any] = MappingProxyType({}),
    pictures: Mapping[str, Any] = MappingProxyType({}),
    **options: Any,
) -> Predictor:
    """The predictor of published weights.

        predictor = prediction.open_published("timm:mobilenetv2_100.ra_in1k")
        (result,) = predictor(["owl.jpg"])

    Args:
        reference: a name such as ``timm:mobilenetv2_100.ra_in1k``, or a file.
        report: is given a line about what is fetched.
        architecture: options of the network that a file does not state, such as stride_in_1x1.
        pictures: overrides what the weights say of their input: ``mean``, ``std``,
            ``transforms``, ``pixels``.
        options: as for `open_model`.

    Returns:
        A function of picture files.
    """
    network = named_network.open_network(reference, report, architecture, pictures)
    return Predictor(_logits_of(network), network.metadata, **options)


def _logits_of(network: DeployedNetwork) -> Callable[[np.ndarray], np.ndarray]:
    """Normalised images to logits, on one device: a few pictures need no more."""
    mesh = distributed.make_mesh(jax.local_devices()[:1])
    described = network.metadata
    placed = PlacedNetwork(network.encoder, described.mean, described.std, mesh)

    def logits(images: np.ndarray) -> np.ndarray:
        return inference.infer(placed, network.variables, [{"image": images}], _logits)["logits"]

    return logits


def _logits(out: EncoderOutput, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return {"logits": out.logits}


def _batches(paths: Iterable[Path], size: int) -> Iterator[list[Path]]:
    iterator = iter(paths)
    while batch := list(itertools.islice(iterator, size)):
        yield batch
