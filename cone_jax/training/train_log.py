"""The output of a run while it trains: metrics, progress, memory, and traces of a few steps.

The device never waits for metrics. They are averaged on the device between two records, and a
record is read after the next step has been dispatched. A person sees a bar on a terminal, and plain
lines elsewhere.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from clu.metrics import Average
from jax.sharding import Mesh
from ml_collections import ConfigDict
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

from cone_jax import distributed, objectives, runtime, storage
from cone_jax.console import Chart, Metric, Report, duration, peak_memory, plain_lines, readable
from cone_jax.errors import TrainingFailed
from cone_jax.evaluation.accuracy import ACCURACY_CHART
from cone_jax.objectives import Metrics
from cone_jax.objectives.objective import LOSS_CHART
from cone_jax.training import cures
from cone_jax.training.train_state import TrainState
from cone_jax.training.train_step import Batch, train_step
from cone_jax.workdir.metrics import MetricWriter

# Loss terms first, then what says how well it goes; anything else stays in the metrics file.
SHOWN = ("loss", "loss_ce", "loss_sup_in", "loss_sup_out", "loss_dc", "top1")
BAR_WIDTH = 52  # columns for everything but the metrics
PLAIN_INTERVAL = 10.0  # seconds between lines when the output is no terminal
# An estimate is made of so many steps or seconds, and told where it is longer than this.
ESTIMATE_STEPS, ESTIMATE_SECONDS, ESTIMATE_WORTH = 20, 5.0, 60.0


class Estimate:
    """Estimates the length of a run from its first steps, and reports it once."""

    def __init__(
        self, total_steps: int, hint: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total, self._hint, self._clock = total_steps, hint, clock
        self._first: tuple[int, float] | None = None
        self._told = False

    def add(self, step: int) -> Iterator[str]:
        """To be called when `step` has been dispatched, which is when the one before is done."""
        if self._told:
            return
        if self._first is None or step == self._first[0] + 1:  # the first includes compilation
            self._first = self._first or (step, 0.0)
            self._first = (self._first[0], self._clock())
            return
        taken, steps = self._clock() - self._first[1], step - self._first[0] - 1
        if steps < ESTIMATE_STEPS and taken < ESTIMATE_SECONDS:
            return
        self._told = True
        left = (self._total - step) * taken / steps
        if left < ESTIMATE_WORTH:
            return
        yield f"about {duration(left)} on {machine()}; {self._hint}"
        if jax.default_backend() == "cpu":  # more than the step needs: the C library keeps some
            yield f"memory that the process has taken so far: {readable(peak_memory())}"


def machine() -> str:
    """The devices that compute, in a few words."""
    if jax.default_backend() == "cpu":
        return f"these {len(os.sched_getaffinity(0))} cores"
    return f"{jax.device_count()} x {jax.devices()[0].device_kind}"


class ProgressDisplay:
    """Epoch, step, loss terms, images/s and time left. A context manager."""

    def __init__(
        self,
        console: Console,
        *,
        total_steps: int,
        steps_per_epoch: int,
        batch_size: int,
        first_step: int,
        epoch_zero: int = 0,
        length_field: str = "epochs",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self.say = plain_lines(console)  # prints a line above the bar
        self._total_steps = total_steps
        self._steps_per_epoch = steps_per_epoch
        self._batch_size = batch_size
        self._epoch_zero = epoch_zero  # the step from which epochs count
        self._clock = clock
        self._mark = (first_step, clock())
        self._last_line = float("-inf")
        self._estimate = Estimate(total_steps, f"--config.{length_field} changes it", clock)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=10),
            MofNCompleteColumn(),
            TextColumn("eta"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[status]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(
            "", total=total_steps, completed=first_step, epoch=self._epoch(first_step), status=""
        )

    def __enter__(self) -> "ProgressDisplay":
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def advance(self, step: int) -> None:
        """Says that `step` steps have been taken."""
        self._bar.update(self._task, completed=step, epoch=self._epoch(step))
        for line in self._estimate.add(step):
            self.say(line)

    def report(self, step: int, metrics: Mapping[str, float]) -> float:
        """Shows the metrics up to `step`; returns the images/s since the last report."""
        now = self._clock()
        last_step, last_time = self._mark
        rate = (step - last_step) * self._batch_size / max(now - last_time, 1e-9)
        self._mark = (step, now)
        terms = (
            f"{name.removeprefix('loss_')} {metrics[name]:.3f}" for name in SHOWN if name in metrics
        )
        status = f"{rate:,.0f} images/s {' '.join(terms)}"
        # Rich would drop the bar and the time left to make room on a narrow terminal.
        self._bar.update(self._task, status=status[: max(self._console.width - BAR_WIDTH, 0)])
        done = step == self._total_steps
        if not self._console.is_terminal and (done or now - self._last_line >= PLAIN_INTERVAL):
            self._last_line = now
            left = (self._total_steps - step) * self._batch_size / max(rate, 1e-9)
            self.say(
                f"step {step}/{self._total_steps} epoch {self._epoch(step)} {status} "
                f"eta {left:,.0f} s"
            )
        return rate

    def restart_clock(self, step: int) -> None:
        """Leaves the time since the last report, such as an evaluation, out of images/s."""
        self._mark = (step, self._clock())

    def _epoch(self, step: int) -> str:
        total = -(-(self._total_steps - self._epoch_zero) // self._steps_per_epoch)
        return f"{min((step - self._epoch_zero) // self._steps_per_epoch + 1, total)}/{total}"


Window = dict[str, Average]

# What every training step finds, whatever the objective.
_STEP_METRICS = (
    Metric("loss", better="lower", chart=LOSS_CHART, label="total"),
    Metric("top1", unit="share", chart=ACCURACY_CHART, label="{} top-1"),
    Metric("learning_rate", chart=Chart("learning_rate", "Learning rate", "learning rate")),
    Metric(
        "ema_momentum",
        chart=Chart(
            "momentum",
            "Momentum of the key network",
            "momentum m",
            "θ_key ← m θ_key + (1 − m) θ_query.",
            digits=6,
        ),
    ),
    Metric("gradient_norm", chart=Chart("gradient", "Gradient norm", "gradient norm")),
)
_CLOCK_METRICS = (
    Metric("images_per_second", chart=Chart("speed", "Speed", "images per second")),
    Metric("seconds", better="lower", unit="seconds", drawn=False),
)


def declared_metrics() -> dict[str, Metric]:
    """The metrics that training records, by full names."""
    found = (*_STEP_METRICS, *objectives.declared_metrics())
    by_step = {f"train/{metric.name}": metric for metric in found}
    return by_step | {f"time/{metric.name}": metric for metric in _CLOCK_METRICS}


class TrainLog:
    """The metrics since the last record, and the record that is still to be read."""

    def __init__(
        self,
        writer: MetricWriter,
        display: ProgressDisplay,
        *,
        every: int,
        saved: dict[str, Any] | None = None,
    ) -> None:
        """`saved` is what `to_save` gave when the run was interrupted."""
        self._writer = writer
        self._display = display
        self._every = every
        self._window: Window = _from_saved(saved or {})
        self._pending: tuple[int, Window] | None = None

    def add(self, step: int, metrics: Metrics, *, last: bool = False) -> None:
        """Takes the metrics of `step`; reads the record before, if one is due."""
        self._window = _accumulate(self._window, metrics)
        self.flush()
        if step % self._every == 0 or last:
            self._pending, self._window = (step, self._window), {}

    def flush(self) -> None:
        """Reads and writes the pending record."""
        if self._pending is not None:
            self.write(self._pending[0], {})

    def write(self, step: int, values: dict[str, float]) -> None:
        """Writes the results of an evaluation, together with a pending record of that step."""
        record: dict[str, float] = {}
        if self._pending is not None:
            window = jax.device_get(self._pending[1])
            self._pending = None
            means = {name: float(a.compute()) for name, a in window.items() if a.count > 0}
            rate = self._display.report(step, means)
            self._writer.write_timing(step, {"time/images_per_second": rate})
            record = {f"train/{name}": mean for name, mean in means.items()}
        self._writer.write(step, record | values)

    def to_save(self) -> dict[str, Any]:
        """The metrics not yet in a record, exactly, as JSON."""
        window = jax.device_get(self._window)
        return {name: [float(a.total), int(a.count)] for name, a in window.items()}


@jax.jit
def _accumulate(window: Window, metrics: Metrics) -> Window:
    # What a skipped step says (see `train_step._keep_if`) would make every mean NaN.
    counts = metrics["skipped"][None] == 0 if "skipped" in metrics else None
    added = {
        name: Average.from_model_output(value, mask=None if name == "skipped" else counts)
        for name, value in metrics.items()
    }
    return {name: window[name].merge(a) if name in window else a for name, a in added.items()}


def _from_saved(saved: dict[str, Any]) -> Window:
    return {
        name: Average(jnp.asarray(total, jnp.float32), jnp.asarray(count, jnp.int32))
        for name, (total, count) in saved.items()
    }


DIRECTORY = "profile"


class Profile:
    """Traces the steps `first` to `last`, both included, into ``<workdir>/profile``.

    The folder is what TensorBoard's profile plugin reads; a file ``perfetto_trace.json.gz`` in it
    opens at ui.perfetto.dev. With no steps it does nothing.
    """

    def __init__(self, steps: Sequence[int], workdir: Path) -> None:
        self._first, self._last = steps if steps else (0, -1)
        self._directory = workdir / DIRECTORY
        self._trace: storage.MirroredFolder | None = None

    def before(self, step: int) -> None:
        """To be called before a step is dispatched."""
        if self._trace is None and self._first <= step <= self._last:
            # The profiler writes to disks alone.
            self._trace = storage.MirroredFolder(self._directory)
            jax.profiler.start_trace(str(self._trace.path), create_perfetto_trace=True)

    def after(self, step: int, results: object) -> str | None:
        """To be called when a step has been dispatched; says where the trace is, once written."""
        if self._trace is None or step < self._last:
            return None
        jax.block_until_ready(results)
        self.close()
        return f"profile of steps {self._first} to {self._last}: {self._directory}"

    def close(self) -> None:
        """Writes what there is of a trace."""
        if self._trace is not None:
            trace, self._trace = self._trace, None
            jax.profiler.stop_trace()
            trace.close()


# What each part of the state is called in the overview.
PARTS = {
    "params": "network",
    "ema_params": "momentum network",
    "averaged": "averaged network",
    "opt_state": "optimiser",
    "bank": "bank",
}
_MUCH = 0.8  # of a machine's memory; the rest is the system's
# XLA's word for it, on all backends.
_EXHAUSTED = "RESOURCE_EXHAUSTED"


def say_memory(state: TrainState, batch: Batch, say: Report) -> None:
    """Reports the overview, and before it the reason for the wait."""
    say("compiling the training step")
    line, needed = overview(state, batch)
    if jax.default_backend() != "cpu" or not needed:
        say(line)
        return
    expected, there = runtime.expected_memory(needed), runtime.physical_memory()
    say(f"{line}; the process takes about {readable(expected)}")
    if there and expected > _MUCH * there:
        say(
            f"warning: that is more than {_MUCH:.0%} of the {readable(there)} here, and the system "
            "may end the run: lower batch_size or data.image_size, or close other programs"
        )


def overview(state: TrainState, batch: Batch) -> tuple[str, int]:
    """One line on a device's memory: what the state holds, part by part, and what a step needs.

    Also the bytes of both together, or 0 if that is not known. Compiles the step, which then need
    not be compiled again. Besides the state, a step mostly needs the activations that it keeps for
    the gradient.
    """
    held = {name: _bytes_a_device(getattr(state, field)) for field, name in PARTS.items()}
    listing = ", ".join(f"{name} {readable(size)}" for name, size in held.items() if size)
    own = _bytes_a_device(state)
    line = f"memory per device: state {readable(own)} ({listing})"
    analysis = train_step.lower(state, batch).compile().memory_analysis()
    if analysis is None:  # not every backend tells
        return line, 0
    temporaries = analysis.temp_size_in_bytes
    told = f"{line}, activations and other temporaries {readable(temporaries)}"
    return told, own + temporaries


@contextlib.contextmanager
def explained(config: ConfigDict, mesh: Mesh) -> Iterator[None]:
    """Turns an allocation that failed on a device into advice."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if _EXHAUSTED not in str(error):
            raise
        raise TrainingFailed(
            f"a device ran out of memory; {_advice(config, mesh)} (the device said: "
            f"{str(error).splitlines()[0]})"
        ) from error


def _advice(config: ConfigDict, mesh: Mesh) -> str:
    """Fields to change, cheapest first."""
    found = cures.find(config, platform=distributed.platform(mesh), devices=mesh.size)
    return "try " + ", ".join(map(str, found))


def _bytes_a_device(tree: Any) -> int:
    def one(array: jax.Array) -> int:
        shape = array.sharding.shard_shape(array.shape)
        size = array.dtype.itemsize
        for length in shape:
            size *= length
        return size

    return sum(map(one, jax.tree.leaves(tree)))
