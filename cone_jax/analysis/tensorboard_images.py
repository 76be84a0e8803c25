"""Sheets of pictures for TensorBoard while a run trains: training samples and neighbours.

The first evaluation adds the augmented training samples, each one a few test pictures beside
their nearest neighbours in the bank. This costs one pass over a handful of pictures.
"""

import dataclasses

import jax
import numpy as np

from cone_jax import distributed, memory_bank
from cone_jax.analysis import neighbourhoods
from cone_jax.analysis.neighbourhoods import NetworkAndBank
from cone_jax.data import contact_sheet, datasets
from cone_jax.training.run import Run
from cone_jax.training.train_state import TrainState
from cone_jax.workdir.metrics import MetricWriter

_SAMPLES = 36
_QUERIES, _NEIGHBOURS = 8, 8


@dataclasses.dataclass
class TensorboardImages:
    """Given to `training.train`, which calls it after every evaluation.

    If it fails it says so in TensorBoard and stops, and training continues. Of several processes
    the first one draws, from its own copy of the state.
    """

    _samples_shown: bool = False
    _works: bool = True

    def __call__(self, run: Run, step: int, state: TrainState, writer: MetricWriter) -> None:
        if not self._works or not distributed.is_primary():
            return
        try:
            self._write(run, step, state, writer)
        except Exception as error:
            self._works = False
            writer.write_text("sheets", f"no sheets from step {step} on: {error}")

    def _write(self, run: Run, step: int, state: TrainState, writer: MetricWriter) -> None:
        if not self._samples_shown:
            self._samples_shown = True
            writer.write_image(step, "samples", samples_sheet(run))
        arrays = (state.evaluated, state.variables, state.bank)
        if jax.process_count() > 1:
            if not all(leaf.is_fully_replicated for leaf in jax.tree.leaves(arrays)):
                return  # a bank that is split over processes
            evaluated, variables, bank = jax.device_get(arrays)
            # To be looked up here alone, not on all devices of the run.
            arrays = (evaluated, variables, None if bank is None else bank.replace(mesh=None))
        network = NetworkAndBank(run.on_local_devices(), step, *arrays)
        if network.bank is not None and int(network.bank.filled):
            writer.write_image(step, "neighbours", neighbours_sheet(network))


def samples_sheet(run: Run) -> np.ndarray:
    """The first training samples as the network sees them, uint8 [H, W, 3]."""
    source = run.dataset.train
    batch = datasets.train_batches(run.config, source, num_steps=1)[0]
    images, names = contact_sheet.labelled(batch, source.class_names)
    return np.asarray(contact_sheet.draw(images[:_SAMPLES], names[:_SAMPLES]))


def neighbours_sheet(network: NetworkAndBank) -> np.ndarray:
    """Test pictures, each in a row with its nearest bank rows and their similarity."""
    run, bank = network.run, network.bank
    assert bank is not None
    test, train = run.dataset.test, run.dataset.train
    queries = np.linspace(0, len(test) - 1, min(_QUERIES, len(test))).astype(int)
    images = np.stack(datasets.test_pictures(run.config, test, queries.tolist()))
    labels = np.array([test[query].label for query in queries.tolist()])
    sheet = neighbourhoods.nearest(
        bank, network.embed(images), queries, labels, labels, k=_NEIGHBOURS
    )
    tiles: list[np.ndarray] = []
    captions: list[str] = []
    blank = np.full_like(images[0], 255)
    for index, image in enumerate(images):
        tiles.append(image)
        captions.append(f"query: {train.class_names[labels[index]]}")
        for place, record in enumerate(sheet.neighbours[index].tolist()):
            known = record != memory_bank.NO_ID
            tiles.append(datasets.test_pictures(run.config, train, [record])[0] if known else blank)
            captions.append(_caption(sheet, index, place, train.class_names))
    columns = 1 + sheet.neighbours.shape[1]
    return np.asarray(contact_sheet.draw(np.stack(tiles), captions, columns=columns))


def _caption(
    sheet: neighbourhoods.NeighbourSheet, index: int, place: int, names: tuple[str, ...]
) -> str:
    label = sheet.neighbour_labels[index, place]
    return "" if label < 0 else f"{sheet.similarity[index, place]:.2f} {names[label]}"
