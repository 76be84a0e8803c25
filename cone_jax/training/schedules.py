"""The learning rate as a function of the step."""

from collections.abc import Sequence

import jax.numpy as jnp
import optax


def learning_rate(
    peak: float,
    *,
    total_steps: int,
    warmup_steps: int,
    decay: str = "cosine",
    floor: float = 1e-3,
    steps_per_unit: int = 1,
    milestones: Sequence[tuple[int, float]] = (),
) -> optax.Schedule:
    """Linear warm-up from 0 to `peak`, then decay to ``floor * peak`` at `total_steps`.

    The released code changes the rate after warm-up once an epoch: give the steps of an epoch
    as `steps_per_unit`, and the rate stays what it was at the last multiple of it.

    With ``decay="steps"`` the rate is the peak until the first of `milestones`, pairs of a step
    and the fraction of the peak that holds from it on.

    >>> rate = learning_rate(0.4, total_steps=100, warmup_steps=5)
    >>> [round(float(rate(t)), 4) for t in (0, 5, 50, 99)]
    [0.0, 0.4, 0.2169, 0.0005]
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
    }[decay]()
    joined = optax.join_schedules(
        [optax.linear_schedule(0.0, peak, max(warmup_steps, 1)), after_warmup], [warmup_steps]
    )

    def rate(step: int | jnp.ndarray) -> jnp.ndarray:
        held = step // steps_per_unit * steps_per_unit
        return joined(jnp.where(step < warmup_steps, step, jnp.maximum(held, warmup_steps)))

    return rate
