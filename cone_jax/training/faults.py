"""What may stop a run: a request, or numbers that are infinite or NaN.

SIGTERM and SIGINT let the current step finish and be saved.

The host looks at the numbers of each step while the next one runs, at those it waits for anyway, so
the devices never wait for it. A bad batch is written to `bad_batches.jsonl`, from which it can be
made again (``--mode=preview --step=N`` draws it). Then, as the config says, the run stops, or goes
on without that update, which the step itself has left out. Before a checkpoint the whole state is
looked at: none is ever written that holds something infinite or NaN.
"""

import ctypes
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from cone_jax.console import Report
from cone_jax.errors import TrainingFailed
from cone_jax.evaluation import registry
from cone_jax.objectives import Metrics
from cone_jax.training.run import Run
from cone_jax.workdir.checkpoints import Checkpoints
from cone_jax.workdir.metrics import (
    BAD_BATCHES_FILE,
    METRICS_FILE,
    MetricWriter,
    read_records,
)

_CURE = "lower optimizer.learning_rate, set optimizer.clip_norm or nonfinite.policy=skip"
_LISTED = 5  # records that a message names; the file has them all


class Patience:
    """Ends a run whose best metric no longer improves: `evaluation.patience`.

    What was measured before comes from the metrics file, so that a run that goes on ends where it
    would have ended.
    """

    def __init__(self, run: Run, workdir: Path, first_step: int, report: Report) -> None:
        self._limit = run.config.evaluation.patience
        self._metric = run.config.checkpoint.best_metric
        self._sign = -1.0 if self._limit and registry.lower_is_better(run.config) else 1.0
        self._best, self._waited = -math.inf, 0
        self._report: Report = lambda line: None
        for record in read_records(workdir / METRICS_FILE) if self._limit else ():
            if record["step"] <= first_step:
                self.add(record)
        self._report = report

    @property
    def exhausted(self) -> bool:
        return 0 < self._limit <= self._waited

    def add(self, scores: Mapping[str, float]) -> bool:
        """Takes the scores of an evaluation, or none; whether the run is to end."""
        if not self._limit or self._metric not in scores:
            return False
        value = self._sign * scores[self._metric]
        self._waited = 0 if value > self._best else self._waited + 1
        self._best = max(self._best, value)
        if self.exhausted:
            self._report(
                f"{self._metric} has not improved for {self._waited} evaluations "
                f"(evaluation.patience): training ends; the best was {abs(self._best):.4f}"
            )
        return self.exhausted


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
        """Takes the metrics of a step just dispatched; waits for the previous one and checks it."""
        self.check()
        watched = ("loss", "gradient_norm", "skipped")
        self._pending = step, {name: metrics[name] for name in watched if name in metrics}

    def check(self) -> None:
        """Waits for the newest step and checks it. Raises `TrainingFailed` if the run must end."""
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


SIGNALS = (signal.SIGTERM, signal.SIGINT)
# `timeout` and some schedulers send a signal twice, to the process and to its group. What comes
# within so many seconds of the first is the same request.
SAME_REQUEST = 0.5


class Interruption:
    """Watches for a request to stop. A context manager; a second signal exits at once.

    At once even while the program is compiled or a device is waited for: Python calls a handler
    only between two of its own instructions, so a thread of its own hears of the signals.

    With several processes the request may reach only one of them, and all must stop after the
    same step: there it is handed to JAX's coordination service, which tells them all.
    """

    def __init__(self) -> None:
        self._requested = False
        self._service: int | None = None  # where JAX wants to be told of SIGTERM
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interruption":
        # Only the main thread may handle signals; a notebook's cell or a test may be elsewhere.
        if threading.current_thread() is threading.main_thread():
            if jax.process_count() > 1:
                self._service = _set_native_handler(signal.SIGTERM, signal.SIG_IGN)
            self._previous = {number: signal.signal(number, self._handle) for number in SIGNALS}
            heard, self._hears = socket.socketpair()
            self._hears.setblocking(False)
            self._earlier_fd = signal.set_wakeup_fd(self._hears.fileno())
            self._thread = threading.Thread(target=self._listen, args=(heard,), daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if not self._previous:
            return
        signal.set_wakeup_fd(self._earlier_fd)
        for number, handler in self._previous.items():
            if handler is not None:  # None: not of Python, which cannot put it back
                signal.signal(number, handler)
        if self._service is not None:
            _set_native_handler(signal.SIGTERM, self._service)
        self._previous = {}
        self._hears.shutdown(socket.SHUT_RDWR)  # a forked child may still hold it open
        self._hears.close()
        self._thread.join()

    def requested(self, step: int) -> bool:
        """Whether to stop after `step`; every process gets the same answer."""
        if jax.process_count() > 1:
            return bool(multihost_utils.reached_preemption_sync_point(step))
        return self._requested

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._requested = True

    def _listen(self, heard: socket.socket) -> None:
        """Gets the number of every signal as a byte, until the other end is closed."""
        first: float | None = None
        with heard:
            while byte := heard.recv(1):
                now = time.monotonic()
                if byte[0] not in SIGNALS:
                    continue
                if first is None:
                    first = now
                    if self._service not in (None, signal.SIG_DFL, signal.SIG_IGN):
                        ctypes.CFUNCTYPE(None, ctypes.c_int)(self._service)(signal.SIGTERM)
                elif now - first > SAME_REQUEST:
                    os._exit(128 + byte[0])


def _set_native_handler(number: int, handler: int) -> int:
    """C's `signal`: Python neither knows nor restores a handler that is not its own."""
    function = ctypes.CDLL(None).signal
    function.argtypes, function.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    return function(number, int(handler)) or 0
