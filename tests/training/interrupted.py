"""Training that ends between two steps, for tests of what comes after."""

import jax
import numpy as np
import pytest
from rich.console import Console

from cone_jax import training
from cone_jax.training import loop


class PullThePlugError(Exception):
    """Stands for whatever ends a process between two steps."""


def train_and_stop(config, workdir, after, monkeypatch):
    """Runs `after` steps of this start, then dies."""
    real_step, taken = loop.train_step, []

    def step(state, batch):
        if len(taken) == after:
            raise PullThePlugError
        taken.append(batch)
        return real_step(state, batch)

    with monkeypatch.context() as patched:
        patched.setattr(loop, "train_step", step)
        with pytest.raises(PullThePlugError):
            training.train(config, workdir, Console(quiet=True))


def assert_same(one, other):
    """Two states, or parts of them, are equal bit for bit."""
    leaves = zip(jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(other), strict=True)
    for (path, a), b in leaves:
        np.testing.assert_array_equal(a, b, err_msg=jax.tree_util.keystr(path))
