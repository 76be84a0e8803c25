"""What the host does about losses and gradients that are infinite or NaN.

It looks at each step while the next one runs, at numbers it waits for anyway, so the devices
never wait for it. The batch is written to `bad_batches.jsonl`, from which it can be made again
(``--mode=preview --step=N`` draws it). Then, as the config says, the run stops, or goes on without
that update, which the step itself has left out. Before a checkpoint the whole state is looked at:
none is ever written that holds something infinite or NaN.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cone_jax.console import Report
from cone_jax.errors import TrainingFailed
from cone_jax.objectives import Metrics
from cone_jax.training.run import Run
from cone_jax.workdir.checkpoints import Checkpoints
from cone_jax.workdir.metrics import BAD_BATCHES_FILE, MetricWriter

_CURE = "lower optimizer.learning_rate, set optimizer.clip_norm or nonfinite.policy=skip"
_LISTED = 5  # records that a message names; the file has them all


class NonfiniteGuard:
    """Watches the steps of one stage. Every process comes to the same verdict."""

    def __init__(
        self,
        run: Run,
        checkpoints: Checkpoints,
        writer: MetricWriter,
        report: Report,
        skipped: int,
    ) -> None:
        """`skipped` updates have been left out before this start."""
        self.skipped = skipped
        self._run = run
        self._checkpoints = checkpoints
        self._writer = writer
        self._report = report
        self._pending: tuple[int, Metrics] | None = None

    def add(self, step: int, metrics: Metrics) -> None:
        """Takes the metrics of a step just dispatched; waits for the step before, and judges it."""
        self.check()
        watched = ("loss", "gradient_norm", "skipped")
        self._pending = step, {name: metrics[name] for name in watched if name in metrics}

    def check(self) -> None:
        """Waits for the newest step, and judges it. Raises `TrainingFailed` if that was it."""
        if self._pending is None:
            return
        step, metrics = self._pending
        self._pending = None
        values = {name: float(value) for name, value in jax.device_get(metrics).items()}
        skipped = values.get("skipped", 0.0) > 0
        if not skipped and all(map(math.isfinite, values.values())):
            return
        self._act(step, values, skipped)

    def require_finite(self, step: int, state: Any) -> None:
        """Refuses a state that is not fit to be saved, naming what is wrong with it."""
        named = [
            (path, leaf)
            for path, leaf in jax.tree_util.tree_leaves_with_path(state)
            if jnp.issubdtype(leaf.dtype, jnp.inexact)
        ]
        flags = np.asarray(_finite_leaves([leaf for _, leaf in named]))
        if not flags.all():
            path = jax.tree_util.keystr(named[int(np.argmin(flags))][0]).lstrip(".")
            raise TrainingFailed(
                f"the state after step {step} is not finite ({path}) and is not saved; "
                f"{self._last_good()}; {_CURE}"
            )

    def _act(self, step: int, values: dict[str, float], skipped: bool) -> None:
        records = self._run.host_batch(step)["id"].tolist()
        self._writer.write_bad_batch(
            step,
            {
                "action": "skip" if skipped else "stop",
                "loss": str(values["loss"]),  # JSON has no infinity and no NaN
                "gradient_norm": str(values["gradient_norm"]),
                "records": records,
            },
        )
        dots = ", ..." if len(records) > _LISTED else ""
        what = (
            f"loss {values['loss']}, gradient norm {values['gradient_norm']} at step {step}, "
            f"records {', '.join(map(str, records[:_LISTED]))}{dots} (see {BAD_BATCHES_FILE})"
        )
        if not skipped:
            raise TrainingFailed(f"{what}; {self._last_good()}; {_CURE}")
        self.skipped += 1
        limit = self._run.config.nonfinite.skip_limit
        self._report(f"{what}; update skipped, {self.skipped} of at most {limit}")
        if self.skipped > limit:
            raise TrainingFailed(
                f"{what}; {self.skipped} updates are skipped, more than nonfinite.skip_limit "
                f"({limit}); {self._last_good()}; lower optimizer.learning_rate or set "
                "optimizer.clip_norm"
            )

    def _last_good(self) -> str:
        self._checkpoints.wait()
        step = self._checkpoints.latest_step()
        if step is None:
            return "there is no checkpoint yet"
        return f"the last good checkpoint is {step}"


@jax.jit
def _finite_leaves(leaves: list[jax.Array]) -> jax.Array:
    return jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves])
