"""An update of the whole train state that is made completely, or not at all.

`optax.apply_if_finite` protects parameters and optimiser. Here the state has more parts that
one bad batch can spoil for good: BatchNorm statistics, the momentum network, the average, and
thousands of steps' keys in the bank. So the choice is made once, for all of them.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from cone_jax.objectives import Metrics
from cone_jax.training.train_state import TrainState


def keep_if(
    finite: jax.Array, before: TrainState, after: TrainState, metrics: Metrics
) -> tuple[TrainState, Metrics]:
    """The state `after` a step if `finite`, otherwise that `before`. The bank is `after`'s.

    The step is counted either way, so that data and random numbers go on; the optimiser's own
    counts, and with them the learning rate, stay where they were. The metrics get ``skipped``,
    0 or 1, and the learning rate really used.

    Costs a second copy of everything but the bank while the step runs.
    """
    kept = jax.tree.map(
        lambda new, old: jnp.where(finite, new, old),
        after.replace(bank=None),
        before.replace(bank=None),
    )
    updates_made = _schedule_count(before.opt_state)
    rate = jnp.asarray(before.learner.learning_rate(updates_made), jnp.float32)
    skipped = jnp.logical_not(finite).astype(jnp.float32)
    kept = kept.replace(step=after.step, bank=after.bank)
    return kept, {**metrics, "learning_rate": rate, "skipped": skipped}


def all_finite(tree: Any) -> jax.Array:
    """Whether no number in `tree` is infinite or NaN.

    >>> bool(all_finite({"a": jnp.ones(3), "n": jnp.arange(2)})), bool(all_finite(jnp.log(0.0)))
    (True, False)
    """
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))


def _schedule_count(opt_state: Any) -> jax.Array:
    """How many updates the optimiser's learning-rate schedule has counted."""

    def of_schedule(path: Any, value: Any) -> bool:
        return getattr(path[-1], "tuple_name", "") == "ScaleByScheduleState"

    return optax.tree.get(opt_state, "count", filtering=of_schedule)
