"""Optimisers by name, assembled from optax."""

from collections.abc import Callable
from typing import Any

import jax
import optax
from ml_collections import ConfigDict

from cone_jax.errors import UserError, closest


def _sgd(settings: ConfigDict, rate: optax.Schedule) -> optax.GradientTransformation:
    """PyTorch's SGD: the decay is part of the gradient and goes through the momentum."""
    return optax.chain(
        optax.add_decayed_weights(settings.weight_decay, mask=decay_mask(settings.decay_scope)),
        optax.sgd(rate, momentum=settings.momentum or None, nesterov=settings.nesterov),
    )


OPTIMIZERS: dict[str, Callable[[ConfigDict, optax.Schedule], optax.GradientTransformation]] = {
    "sgd": _sgd,
}


def create(settings: ConfigDict, rate: optax.Schedule) -> optax.GradientTransformation:
    """The optimiser that a config section describes, following the schedule `rate`."""
    if settings.name not in OPTIMIZERS:
        cure = closest(settings.name, OPTIMIZERS)
        raise UserError(f"optimizer.name ({settings.name!r}) is unknown; {cure}")
    optimizer = OPTIMIZERS[settings.name](settings, rate)
    if settings.clip_norm > 0:
        return optax.chain(optax.clip_by_global_norm(settings.clip_norm), optimizer)
    return optimizer


def decay_mask(scope: str) -> Callable[[Any], Any] | None:
    """Which parameters are decayed: ``all``, or with ``exclude_1d`` those of two axes or more."""
    if scope == "all":
        return None
    return lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params)


def peak_learning_rate(settings: ConfigDict, batch_size: int) -> float:
    """The configured rate, scaled linearly by the batch where that is asked for."""
    if settings.reference_batch == 0:
        return settings.learning_rate
    return settings.learning_rate * batch_size / settings.reference_batch
