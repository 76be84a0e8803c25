"""One process of a run, for test_processes.py: python process_driver.py WORKDIR ID COUNT PORT STOP.

With STOP > 0 this process sends itself SIGTERM while it takes its STOPth step, with STOP < 0
SIGKILL while it takes its -STOPth, once the checkpoint of step 4 is there. When it begins an
evaluation, it leaves a file `evaluating` in WORKDIR.
"""

import os
import signal
import sys
import time
from pathlib import Path

from cone_jax import runtime

runtime.use_fast_cpu_convolutions()

from cone_jax import distributed, storage, training
from cone_jax.errors import Interrupted, TrainingFailed
from cone_jax.evaluation.classification import Classification
from cone_jax.modes.command_line import load_recipe
from cone_jax.training import loop


def main(workdir: str, process: str, count: str, port: str, stop: str) -> None:
    config = load_recipe("configs/digits.py").unlock()
    config.steps, config.batch_size, config.log_every = 12, 32, 1
    config.model.options.width = 4
    config.model.head_hidden, config.model.embedding_dim = 16, 8
    config.bank.size, config.objective.cone.neighbours = 72, 8
    config.objective.cone.start_epochs = 0
    config.evaluation.batch_size = 64
    config.checkpoint.every_epochs = 4 / 44
    real_step, taken = loop.train_step, []

    def step(state, batch):
        taken.append(None)
        if len(taken) == int(stop):
            os.kill(os.getpid(), signal.SIGTERM)
        if len(taken) == -int(stop):
            while not Path(workdir, "checkpoints", "4").is_dir():
                time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL)
        return real_step(state, batch)

    real_evaluate = Classification.evaluate

    def evaluate(*arguments):
        if not storage.is_remote(workdir):
            Path(workdir, "evaluating").touch()
        return real_evaluate(*arguments)

    loop.train_step, Classification.evaluate = step, evaluate
    try:
        if int(count) > 1:
            distributed.initialize(f"127.0.0.1:{port}", count, process)
        training.train(config, workdir)
    except Interrupted as interrupted:
        print(f"interrupted at {interrupted.step}", flush=True)
    except TrainingFailed as failure:
        print(f"failed: {failure}", file=sys.stderr)
        distributed.leave(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
