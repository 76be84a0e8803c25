"""Optimisers by name, assembled from optax."""

from collections.abc import Callable
from typing import Any

import jax
import optax
from ml_collections import ConfigDict

from cone_jax.errors import UserError, closest

Mask = Callable[[Any], Any]


def _sgd(settings: ConfigDict, rate: optax.Schedule) -> optax.GradientTransformation:
    """PyTorch's SGD: the decay is part of the gradient and goes through the momentum."""
    return optax.chain(
        optax.add_decayed_weights(settings.weight_decay, mask=decay_mask(settings.decay_scope)),
        optax.sgd(rate, momentum=settings.momentum or None, nesterov=settings.nesterov),
    )


def _adamw(settings: ConfigDict, rate: optax.Schedule) -> optax.GradientTransformation:
    return optax.adamw(
        rate,
        b1=settings.beta1,
        b2=settings.beta2,
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
        mask=decay_mask(settings.decay_scope),
    )


def _lamb(settings: ConfigDict, rate: optax.Schedule) -> optax.GradientTransformation:
    """LAMB as timm has it: parameters that are not decayed are not rescaled either."""
    mask = decay_mask(settings.decay_scope)
    rescale = optax.scale_by_trust_ratio()
    return optax.chain(
        optax.scale_by_adam(b1=settings.beta1, b2=settings.beta2, eps=settings.epsilon),
        optax.add_decayed_weights(settings.weight_decay, mask=mask),
        optax.masked(rescale, mask) if mask else rescale,
        optax.scale_by_learning_rate(rate),
    )


def _lars(settings: ConfigDict, rate: optax.Schedule) -> optax.GradientTransformation:
    """LARS as in SimCLR's and SupCon's TensorFlow code; the same exclusion as in `_lamb`."""
    mask = decay_mask(settings.decay_scope)
    return optax.lars(
        rate,
        weight_decay=settings.weight_decay,
        weight_decay_mask=mask or True,
        trust_coefficient=settings.trust_coefficient,
        trust_ratio_mask=mask or True,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
    )


def _rmsprop(settings: ConfigDict, rate: optax.Schedule) -> optax.GradientTransformation:
    """TensorFlow's RMSProp: epsilon inside the root, squares averaged from 1 on, L2 decay."""
    return optax.chain(
        optax.add_decayed_weights(settings.weight_decay, mask=decay_mask(settings.decay_scope)),
        optax.rmsprop(
            rate,
            decay=settings.rms_decay,
            eps=settings.epsilon,
            initial_scale=1.0,
            eps_in_sqrt=True,
            momentum=settings.momentum or None,
            nesterov=settings.nesterov,
        ),
    )


OPTIMIZERS: dict[str, Callable[[ConfigDict, optax.Schedule], optax.GradientTransformation]] = {
    "sgd": _sgd,
    "adamw": _adamw,
    "lamb": _lamb,
    "lars": _lars,
    "rmsprop": _rmsprop,
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


def decay_mask(scope: str) -> Mask | None:
    """Which parameters are decayed.

    ``all`` (None here); ``exclude_1d``: only the weights of convolutions and linear layers, which
    leaves out biases, norms, and a transformer's class token and positions, whatever their axes.
    """
    if scope == "all":
        return None
    return lambda params: jax.tree_util.tree_map_with_path(
        lambda path, _: path[-1].key == "kernel", params
    )


def peak_learning_rate(settings: ConfigDict, batch_size: int) -> float:
    """The configured rate, scaled linearly by the batch where that is asked for."""
    if settings.reference_batch == 0:
        return settings.learning_rate
    return settings.learning_rate * batch_size / settings.reference_batch
