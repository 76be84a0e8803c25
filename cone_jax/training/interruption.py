"""Stopping on request: SIGTERM and SIGINT let the current step finish and be saved."""

import ctypes
import os
import signal
import socket
import threading
import time
from types import FrameType
from typing import Any

import jax
from jax.experimental import multihost_utils

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
