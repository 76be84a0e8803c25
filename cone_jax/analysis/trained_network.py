"""A checkpoint brought back to life beside its data: what the network makes of pictures."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from cone_jax import losses, sharding
from cone_jax.data import datasets, transforms
from cone_jax.data.pipeline import EvalBatches, HostBatch
from cone_jax.data.sources import Source
from cone_jax.evaluation.inference import infer_compiled
from cone_jax.memory_bank import MemoryBank
from cone_jax.training.run import Run
from cone_jax.workdir.checkpoints import Checkpoints


class Outputs(NamedTuple):
    """What a network says in evaluation mode, on the host."""

    features: np.ndarray  # [n, d], pooled
    embedding: np.ndarray  # [n, D], unit norm
    logits: np.ndarray  # [n, C]


@dataclasses.dataclass(frozen=True)
class TrainedNetwork:
    """The network of one checkpoint, and the bank it had then."""

    run: Run  # the stage that the checkpoint belongs to
    step: int
    variables: dict[str, Any]  # of the network that is evaluated
    query_variables: dict[str, Any]  # of the one that learns, which the bank belongs to
    bank: MemoryBank | None  # None for objectives without, or while there is nothing in it

    @classmethod
    def restore(cls, directory: Path, config: ConfigDict, step: int) -> "TrainedNetwork":
        """Opens data and checkpoint; `UserError` where one of them is gone.

        Of several processes one suffices: nothing here waits for another.
        """
        stage = Run.open(config).stage_at(step).on_local_devices()
        abstract = stage.abstract_state()
        with Checkpoints(directory, read_only=True) as checkpoints:
            variables = query = stage.restore_network(checkpoints, step)
            if abstract.averaged is not None:
                query = checkpoints.restore_fields(step, abstract.variables)
            bank = None
            if abstract.bank is not None:
                bank = checkpoints.restore_fields(step, {"bank": abstract.bank})["bank"]
        if bank is not None and not int(bank.filled):
            bank = None
        return cls(stage, step, variables, query, bank)

    def look(self, images: np.ndarray) -> Outputs:
        """What the network says to uint8 [n, H, W, 3], whatever n."""
        return self._look(images, self.variables)

    def embed(self, images: np.ndarray) -> np.ndarray:
        """Unit-norm embeddings [n, D] that can be compared with the bank."""
        return self._look(images, self.query_variables).embedding

    def _look(self, images: np.ndarray, variables: dict[str, Any]) -> Outputs:
        size = self.run.config.evaluation.batch_size
        parts = []
        for first in range(0, len(images), size):
            chunk = images[first : first + size]
            # One size, hence one compilation.
            padding = np.repeat(chunk[-1:], size - len(chunk), axis=0)
            outputs = self._apply(np.concatenate([chunk, padding]), variables)
            parts.append(Outputs(*(rows[: len(chunk)] for rows in outputs)))
        return Outputs(*map(np.concatenate, zip(*parts, strict=True)))

    def look_at_test_split(self) -> Iterator[tuple[HostBatch, Outputs]]:
        """Every test picture once, a batch at a time, without the padding of the last one."""
        for batch in self.run.eval_stream(self.run.dataset.test, report=lambda line: None):
            real = batch["mask"]
            outputs = self._apply(batch["image"], self.variables)
            yield (
                {name: rows[real] for name, rows in batch.items()},
                Outputs(*(rows[real] for rows in outputs)),
            )

    def _apply(self, images: np.ndarray, variables: dict[str, Any]) -> Outputs:
        learner = self.run.learner
        batch = sharding.to_devices(self.run.mesh, {"image": images})
        out = infer_compiled(
            variables,
            batch["image"],
            encoder=learner.encoder,
            mean=learner.mean,
            std=learner.std,
        )
        embedding = losses.normalise(out.embedding)
        return Outputs(*jax.device_get((out.features, embedding, out.logits)))


def pictures(config: ConfigDict, source: Source, records: Sequence[int]) -> list[np.ndarray]:
    """Records as the network sees them at test time: uint8 [H, W, 3] each."""
    view = EvalBatches(source, transforms.parse(config.data.test_transforms), batch_size=1)
    return [view[record]["image"][0] for record in records]


def open_sources(config: ConfigDict) -> tuple[Source, Source]:
    """The training and the test records; `UserError` where they are gone."""
    dataset = datasets.open_dataset(config.data)
    return dataset.train, dataset.test
