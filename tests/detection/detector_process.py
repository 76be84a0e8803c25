"""One process that takes two steps: python detector_process.py DATA ID COUNT PORT.

It prints the metrics of each step as JSON. Two steps, because only the second one sees what the
processes made of their gradients together.
"""

import json
import sys

from cone_jax import distributed
from cone_jax.training.run import Run
from cone_jax.training.train_step import train_step
from tests.detection.test_detector_training import tiny


def main(data: str, process: str, count: str, port: str) -> None:
    if int(count) > 1:
        distributed.initialize(f"127.0.0.1:{port}", count, process)
    config = tiny(data)
    config.objective.detection.update(backbone_norm="batch", freeze_at=0)  # SyncBN
    config.batch_size = 4
    run = Run.open(config)
    state, stream = run.init_state(), run.train_stream(0, print)
    for _ in range(2):
        state, metrics = train_step(state, next(stream))
        print(json.dumps({name: float(value) for name, value in metrics.items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
