#!/usr/bin/env bash
# One run on all workers of a Cloud TPU slice:
#
#   TPU=name ZONE=zone scripts/tpu_pod.sh --config=configs/imagenet.py:resnet50 --workdir=gs://bucket/run
#
# Copies this tree to every worker, installs the pinned requirements with JAX for TPU, and starts
# main.py on all of them. Started again, the run goes on from its last checkpoint.
set -euo pipefail

: "${TPU:?set TPU to the name of the slice}" "${ZONE:?set ZONE to its zone}"
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
archive=$(mktemp --suffix=.tar.gz)
trap 'rm -f "$archive"' EXIT
git -C "$root" archive --format=tar.gz --output="$archive" HEAD

on_all() {
    gcloud compute tpus tpu-vm ssh "$TPU" --zone="$ZONE" --worker=all --command="$1"
}

gcloud compute tpus tpu-vm scp "$archive" "$TPU:cone_jax.tar.gz" --zone="$ZONE" --worker=all
# shellcheck disable=SC2016  # to be expanded on the workers
on_all 'mkdir -p cone_jax && tar -xzf cone_jax.tar.gz -C cone_jax && cd cone_jax \
    && python3 -m venv .venv && .venv/bin/pip install --quiet -r requirements.txt \
    && .venv/bin/pip install --quiet "jax[tpu]==$(.venv/bin/python -c "import jax; print(jax.__version__)")"'
# %q: the arguments arrive on the workers as they were given here.
printf -v arguments '%q ' "$@"
on_all "cd cone_jax && .venv/bin/python main.py $arguments"
