"""Numbers of a run on disk: `metrics.jsonl` for programs, event files for TensorBoard.

`metrics.jsonl` is exactly reproducible: one object per line, ``step`` first, and after an
interruption it continues as if there had been none. What depends on the clock (images/s) goes to
`timing.jsonl`, and the records of batches whose update was not finite to `bad_batches.jsonl`,
which exists only where there were any. With
``--config.wandb_project=NAME`` Weights & Biases gets the same numbers.
"""

import importlib.util
import json
import secrets
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from cone_jax import storage
from cone_jax.errors import UserError

METRICS_FILE = "metrics.jsonl"
TIMING_FILE = "timing.jsonl"
BAD_BATCHES_FILE = "bad_batches.jsonl"
WANDB_ID_FILE = "wandb_id.txt"


class JsonLines:
    """An append-only file of records in the order of their steps."""

    def __init__(self, path: Path, *, last_step: int) -> None:
        """Opens `path` for the steps after `last_step`; later records are dropped.

        They are of steps that will be taken again, because the run goes on from an earlier
        checkpoint.
        """
        kept = [record for record in read_records(path) if record["step"] <= last_step]
        self._file = storage.AppendedFile(path, "".join(map(_line, kept)))

    def write(self, record: Mapping[str, Any]) -> None:
        self._file.write(_line(record))

    def sync(self) -> None:
        """Returns when everything written has reached the disk."""
        self._file.sync()

    def close(self, keep: bool = True) -> None:
        """With `keep` False nothing more is uploaded to a bucket."""
        self._file.close(keep)


def read_records(path: Path) -> list[dict[str, Any]]:
    """The complete records of a file; a last line cut short by a crash is left out."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def latest_values(path: Path) -> dict[str, Any]:
    """The newest value of everything recorded in a file."""
    merged: dict[str, Any] = {}
    for record in read_records(path):
        merged |= record
    return merged


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(dict(record)) + "\n"


def check_wandb(config: ConfigDict) -> None:
    """Refuses a project where the package is not installed."""
    project = config.wandb_project
    if project and importlib.util.find_spec("wandb") is None:
        raise UserError(
            f"wandb_project ({project!r}) needs the package wandb: pip install wandb, or leave the "
            "field empty"
        )


class WandbMirror:
    """One run in Weights & Biases, under the same id after an interruption."""

    def __init__(self, config: ConfigDict, directory: Path) -> None:
        import wandb

        path = directory / WANDB_ID_FILE
        if not path.exists():
            with storage.replacing(path) as unfinished:
                unfinished.write_text(secrets.token_hex(8))
        # It keeps files of its own, which it sends to its server, and knows no buckets.
        self._scratch = tempfile.TemporaryDirectory() if storage.is_remote(directory) else None
        self._run = wandb.init(
            project=config.wandb_project,
            name=directory.name,
            id=path.read_text(),
            resume="allow",
            dir=self._scratch.name if self._scratch else str(directory),
            config=config.to_dict(),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()
        if self._scratch is not None:
            self._scratch.cleanup()


class MetricWriter:
    """Writes the numbers of one run. A context manager."""

    def __init__(
        self,
        workdir: Path,
        last_step: int,
        mirror: WandbMirror | None = None,
        before_sync: Callable[[], None] = lambda: None,
    ) -> None:
        """Goes on after `last_step`; what was written of later steps is dropped.

        A `mirror` gets every number too. `before_sync` may forbid to write any more, by an error.
        """
        self._before_sync = before_sync
        self._mirror = mirror
        self._workdir, self._last_step = workdir, last_step
        self._bad_batches: JsonLines | None = None
        self._metrics = JsonLines(workdir / METRICS_FILE, last_step=last_step)
        self._timing = JsonLines(workdir / TIMING_FILE, last_step=last_step)
        # Imports PyTorch where that is installed, which takes seconds; only training needs it.
        from tensorboardX import SummaryWriter

        # TensorBoard hides events of an earlier start from purge_step on.
        self._event_folder = storage.MirroredFolder(workdir)
        self._events = SummaryWriter(str(self._event_folder.path), purge_step=last_step + 1)

    def __enter__(self) -> "MetricWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        forbidden: Exception | None = None
        try:
            self._before_sync()  # a bucket would take whole files, over those of somebody else
        except Exception as error:
            forbidden = error
        self._events.close()
        for file in (self._metrics, self._timing, self._event_folder, self._bad_batches):
            if file is not None:
                file.close(keep=forbidden is None)
        if self._mirror is not None:
            self._mirror.close()
        if forbidden is not None and kind is None:
            raise forbidden

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Records metrics that are the same in every run of the same config."""
        self._metrics.write({"step": step, **values})
        self._to_events(step, values)

    def write_timing(self, step: int, values: Mapping[str, float]) -> None:
        """Records what the clock said."""
        self._timing.write({"step": step, **values})
        self._to_events(step, values)

    def write_bad_batch(self, step: int, description: Mapping[str, Any]) -> None:
        """Records a batch whose update was not finite; on disk when this returns."""
        if self._bad_batches is None:
            path = self._workdir / BAD_BATCHES_FILE
            self._bad_batches = JsonLines(path, last_step=self._last_step)
        self._bad_batches.write({"step": step, **description})
        self._bad_batches.sync()

    def write_text(self, name: str, text: str) -> None:
        """Shows a text, such as the config, in TensorBoard."""
        self._events.add_text(name, text)

    def write_image(self, step: int, name: str, pixels: np.ndarray) -> None:
        """Shows a picture, uint8 [H, W, 3], in TensorBoard."""
        self._events.add_image(name, pixels, step, dataformats="HWC")

    def sync(self) -> None:
        """Call before a checkpoint: what it covers must not be lost with the process."""
        self._before_sync()
        self._metrics.sync()
        self._timing.sync()
        self._events.flush()
        self._event_folder.sync()

    def _to_events(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._events.add_scalar(name, value, step)
        if self._mirror is not None:
            self._mirror.log(step, values)


class SilentWriter(MetricWriter):
    """The writer of every process but the first: takes all, writes nothing."""

    def __init__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        pass

    def write(self, step: int, values: Mapping[str, float]) -> None:
        pass

    def write_timing(self, step: int, values: Mapping[str, float]) -> None:
        pass

    def write_bad_batch(self, step: int, description: Mapping[str, Any]) -> None:
        pass

    def write_text(self, name: str, text: str) -> None:
        pass

    def write_image(self, step: int, name: str, pixels: np.ndarray) -> None:
        pass

    def sync(self) -> None:
        pass
