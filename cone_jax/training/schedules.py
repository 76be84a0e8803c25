"""The learning rate as a function of the step."""

from collections.abc import Sequence

import jax.numpy as jnp
import optax


def learning_rate(
    peak: float,
    *,
    total_steps: int,
    warmup_steps: int,
    warmup_start: float = 0.0,
    decay: str = "cosine",
    floor: float = 1e-3,
    steps_per_unit: int = 1,
    milestones: Sequence[tuple[int, float]] = (),
    exponential: tuple[int, float] = (1, 1.0),
) -> optax.Schedule:
    """Linear warm-up from ``warmup_start * peak`` to `peak`, then decay.

    ``cosine`` and ``linear`` reach ``floor * peak`` at `total_steps`. With ``steps`` the rate is
    the peak until the first of `milestones`, pairs of a step and the fraction of the peak that
    holds from it on. With ``exponential``, a pair of steps and a factor, it is multiplied by
    the factor each time so many steps have passed since warm-up. Or it stays ``constant``.

    The released code changes the rate after warm-up once an epoch: give the steps of an epoch
    as `steps_per_unit`, and the rate stays what it was at the last multiple of it.

    >>> rate = learning_rate(0.4, total_steps=100, warmup_steps=5)
    >>> [round(float(rate(t)), 4) for t in (0, 5, 50, 99)]
    [0.0, 0.4, 0.2167, 0.0005]
    """
    decay_steps = max(total_steps - warmup_steps, 1)
    boundaries, factors = zip(*milestones, strict=True) if milestones else ((), ())
    after_warmup = {
        "cosine": lambda: optax.cosine_decay_schedule(peak, decay_steps, alpha=floor),
        "linear": lambda: optax.linear_schedule(peak, floor * peak, decay_steps),
        "constant": lambda: optax.constant_schedule(peak),
        "steps": lambda: optax.join_schedules(
            [optax.constant_schedule(peak * factor) for factor in (1.0, *factors)],
            [step - warmup_steps for step in boundaries],
        ),
        "exponential": lambda: optax.exponential_decay(
            peak, transition_steps=exponential[0], decay_rate=exponential[1], staircase=True
        ),
    }[decay]()
    warmup = optax.linear_schedule(warmup_start * peak, peak, max(warmup_steps, 1))
    joined = optax.join_schedules([warmup, after_warmup], [warmup_steps])

    def rate(step: int | jnp.ndarray) -> jnp.ndarray:
        held = step // steps_per_unit * steps_per_unit
        return joined(jnp.where(step < warmup_steps, step, jnp.maximum(held, warmup_steps)))

    return rate
