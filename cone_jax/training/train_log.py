"""Train metrics on their way from the device to the files, without stopping the device.

Metrics are averaged on the device between two records. A record is read after the next step
has been dispatched, so the device always has work while the host waits.
"""

from typing import Any

import jax
import jax.numpy as jnp
from clu.metrics import Average

from cone_jax import objectives
from cone_jax.console import Chart, Metric
from cone_jax.evaluation.accuracy import ACCURACY_CHART
from cone_jax.objectives import Metrics
from cone_jax.objectives.objective import LOSS_CHART
from cone_jax.training.progress import ProgressDisplay
from cone_jax.workdir.metrics import MetricWriter

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
    """What training records, by full names."""
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
