"""Records what devices and host do during a few steps, for TensorBoard and Perfetto."""

from collections.abc import Sequence
from pathlib import Path

import jax

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
