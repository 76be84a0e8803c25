"""Kills a training process again and again, and compares what comes out with a run left alone.

    python benchmarks/kill_test.py --kills=50
    python benchmarks/kill_test.py --kills=50 --workdir=gs://bucket/kills

With --workdir the killed runs are there; the run left alone is always on a disk.

SIGKILL falls at moments drawn at random: a quarter each at any time, while the step is compiled, in
an evaluation, in a checkpoint write. The run is started again each time. When it is done, every
array of the train state, `metrics.jsonl`, the choice of the best checkpoint and `report.html` must
equal those of the run that was left alone, bit for bit; exit code 1 if not. Of the report two
numbers and one chart are left out, which tell of the clock: the training time and the speed. A run
that is done before all kills are spent is followed by another, which compiles anew.
"""

import argparse
import collections
import functools
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import jax
import numpy as np

from cone_jax import storage, workdir
from cone_jax.analysis import report
from cone_jax.training.run import Run
from cone_jax.workdir.checkpoints import CHECKPOINTS_FOLDER, COMMIT_FILE, Checkpoints
from cone_jax.workdir.metrics import METRICS_FILE

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

# What the clock says in a report.
CLOCK = re.compile(
    r"<b>[^<]*</b><span>(?:training time|images per second \(median\))</span>"
    r"|<figure>\s*<h3>Speed</h3>.*?</figure>",
    re.DOTALL,
)

SCRATCH = Path()  # a local directory for what processes say, while `main` runs

# What a kill may wait for, and how many seconds it then waits at most, to fall anywhere inside.
MOMENTS = {"any time": 0.0, "compiling": 2.0, "evaluating": 0.05, "writing": 0.02}


def start(directory: Path, steps: int) -> subprocess.Popen:
    """The training process. It says in a file what it is doing; see `announce`."""
    said = _said(directory)
    said.write_text("starting\n")
    compiled = SCRATCH / f"{directory.parent.name}.compiled"
    command = [sys.executable, __file__, "--announce", said, f"--workdir={directory}"]
    return subprocess.Popen(
        [*command, f"--config.steps={steps}", *SETTINGS],
        cwd=ROOT,
        env=os.environ | {"JAX_COMPILATION_CACHE_DIR": str(compiled)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def announce(said: Path, arguments: list[str]) -> int:
    """`main.py`, that writes to `said` when it begins to compile, evaluate or save, and ends."""
    import main as program
    from cone_jax.evaluation.classification import Classification
    from cone_jax.training import train_log

    def announced(moment, function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            with said.open("a") as file:
                file.write(f"{moment}\n")
            result = function(*args, **kwargs)
            with said.open("a") as file:
                file.write("training\n")
            return result

        return call

    train_log.overview = announced("compiling", train_log.overview)  # the first that needs the step
    Classification.evaluate = announced("evaluating", Classification.evaluate)
    Checkpoints.save = announced("saving", Checkpoints.save)
    return program.main(arguments)


def _said(directory: Path) -> Path:
    return SCRATCH / f"{directory.parent.name}.said"


def _is_writing(directory: Path) -> bool:
    folder = directory / CHECKPOINTS_FOLDER
    if not storage.is_remote(directory):
        return any(folder.glob("*tmp*"))
    whole = {path.name for path in storage.whole_directories(folder, COMMIT_FILE)}
    return folder.is_dir() and any(path.name not in whole for path in folder.iterdir())


def finish(directory: Path, steps: int) -> float:
    """Runs to the end; returns how long it took."""
    began = time.monotonic()
    process = start(directory, steps)
    _, errors = process.communicate()
    if process.returncode:
        sys.exit(f"the run in {directory} failed:\n{errors}")
    return time.monotonic() - began


def wait_for(moment: str, process: subprocess.Popen, directory: Path, rng: random.Random) -> None:
    """Returns inside of the moment, or when the process has ended."""
    times = 1 if moment == "compiling" else rng.randint(1, 3)
    seen, before = 0, False
    while process.poll() is None and seen < times:
        if moment == "writing" and storage.is_remote(directory):
            seen = _said(directory).read_text().split().count("saving")
        elif moment == "writing":
            now = _is_writing(directory)
            seen, before = seen + (now and not before), now
        else:
            seen = _said(directory).read_text().split().count(moment)
        time.sleep(0.001)
    slow = moment == "writing" and storage.is_remote(directory)
    time.sleep(rng.uniform(0.0, 1.0 if slow else MOMENTS[moment]))


def where(directory: Path) -> str:
    """Where a kill fell, by what the process said last and by its files."""
    last = _said(directory).read_text().split()[-1]
    return "writing a checkpoint" if last == "training" and _is_writing(directory) else last


def kill_until_done(
    directory: Path,
    steps: int,
    kills: int,
    longest: float,
    rng: random.Random,
    in_turn: bool = False,
) -> list[str]:
    """Kills the run up to `kills` times, then lets it finish; returns where the kills fell."""
    fell: list[str] = []
    for count in range(kills):
        process = start(directory, steps)
        moment = list(MOMENTS)[count % len(MOMENTS)] if in_turn else rng.choice(list(MOMENTS))
        if moment == "any time":
            time.sleep(rng.uniform(0.5, longest))
        else:
            wait_for(moment, process, directory, rng)
        process.kill()
        _, errors = process.communicate()
        if process.returncode == 0:
            return fell
        if process.returncode != -signal.SIGKILL:
            sys.exit(f"start {count} failed by itself:\n{errors}")
        fell.append(where(directory))
    finish(directory, steps)
    return fell


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
    pages = [timeless_report(directory) for directory in (whole, killed)]
    if pages[0] != pages[1]:
        found.append(report.FILE)
    return found


def timeless_report(directory: Path) -> str:
    """The report without what the clock says."""
    page, places = CLOCK.subn("", (directory / report.FILE).read_text(encoding="utf-8"))
    if places != 3:
        sys.exit(f"{directory / report.FILE} tells of the clock in {places} places instead of 3")
    return page


def main() -> None:
    if sys.argv[1:2] == ["--announce"]:
        sys.exit(announce(Path(sys.argv[2]), sys.argv[3:]))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument(
        "--longest",
        type=float,
        default=0.0,
        help="seconds before a kill at any time, at most; 0: half of what the run takes left alone",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workdir", default="", help="where the killed runs go; default: a disk")
    parser.add_argument("--in_turn", action="store_true", help="the kinds of moments in turn")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        global SCRATCH
        SCRATCH = Path(scratch)
        below = storage.path(options.workdir, "--workdir") if options.workdir else SCRATCH
        whole = SCRATCH / "alone" / "run"  # the report has the last part of the name
        seconds = finish(whole, options.steps)
        print(f"left alone, the run takes {seconds:.0f} s", flush=True)
        rng, longest = random.Random(options.seed), options.longest or seconds / 2
        spent = runs = failures = 0
        all_fell: collections.Counter[str] = collections.Counter()
        while spent < options.kills:
            killed = below / f"killed{runs}" / "run"
            storage.remove_directory(killed)
            left = options.kills - spent
            fell = kill_until_done(killed, options.steps, left, longest, rng, options.in_turn)
            found = differences(whole, killed, options.steps)
            print(
                f"run {runs}: {len(fell)} kills; differences: {'; '.join(found) or 'none'}",
                flush=True,
            )
            all_fell.update(fell)
            spent, runs, failures = spent + len(fell), runs + 1, failures + bool(found)
    listing = ", ".join(f"{count} {name}" for name, count in all_fell.most_common())
    print(f"{spent} kills ({listing}) in {runs} runs, {failures} of them different")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
