"""Times of several programs, taken in turns, so that a noisy machine is unfair to none."""

import math
import time
from collections.abc import Callable, Mapping

import jax


def fastest(
    programs: Mapping[str, Callable[[], object]], rounds: int, *, wall: bool = True
) -> dict[str, float]:
    """The fastest time of each program in seconds, after one round to warm up.

    The fastest, since what else a machine does can only add to a time. With `wall` False and on a
    CPU it is processor time, all cores together, which other programs disturb less.
    """
    on_cpu = jax.default_backend() == "cpu"
    now = time.perf_counter if wall or not on_cpu else time.process_time
    best = dict.fromkeys(programs, math.inf)
    for index in range(1 + rounds):
        for name, run in programs.items():
            began = now()
            jax.block_until_ready(run())
            if index:
                best[name] = min(best[name], now() - began)
    return best
