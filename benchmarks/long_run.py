"""Watches what a long run holds on to: memory, device memory, file handles, threads.

    python benchmarks/long_run.py --steps=2000

Trains a tiny network on the bundled digits with frequent evaluations and checkpoints, and looks
at the process every 50 steps. Printed are the values at the start and the end of the second half
and their slope there, by least squares: the first half may still compile and fill caches. Exit
code 1 if anything grows by more than its limit.

Resident memory is all there is, malloc what C and large Python objects hold of it. Small Python
objects are counted: TensorStore, which writes the checkpoints, leaks some with every one.
"""

import argparse
import ctypes
import gc
import os
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from cone_jax import runtime

runtime.set_up()

import jax
import numpy as np
from rich.console import Console

from cone_jax import training
from cone_jax.config.run_config import load_recipe
from cone_jax.training import loop

EVERY = 50  # steps between two looks
# Growth over 1,000 steps that is still noise of the allocator and of background threads.
LIMITS = {
    "resident MB": 30.0,
    "malloc MB": 10.0,
    "Python objects": 60_000.0,  # 42,000 are TensorStore's
    "device arrays MB": 0.1,
    "file handles": 4.0,
    "threads": 4.0,
}


class MallInfo(ctypes.Structure):
    """`mallinfo2` of glibc 2.33 or newer."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def malloc_in_use() -> int:
    function = ctypes.CDLL(None).mallinfo2
    function.restype = MallInfo
    found = function()
    return found.uordblks + found.hblkhd


def look() -> dict[str, float]:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "resident MB": pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
        "malloc MB": malloc_in_use() / 1e6,
        "Python objects": sys.getallocatedblocks(),
        "device arrays MB": sum(array.nbytes for array in jax.live_arrays()) / 1e6,
        "file handles": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
    }


def watched_training(steps: int) -> tuple[list[int], list[dict[str, float]]]:
    config = load_recipe(str(ROOT / "configs/digits.py")).unlock()
    config.steps, config.batch_size, config.log_every = steps, 32, 10
    config.model.options.width = 4
    config.model.head_hidden, config.model.embedding_dim = 16, 8
    config.bank.size, config.objective.cone.neighbours = 1024, 8
    config.evaluation.every_epochs = 1.0  # of 44 steps
    config.checkpoint.every_epochs = 0.5
    real_step, numbers, looks = loop.train_step, [], []

    def step(state, batch):
        result = real_step(state, batch)
        taken = len(counted)
        counted.append(None)
        if taken % EVERY == EVERY - 1:
            numbers.append(taken + 1)
            looks.append(look())
        return result

    counted: list[None] = []
    loop.train_step = step
    with tempfile.TemporaryDirectory() as workdir:
        training.train(config, workdir, Console(quiet=True))
    return numbers, looks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    numbers, looks = watched_training(parser.parse_args().steps)
    half = len(numbers) // 2
    failed = False
    print(
        f"{'steps ' + str(numbers[half]) + '..' + str(numbers[-1]):<20}{'from':>12}{'to':>12}"
        f"{'per 1,000 steps':>18}{'limit':>10}"
    )
    for name, limit in LIMITS.items():
        values = [each[name] for each in looks[half:]]
        slope = 1000 * float(np.polyfit(numbers[half:], values, 1)[0])
        failed |= slope > limit
        print(f"{name:<20}{values[0]:>12,.1f}{values[-1]:>12,.1f}{slope:>18,.2f}{limit:>10,}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
