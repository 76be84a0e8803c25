# An image that trains, for one kind of accelerator: cuda12 (NVIDIA), tpu, or cpu to try it.
#
#   docker build --build-arg ACCELERATOR=tpu --tag IMAGE .
#
# docs/scaling.md has the rest of the way to a cluster.
FROM python:3.11.14-slim-bookworm

ARG ACCELERATOR=cuda12
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

WORKDIR /cone_jax
COPY requirements.txt requirements-buckets.txt ./
# In one command: JAX for the accelerator, and everything else as it is pinned.
RUN pip install --requirement requirements.txt --requirement requirements-buckets.txt \
    "jax[${ACCELERATOR}]==$(sed -n 's/^jax==//p' requirements.txt)"

COPY main.py ./
COPY configs configs
COPY cone_jax cone_jax
COPY scripts/container.sh scripts/container.sh

ENTRYPOINT ["bash", "scripts/container.sh"]
