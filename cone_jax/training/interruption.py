"""Stopping on request: SIGTERM and SIGINT let the current step finish and be saved."""

import os
import signal
import threading
from types import FrameType
from typing import Any

import jax
from jax.experimental import multihost_utils

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interruption:
    """Watches for a request to stop. A context manager; a second signal exits at once.

    With several processes the request may reach only one of them, and all must stop after the
    same step: there SIGTERM is left to JAX's coordination service, which tells them all.
    """

    def __init__(self) -> None:
        self._requested = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interruption":
        # Only the main thread may handle signals; a notebook's cell or a test may be elsewhere.
        if jax.process_count() == 1 and threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def requested(self, step: int) -> bool:
        """Whether to stop after `step`; every process gets the same answer."""
        if jax.process_count() > 1:
            return bool(multihost_utils.reached_preemption_sync_point(step))
        return self._requested

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._requested:
            os._exit(128 + number)
        self._requested = True
