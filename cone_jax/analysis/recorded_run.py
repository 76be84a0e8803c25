"""A run as its directory records it. Needs neither its data nor a device."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from cone_jax import workdir
from cone_jax.workdir.metrics import METRICS_FILE, TIMING_FILE, read_records


class Series(NamedTuple):
    """One metric over training; as many values as steps."""

    steps: np.ndarray
    values: np.ndarray


@dataclasses.dataclass(frozen=True)
class RecordedRun:
    """Config and metrics of a run, finished or not."""

    directory: Path
    config: ConfigDict
    records: Sequence[dict[str, Any]]

    @classmethod
    def open(cls, directory: Path | str) -> "RecordedRun":
        """Reads the directory; `UserError` when it is not that of a run."""
        directory = Path(directory).expanduser()
        config = workdir.load_config(directory)
        files = (METRICS_FILE, TIMING_FILE)
        records = [record for file in files for record in read_records(directory / file)]
        return cls(directory, config, records)

    @property
    def name(self) -> str:
        return self.directory.absolute().name

    @property
    def last_step(self) -> int:
        """The latest step anything is recorded of; 0 before the first."""
        return max((record["step"] for record in self.records), default=0)

    def metric_names(self) -> list[str]:
        """Everything recorded, in the order of its first appearance."""
        names = dict.fromkeys(name for record in self.records for name in record)
        return [name for name in names if name != "step"]

    def series(self, name: str) -> Series:
        """The values of one metric; empty where it was never recorded."""
        found = [(record["step"], record[name]) for record in self.records if name in record]
        steps, values = zip(*found, strict=True) if found else ((), ())
        return Series(np.array(steps, np.int64), np.array(values, np.float64))

    def last(self, name: str) -> float | None:
        """The newest value of a metric."""
        values = self.series(name).values
        return float(values[-1]) if values.size else None
