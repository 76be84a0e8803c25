"""What training costs a device: its memory, part by part, and a trace of what a few steps do."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from cone_jax import sharding
from cone_jax.errors import TrainingFailed
from cone_jax.training.train_state import TrainState
from cone_jax.training.train_step import Batch, train_step

DIRECTORY = "profile"


class Profile:
    """Traces the steps `first` to `last`, both included, into ``<workdir>/profile``.

    The folder is what TensorBoard's profile plugin reads; a file ``perfetto_trace.json.gz`` in it
    opens at ui.perfetto.dev. With no steps it does nothing.
    """

    def __init__(self, steps: Sequence[int], workdir: Path) -> None:
        self._first, self._last = steps if steps else (0, -1)
        self._directory = workdir / DIRECTORY
        self._tracing = False

    def before(self, step: int) -> None:
        """To be called before a step is dispatched."""
        if not self._tracing and self._first <= step <= self._last:
            jax.profiler.start_trace(str(self._directory), create_perfetto_trace=True)
            self._tracing = True

    def after(self, step: int, results: object) -> str | None:
        """To be called when a step has been dispatched; says where the trace is, once written."""
        if not self._tracing or step < self._last:
            return None
        jax.block_until_ready(results)
        self.close()
        return f"profile of steps {self._first} to {self._last}: {self._directory}"

    def close(self) -> None:
        """Writes what there is of a trace."""
        if self._tracing:
            self._tracing = False
            jax.profiler.stop_trace()


# What each part of the state is called in the overview.
PARTS = {
    "params": "network",
    "ema_params": "momentum network",
    "averaged": "averaged network",
    "opt_state": "optimiser",
    "bank": "bank",
}
# XLA's word for it, on all backends.
_EXHAUSTED = "RESOURCE_EXHAUSTED"


def overview(state: TrainState, batch: Batch) -> str:
    """One line: the memory of a device that the state holds, part by part, and a step needs.

    Compiles the step, which then need not be compiled again. What a step needs beside the state
    are mostly the activations that it keeps for the gradient.
    """
    held = {name: _bytes_a_device(getattr(state, field)) for field, name in PARTS.items()}
    listing = ", ".join(f"{name} {readable(size)}" for name, size in held.items() if size)
    line = f"memory a device: state {readable(_bytes_a_device(state))} ({listing})"
    analysis = train_step.lower(state, batch).compile().memory_analysis()
    if analysis is None:  # not every backend tells
        return line
    return f"{line}, activations and other temporaries {readable(analysis.temp_size_in_bytes)}"


def readable(size: float) -> str:
    """Bytes with a unit.

    >>> readable(512), readable(3 * 2**20), readable(1.5 * 2**30)
    ('512 B', '3.0 MiB', '1.5 GiB')
    """
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


@contextlib.contextmanager
def explained(config: ConfigDict, mesh: Mesh) -> Iterator[None]:
    """Turns an allocation that failed on a device into advice."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if _EXHAUSTED not in str(error):
            raise
        raise TrainingFailed(
            f"a device ran out of memory; {_advice(config, mesh)} (the devices' own words: "
            f"{str(error).splitlines()[0]})"
        ) from error


def _advice(config: ConfigDict, mesh: Mesh) -> str:
    """Fields to change, those first that cost least."""
    cures = []
    if config.model.dtype == "float32" and sharding.platform(mesh) != "cpu":
        cures.append("model.dtype=bfloat16")
    if not config.model.options.remat:
        cures.append("model.options.remat=True")
    cures.append(f"raise accumulate ({config.accumulate})")
    cures.append(f"lower batch_size ({config.batch_size})")
    if config.bank.sharding == "replicated" and mesh.size > 1:
        cures.append("bank.sharding=sharded")
    cures.append(f"lower bank.size ({config.bank.size})")
    return "try " + ", ".join(cures)


def _bytes_a_device(tree: Any) -> int:
    def one(array: jax.Array) -> int:
        shape = array.sharding.shard_shape(array.shape)
        size = array.dtype.itemsize
        for length in shape:
            size *= length
        return size

    return sum(map(one, jax.tree.leaves(tree)))
