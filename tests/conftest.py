"""Test set-up: eight virtual CPU devices, and one compilation cache for the whole run."""

import os
import tempfile

from cone_jax import runtime

runtime.use_fast_cpu_convolutions()
# The workers of pytest-xdist inherit the variable, so they share what each compiles.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", tempfile.mkdtemp(prefix="cone_jax_xla_"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")

import jax
import pytest
from ml_collections import ConfigDict

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_platforms", "cpu")


@pytest.fixture
def tiny_config() -> ConfigDict:
    """CoNe on digits, small enough to compile and train in seconds on eight devices."""
    from cone_jax.command_line import load_recipe

    config = load_recipe("configs/digits.py").unlock()
    config.batch_size = 32
    config.steps = 8
    config.model.options.width = 4
    config.model.head_hidden = 16
    config.model.embedding_dim = 8
    config.bank.size = 72  # no multiple of the batch
    config.objective.cone.neighbours = 8
    config.objective.cone.start_epochs = 0
    config.log_every = 3
    config.evaluation.batch_size = 64
    config.evaluation.every_epochs = 0.0
    config.checkpoint.every_epochs = 0.0
    return config
