"""Picture files to boxes and masks, as COCO's result entries and drawn on the pictures."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from cone_jax import distributed, storage
from cone_jax.data import decode, object_drawing, objects
from cone_jax.evaluation import coco_metric, detection, inference
from cone_jax.evaluation.detection import drawn_entries
from cone_jax.evaluation.inference import PlacedNetwork
from cone_jax.interop.exported_detector import ExportedDetector
from cone_jax.training.run_directory import DeployedNetwork


class FoundObjects(NamedTuple):
    """The objects on one picture as COCO's result entries, or `error` if it is damaged.

    >>> found = FoundObjects(Path("street.jpg"), entries=[{"category_id": 3, "score": 0.9}])
    >>> [entry["category_id"] for entry in found.entries if entry["score"] > 0.5]
    [3]
    """

    path: Path  # the picture file
    pixels: np.ndarray | None = None  # the picture, uint8, height by width by 3
    entries: Sequence[dict[str, Any]] = ()  # bbox, category_id, score and segmentation of each
    error: str = ""  # what is wrong with the file


class ObjectFinder:
    """Finds objects in picture files with a detector, on one device.

        finder = prediction.ObjectFinder(RunDirectory.open("runs/street").deployed("best"))
        for found in finder(["street.jpg"]):
            print(found.path, found.entries)

    Args:
        network: `RunDirectory.open(PATH).deployed(STEP)`, or an opened export.
        category_ids: what COCO calls the classes; None: 1, 2, ...
    """

    def __init__(
        self,
        network: DeployedNetwork | ExportedDetector,
        category_ids: Sequence[int] | None = None,
    ) -> None:
        description = network.metadata
        self.class_names = description.class_names  # without the background
        # What COCO calls them, in the same order.
        self.category_ids = category_ids or range(1, len(self.class_names) + 1)
        self._variables = network.variables
        self._transform = objects.parse(description.transforms, "data.test_transforms")
        mesh = distributed.make_mesh(jax.local_devices()[:1])
        self._network = PlacedNetwork(
            network.encoder, tuple(description.mean), tuple(description.std), mesh
        )

    def __call__(self, paths: Iterable[Path | str]) -> Iterator[FoundObjects]:
        """Finds the objects of one file after another; the first picture's id is 1."""
        for number, path in enumerate(map(storage.path, paths), 1):
            try:
                pixels = decode.as_array(decode.open_image(path.read_bytes()))
            except OSError as error:
                yield FoundObjects(path, error=error.strerror or str(error))
            except decode.DamagedImage as error:
                yield FoundObjects(path, error=str(error))
            else:
                yield FoundObjects(path, pixels, self._find(number, pixels))

    def _find(self, number: int, pixels: np.ndarray) -> list[dict[str, Any]]:
        nothing = np.zeros((0, 4), np.float32)
        blank = np.zeros((0, objects.MASK_SIDE, objects.MASK_SIDE), np.uint8)
        example = objects.Example(
            pixels, nothing, np.zeros(0, np.int32), np.zeros(0, bool), blank, nothing
        )
        example = self._transform(example, np.random.default_rng(0))
        upright = pixels.shape[0] > pixels.shape[1]
        batch = self._transform.stack([example], upright=upright)
        columns = {"image": batch["image"], "size": batch["size"]}
        (rows,) = inference.infer_batches(
            self._network, self._variables, [columns], detection.detections_of
        )
        found, size = detection.unpack(rows), (pixels.shape[0], pixels.shape[1])
        return coco_metric.results(
            [number],
            [size],
            rows["size"],
            found,
            self.category_ids,
            masks=found.masks.shape[-1] > 0,
        )

    def drawn(self, found: FoundObjects) -> np.ndarray:
        """The picture with the objects of sufficient score drawn on it."""
        assert found.pixels is not None
        names = dict(zip(self.category_ids, self.class_names, strict=True))
        return object_drawing.draw(found.pixels, drawn_entries(found.entries, names))
