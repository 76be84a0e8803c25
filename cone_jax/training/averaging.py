"""The averaged model: a slow average of parameters *and* BatchNorm statistics, for evaluation.

It is what torchvision's training reference calls the EMA model, and distinct from the method's
momentum network, which averages parameters only and makes the keys.
"""

import dataclasses
from typing import Any

import jax
from ml_collections import ConfigDict

from cone_jax import momentum

Tree = Any


@dataclasses.dataclass(frozen=True)
class Averaging:
    """How the average follows training. `decay` is that of one update."""

    decay: float
    every: int  # steps between two updates
    copy_steps: int  # up to here an update copies the model, since it still changes fast

    def update(self, averaged: Tree, variables: Tree, steps_taken: jax.Array) -> Tree:
        """The average after step number `steps_taken`, of which `variables` are the result."""

        def move() -> Tree:
            decay = jax.lax.select(steps_taken <= self.copy_steps, 0.0, self.decay)
            return momentum.update(averaged, variables, decay)

        return jax.lax.cond(steps_taken % self.every == 0, move, lambda: averaged)


def create(
    settings: ConfigDict, *, batch_size: int, epochs: float, copy_steps: int
) -> Averaging | None:
    """The averaging that a config section describes; None when it is off.

    With `rescale`, torchvision's rule: the configured decay is meant for updates each step with
    one image over one epoch, so that the horizon is the same share of any run.

    >>> settings = ConfigDict({"decay": 0.99998, "every": 32, "rescale": True})
    >>> round(create(settings, batch_size=1024, epochs=350, copy_steps=0).decay, 6)
    0.998128
    """
    if settings.decay == 0.0:
        return None
    decay = settings.decay
    if settings.rescale:
        decay = 1.0 - min(1.0, (1.0 - decay) * batch_size * settings.every / epochs)
    return Averaging(decay, settings.every, copy_steps)
