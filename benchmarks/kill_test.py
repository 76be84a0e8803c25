"""Kills a training process again and again, and compares what comes out with a run left alone.

    python benchmarks/kill_test.py --kills=50

SIGKILL falls at random moments: while JAX starts or compiles, in a step, in an evaluation, in a
checkpoint write. The run is started again each time. When it is done, every array of the train
state, `metrics.jsonl` and the choice of the best checkpoint must equal those of the run that was
left alone, bit for bit; exit code 1 if not. A run that is done before all kills are spent is
followed by another.
"""

import argparse
import collections
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import jax
import numpy as np

from cone_jax import workdir
from cone_jax.checkpointing import Checkpoints
from cone_jax.metric_writers import METRICS_FILE
from cone_jax.training.run import Run

# Small enough to start in seconds, long enough to be hit everywhere: frequent checkpoints and
# evaluations, records that do not fall on the same steps.
SETTINGS = (
    "--config.batch_size=32",
    "--config.model.options.width=4",
    "--config.model.head_hidden=16",
    "--config.model.embedding_dim=8",
    "--config.bank.size=72",
    "--config.objective.cone.neighbours=8",
    "--config.log_every=7",
    "--config.evaluation.every_epochs=0.5",
    "--config.checkpoint.every_epochs=0.2",
)


def start(directory: Path, steps: int) -> subprocess.Popen:
    command = [sys.executable, "main.py", f"--workdir={directory}", f"--config.steps={steps}"]
    return subprocess.Popen(
        [*command, *SETTINGS],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(directory: Path, steps: int) -> float:
    """Runs to the end; returns how long it took."""
    began = time.monotonic()
    process = start(directory, steps)
    _, errors = process.communicate()
    if process.returncode:
        sys.exit(f"the run in {directory} failed:\n{errors}")
    return time.monotonic() - began


def moment(directory: Path) -> str:
    """Where a kill fell, as far as the files tell."""
    if any(directory.glob("checkpoints/*tmp*")):
        return "in a checkpoint write"
    return "later" if any(directory.glob("checkpoints/*")) else "before the first checkpoint"


def kill_until_done(
    directory: Path, steps: int, kills: int, longest: float, rng: random.Random
) -> list[str]:
    """Kills the run up to `kills` times, then lets it finish; returns where the kills fell."""
    moments: list[str] = []
    for count in range(kills):
        process = start(directory, steps)
        try:
            _, errors = process.communicate(timeout=rng.uniform(0.5, longest))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            moments.append(moment(directory))
            continue
        if process.returncode:
            sys.exit(f"start {count} failed by itself:\n{errors}")
        return moments
    finish(directory, steps)
    return moments


def final_state(directory: Path, steps: int) -> tuple[list[np.ndarray], int | None]:
    run = Run.open(workdir.load_config(directory))
    with Checkpoints(
        directory, best_metric=run.config.checkpoint.best_metric, read_only=True
    ) as checkpoints:
        state = checkpoints.restore(steps, run.abstract_state()).state
        return [np.asarray(leaf) for leaf in jax.tree.leaves(state)], checkpoints.best_step()


def differences(whole: Path, killed: Path, steps: int) -> list[str]:
    """What is not equal, in words."""
    found = []
    if (whole / METRICS_FILE).read_bytes() != (killed / METRICS_FILE).read_bytes():
        found.append(METRICS_FILE)
    leaves, best = final_state(whole, steps)
    killed_leaves, killed_best = final_state(killed, steps)
    unequal = sum(
        not np.array_equal(a, b, equal_nan=True) for a, b in zip(leaves, killed_leaves, strict=True)
    )
    if unequal:
        found.append(f"{unequal} of {len(leaves)} arrays of the state")
    if best != killed_best:
        found.append(f"best checkpoint: {best} and {killed_best}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument(
        "--longest",
        type=float,
        default=0.0,
        help="seconds before a kill, at most; 0: half of what the run takes when left alone",
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch, "whole")
        seconds = finish(whole, options.steps)
        print(f"left alone, the run takes {seconds:.0f} s", flush=True)
        rng, longest = random.Random(options.seed), options.longest or seconds / 2
        spent = runs = failures = 0
        all_moments: collections.Counter[str] = collections.Counter()
        while spent < options.kills:
            killed = Path(scratch, f"killed{runs}")
            moments = kill_until_done(killed, options.steps, options.kills - spent, longest, rng)
            found = differences(whole, killed, options.steps)
            print(
                f"run {runs}: {len(moments)} kills; differences: {'; '.join(found) or 'none'}",
                flush=True,
            )
            all_moments.update(moments)
            spent, runs, failures = spent + len(moments), runs + 1, failures + bool(found)
    where = ", ".join(f"{count} {name}" for name, count in all_moments.most_common())
    print(f"{spent} kills ({where}) in {runs} runs, {failures} of them different")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
