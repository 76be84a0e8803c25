#!/usr/bin/env bash
# One run on several nodes of a SLURM cluster, one process per node, with all of its GPUs:
#
#   sbatch --nodes=2 --gpus-per-node=8 scripts/slurm.sh --config=configs/imagenet.py:resnet50 --workdir=/shared/run
#
# Everything after the script goes to main.py. The workdir must be on a file system that all nodes
# share, or in a bucket (gs://, s3://). SLURM's environment tells JAX who is who. Submitted again, or
# requeued after a preemption, the run goes on from its last checkpoint: SIGTERM, which SLURM sends
# first, makes it save.
#SBATCH --job-name=cone_jax
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=TERM@120
set -euo pipefail

cd "${SLURM_SUBMIT_DIR:?start this script with sbatch}"
exec srun --kill-on-bad-exit=1 "${PYTHON:-.venv/bin/python}" main.py "$@"
