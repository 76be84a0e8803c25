"""The inputs of reports and figures: a run's records, its network's snapshot, its pictures.

Whatever is missing (data, checkpoint) is left out, with the reason.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cone_jax.analysis.detection_files import obtain_section
from cone_jax.analysis.neighbourhoods import NetworkAndBank
from cone_jax.analysis.page import Section
from cone_jax.analysis.snapshot import Snapshot, take
from cone_jax.data import datasets, sources
from cone_jax.data.sources import Source
from cone_jax.errors import UserError
from cone_jax.training.run_directory import RunDirectory


@dataclasses.dataclass(frozen=True)
class Evidence:
    """Everything that reports and figures are made from."""

    run: RunDirectory
    snapshot: Snapshot | None
    train: Source | None  # None: the data set is not at hand
    test: Source | None
    missing: str = ""  # why there is no snapshot or no data
    detections: Section | None = None  # of a detector, which has no snapshot

    def training_pictures(self, records: Sequence[int]) -> list[np.ndarray | None]:
        """Pictures of training records; None for missing pictures and unknown records (-1)."""
        return self._pictures(self.train, records)

    def test_pictures(self, records: Sequence[int]) -> list[np.ndarray | None]:
        return self._pictures(self.test, records)

    def file_name(self, source: Source | None, record: int) -> list[str]:
        """The name of a record's file, to look it up; empty if it is not known."""
        if source is None or not 0 <= record < len(source):
            return []
        return [sources.file_name(source, record)]

    def epoch_text(self, step: int) -> str:
        """The epoch of a step in brackets; empty where the data are gone."""
        if self.train is None:
            return ""
        per_epoch = datasets.train_order(self.run.config, len(self.train)).steps_per_epoch
        return f" (epoch {step / per_epoch:.4g})"

    def _pictures(self, source: Source | None, records: Sequence[int]) -> list[np.ndarray | None]:
        if source is None:
            return [None] * len(records)
        inside = range(len(source))
        return [
            datasets.test_pictures(self.run.config, source, [record])[0]
            if record in inside
            else None
            for record in records
        ]


def gather(directory: Path, step: int | str = "latest") -> Evidence:
    """Reads a run, and takes the snapshot of its network unless there is one."""
    run = RunDirectory.open(directory)
    missing = ""
    snapshot: Snapshot | None = None
    train: Source | None = None
    test: Source | None = None
    try:
        train, test = run.dataset.train, run.dataset.test
    except UserError as error:
        missing = str(error)
    if run.has_objects:
        found, reason = obtain_section(run, step)
        return Evidence(run, None, train, test, missing or reason, found)
    try:
        snapshot = obtain_snapshot(run, step)
    except UserError as error:
        if step != "latest":  # asked for by name
            raise
        missing = missing or str(error)
    return Evidence(run, snapshot, train, test, missing)


def obtain_snapshot(run: RunDirectory, step: int | str = "latest") -> Snapshot:
    """The stored snapshot of a checkpoint, or a new one; `UserError` if neither is possible."""
    number = run.resolve(step)
    snapshot = Snapshot.load(run.path, number)
    if snapshot is None:
        snapshot = take(_restore(run, number))
        snapshot.save(run.path)
    return snapshot


def _restore(run: RunDirectory, step: int) -> NetworkAndBank:
    """The network of a checkpoint, on the devices of this process."""
    stage = run.run.stage_at(step).on_local_devices()
    stage.require_classifier(step)
    variables = query = run.variables(stage, step)
    if stage.learner.averaging is not None:
        query = run.variables(stage, step, "query")
    return NetworkAndBank(stage, step, variables, query, run.bank(stage, step))
