"""One run of a sweep: ``python -m cone_jax.sweeps.train_cell DIRECTORY``.

The directory holds the config. At the end its final metrics are in `result.json`.
"""

import json
import logging
import sys

RESULT_FILE = "result.json"
LOG_FILE = "log.txt"


def main(given: str) -> int:
    """Trains until the end of the run in the directory `given`; returns the exit code."""
    from cone_jax import runtime

    runtime.set_up()  # JAX reads these settings when it is first imported

    from rich.console import Console

    from cone_jax import storage, training, workdir
    from cone_jax.analysis import report
    from cone_jax.errors import Interrupted, TrainingFailed, UserError

    logging.getLogger("absl").setLevel(logging.WARNING)
    try:
        directory = storage.path(given)
        console = Console(width=120, markup=False)
        metrics = training.train(workdir.load_config(directory), directory, console)
    except (UserError, TrainingFailed, Interrupted) as error:
        print(error)
        return 1
    report.write_after_training(directory, print)
    with storage.replacing(directory / RESULT_FILE) as unfinished:
        unfinished.write_text(json.dumps(metrics, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
