"""One process of a detector's run: python detector_process.py DATA WORKDIR ID COUNT PORT."""

import sys

from cone_jax import distributed, training
from tests.detection.test_detector_training import tiny


def main(data: str, workdir: str, process: str, count: str, port: str) -> None:
    if int(count) > 1:
        distributed.initialize(f"127.0.0.1:{port}", count, process)
    config = tiny(data, steps=2)
    config.objective.detection.update(backbone_norm="batch", freeze_at=0)  # SyncBN
    config.evaluation.every_epochs = config.checkpoint.every_epochs = 0.0
    # Batches of training that lie and stand, and evaluation with padding in its last batch.
    config.batch_size = config.evaluation.batch_size = 4
    training.train(config, workdir)


if __name__ == "__main__":
    main(*sys.argv[1:])
