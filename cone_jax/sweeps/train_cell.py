"""One run of a sweep: ``python -m cone_jax.sweeps.train_cell DIRECTORY``.

The directory holds the config. At the end its final metrics are in `result.json`.
"""

import json
import logging
import sys
from pathlib import Path

RESULT_FILE = "result.json"
LOG_FILE = "log.txt"


def main(directory: Path) -> int:
    """Trains until the end; returns the exit code."""
    from cone_jax import runtime

    runtime.set_up()  # JAX reads these settings when it is first imported

    from rich.console import Console

    from cone_jax import atomic_file, training, workdir
    from cone_jax.analysis import report
    from cone_jax.errors import Interrupted, TrainingFailed, UserError

    logging.getLogger("absl").setLevel(logging.WARNING)
    try:
        console = Console(width=120, markup=False)
        metrics = training.train(workdir.load_config(directory), directory, console)
    except (UserError, TrainingFailed, Interrupted) as error:
        print(error)
        return 1
    report.write_after_training(directory, print)
    with atomic_file.replacing(directory / RESULT_FILE) as unfinished:
        unfinished.write_text(json.dumps(metrics, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
