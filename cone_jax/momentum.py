"""The momentum (key) network: an exponential moving average of the query's parameters.

Pure functions on parameter trees and on the step number; nothing here knows about models.
"""

from typing import TypeVar

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

Params = TypeVar("Params")  # a tree of arrays

# Above this initial momentum the released code keeps the momentum constant.
OFFICIAL_CONSTANT_ABOVE = 0.996


def update(ema_params: Params, params: Params, m: float | Float[Array, ""]) -> Params:
    r"""One step of the average, on every leaf.

    $$\theta_k \leftarrow m\, \theta_k + (1 - m)\, \theta_q$$

    Args:
        ema_params: $\theta_k$, any tree of arrays.
        params: $\theta_q$, a tree of the same shape.
        m: the momentum, between 0 and 1.

    Returns:
        The new $\theta_k$, a tree of the same shape.

    >>> update({"w": 1.0}, {"w": 3.0}, 0.75)
    {'w': 1.5}
    """
    return optax.incremental_update(params, ema_params, step_size=1.0 - m)


def cosine_to_one(m0: float, total_steps: int) -> optax.Schedule:
    r"""Momentum rising from `m0` at step 0 to 1 at `total_steps` along half a cosine.

    $$m_t = 1 - (1 - m_0)\, \frac{\cos(\pi t / T) + 1}{2}$$

    Args:
        m0: the momentum at step 0.
        total_steps: $T$.

    Returns:
        A function of the step, as optax's schedules are.

    >>> [round(float(cosine_to_one(0.996, 100)(t)), 6) for t in (0, 25, 50, 75, 100)]
    [0.996, 0.996586, 0.998, 0.999414, 1.0]
    """
    one_minus_m = optax.cosine_decay_schedule(1.0 - m0, decay_steps=total_steps)
    return lambda step: 1.0 - one_minus_m(step)


def constant(m0: float) -> optax.Schedule:
    """The same momentum at every step.

    Args:
        m0: the momentum.

    Returns:
        A function of the step, as optax's schedules are.

    >>> float(constant(0.5)(1000))
    0.5
    """
    return lambda step: jnp.asarray(m0, jnp.float32)


def schedule(name: str, m0: float, total_steps: int) -> optax.Schedule:
    """The schedule that a config names.

    Args:
        name: ``cosine_to_one``, ``constant`` or ``official_auto``, the rule of the released code:
            the cosine for ``m0 <= 0.996``, constant above.
        m0: the momentum at step 0.
        total_steps: the steps of the whole run.

    Returns:
        A function of the step, as optax's schedules are.

    >>> [round(float(schedule("official_auto", m0, 100)(50)), 4) for m0 in (0.99, 0.999)]
    [0.995, 0.999]
    """
    if name == "official_auto":
        name = "constant" if m0 > OFFICIAL_CONSTANT_ABOVE else "cosine_to_one"
    schedules = {
        "cosine_to_one": lambda: cosine_to_one(m0, total_steps),
        "constant": lambda: constant(m0),
    }
    return schedules[name]()
