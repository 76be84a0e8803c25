"""Optimisers by name, assembled from optax; the learning rate by step; the averaged model."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from cone_jax import momentum
from cone_jax.errors import UserError, closest
from cone_jax.settings import Average, Optimizer, Schedule

Mask = Callable[[Any], Any]

# The parts of a backbone by their names: blocks, and what follows the last. The rest is the stem.
_BLOCK = re.compile(r"(?:block|layer|stage|downsample)(\d+)(?:_(\d+))?")
_AFTER_THE_BLOCKS = ("last", "norm")


def _sgd(settings: Optimizer, rate: optax.Schedule) -> optax.GradientTransformation:
    """PyTorch's SGD: the decay is part of the gradient and goes through the momentum."""
    return optax.chain(
        optax.add_decayed_weights(settings.weight_decay, mask=decay_mask(settings.decay_scope)),
        optax.sgd(rate, momentum=settings.momentum or None, nesterov=settings.nesterov),
    )


def _adamw(settings: Optimizer, rate: optax.Schedule) -> optax.GradientTransformation:
    return optax.adamw(
        rate,
        b1=settings.beta1,
        b2=settings.beta2,
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
        mask=decay_mask(settings.decay_scope),
    )


def _lamb(settings: Optimizer, rate: optax.Schedule) -> optax.GradientTransformation:
    """LAMB as timm has it: parameters that are not decayed are not rescaled either."""
    mask = decay_mask(settings.decay_scope)
    rescale = optax.scale_by_trust_ratio()
    return optax.chain(
        optax.scale_by_adam(b1=settings.beta1, b2=settings.beta2, eps=settings.epsilon),
        optax.add_decayed_weights(settings.weight_decay, mask=mask),
        optax.masked(rescale, mask) if mask else rescale,
        optax.scale_by_learning_rate(rate),
    )


def _lars(settings: Optimizer, rate: optax.Schedule) -> optax.GradientTransformation:
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


def _rmsprop(settings: Optimizer, rate: optax.Schedule) -> optax.GradientTransformation:
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


OPTIMIZERS: dict[str, Callable[[Optimizer, optax.Schedule], optax.GradientTransformation]] = {
    "sgd": _sgd,
    "adamw": _adamw,
    "lamb": _lamb,
    "lars": _lars,
    "rmsprop": _rmsprop,
}


def create(
    settings: Optimizer, rate: optax.Schedule, steps_per_epoch: int = 1
) -> optax.GradientTransformation:
    """The optimiser that a config section describes, following the schedule `rate`."""
    if settings.name not in OPTIMIZERS:
        cure = closest(settings.name, OPTIMIZERS)
        raise UserError(f"optimizer.name ({settings.name!r}) is unknown; {cure}")
    optimizer = OPTIMIZERS[settings.name](settings, rate)
    if settings.backbone_rate < 1 or settings.layer_decay < 1 or settings.head_epochs > 0:
        head_steps = round(settings.head_epochs * steps_per_epoch)
        scaling = scale_backbone(settings.backbone_rate, head_steps, settings.layer_decay)
        optimizer = optax.chain(optimizer, scaling)
    if settings.clip_norm > 0:
        return optax.chain(optax.clip_by_global_norm(settings.clip_norm), optimizer)
    return optimizer


def scale_backbone(
    factor: float, head_steps: int, layer_decay: float = 1.0
) -> optax.GradientTransformation:
    """Multiplies the backbone's updates by `factor`, and by 0 in the first `head_steps`.

    From each layer of the backbone to the one before it, they are multiplied by `layer_decay` once
    more. That is a learning rate of their own: all optimisers here end with a product with the
    rate.
    """

    def init(params: Any) -> optax.ScaleByScheduleState:
        if layer_decay < 1:
            layers(params.get("backbone", {}))
        return optax.ScaleByScheduleState(count=jnp.zeros([], jnp.int32))

    def scaled(backbone: Any, now: jax.Array) -> Any:
        if layer_decay == 1:
            return jax.tree.map(lambda x: x * now.astype(x.dtype), backbone)
        place = layers(backbone)
        last = max(place.values())
        rates = {name: now * layer_decay ** (last - place[name]) for name in backbone}
        return {
            name: jax.tree.map(lambda x, rate=rates[name]: x * rate.astype(x.dtype), part)
            for name, part in backbone.items()
        }

    def update(
        updates: Any, state: optax.ScaleByScheduleState, params: Any = None
    ) -> tuple[Any, optax.ScaleByScheduleState]:
        now = jnp.where(state.count < head_steps, 0.0, factor)
        changed = {
            part: scaled(tree, now) if part == "backbone" else tree
            for part, tree in updates.items()
        }
        return changed, optax.ScaleByScheduleState(count=state.count + 1)

    return optax.GradientTransformation(init, update)


def layers(backbone: Iterable[str]) -> dict[str, int]:
    """Which layer, from 0, each part of a backbone belongs to, by its name.

    First the stem, then the blocks by their numbers (what halves the resolution before a stage
    belongs to its first block), then what follows the last block.

    >>> layers(["conv1", "bn1", "layer1_0", "layer1_1", "layer2_0"])
    {'conv1': 0, 'bn1': 0, 'layer1_0': 1, 'layer1_1': 2, 'layer2_0': 3}
    """
    names = list(backbone)
    if not any(_BLOCK.match(name) for name in names):
        raise UserError(
            "optimizer.layer_decay needs a backbone whose blocks are numbered, such as block3 or "
            f"layer2_0; this one has {', '.join(sorted(names)) or 'no parameters'}"
        )

    def position(name: str) -> tuple[int, ...]:
        if match := _BLOCK.match(name):
            return (1, *(int(number) for number in match.groups(default="0")))
        return (2,) if name.startswith(_AFTER_THE_BLOCKS) else (0,)

    order = sorted({position(name) for name in names})
    return {name: order.index(position(name)) for name in names}


def decay_mask(scope: str) -> Mask | None:
    """Which parameters are decayed.

    ``all`` (None here); ``exclude_1d``: only the weights of convolutions and linear layers, which
    leaves out biases, norms, and a transformer's class token and positions, whatever their axes;
    ``exclude_norms``: everything but norms.
    """
    if scope == "all":
        return None
    if scope == "exclude_norms":
        return _outside_norms
    return lambda params: jax.tree_util.tree_map_with_path(
        lambda path, _: path[-1].key == "kernel", params
    )


def _outside_norms(params: Any) -> Any:
    """False for the parameters of norms, which are the layers that have a scale."""
    if not isinstance(params, Mapping):
        return True
    is_norm = "scale" in params
    return {name: False if is_norm else _outside_norms(part) for name, part in params.items()}


def sparing(
    optimizer: optax.GradientTransformation, is_constant: Callable[[Sequence[str]], bool]
) -> optax.GradientTransformation:
    """The optimiser without its updates, weight decay included, of constant parameters."""

    def constants(updates: Any) -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda path, _: is_constant([entry.key for entry in path]), updates
        )

    return optax.chain(optimizer, optax.masked(optax.set_to_zero(), constants))


def peak_learning_rate(settings: Optimizer, batch_size: int) -> float:
    """The configured rate, scaled linearly by the batch where that is asked for."""
    if settings.reference_batch == 0:
        return settings.learning_rate
    return settings.learning_rate * batch_size / settings.reference_batch


def scheduled_rate(
    schedule: Schedule, peak: float, *, total_steps: int, steps_per_epoch: int
) -> optax.Schedule:
    """The learning rate that a config section describes, for a stage of `total_steps`."""
    return learning_rate(
        peak,
        total_steps=total_steps,
        warmup_steps=schedule.warmup(steps_per_epoch),
        warmup_start=schedule.warmup_start,
        decay=schedule.decay,
        floor=schedule.floor,
        steps_per_unit=steps_per_epoch if schedule.unit == "epoch" else 1,
        milestones=schedule.milestone_steps
        or [(round(epoch * steps_per_epoch), factor) for epoch, factor in schedule.milestones],
        exponential=(
            max(round(schedule.decay_epochs * steps_per_epoch), 1),
            schedule.decay_factor,
        ),
    )


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


def updates_made(opt_state: Any) -> jax.Array:
    """How many updates the optimiser's learning-rate schedule has counted."""

    def of_schedule(path: Any, value: Any) -> bool:
        return getattr(path[-1], "tuple_name", "") == "ScaleByScheduleState"

    return optax.tree.get(opt_state, "count", filtering=of_schedule)


@dataclasses.dataclass(frozen=True)
class Averaging:
    """The averaged model: a slow average of parameters *and* BatchNorm statistics.

    It is what torchvision's training reference calls the EMA model, and distinct from the method's
    momentum network, which averages parameters only and makes the keys.
    """

    decay: float  # of one update
    every: int  # steps between two updates
    copy_steps: int  # up to here an update copies the model, since it still changes fast

    @classmethod
    def create(
        cls, settings: Average, *, batch_size: int, epochs: float, copy_steps: int
    ) -> "Averaging | None":
        """The averaging that a config section describes; None when it is off.

        With `rescale`, torchvision's rule: the configured decay is meant for updates each step
        with one image over one epoch, so that the horizon is the same share of any run.

        >>> settings = Average(decay=0.99998, every=32, rescale=True)
        >>> round(Averaging.create(settings, batch_size=1024, epochs=350, copy_steps=0).decay, 6)
        0.998128
        """
        if settings.decay == 0.0:
            return None
        decay = settings.decay
        if settings.rescale:
            decay = 1.0 - min(1.0, (1.0 - decay) * batch_size * settings.every / epochs)
        return cls(decay, settings.every, copy_steps)

    def update(self, averaged: Any, variables: Any, steps_taken: jax.Array) -> Any:
        """The average after step number `steps_taken`, of which `variables` are the result."""

        def move() -> Any:
            decay = jax.lax.select(steps_taken <= self.copy_steps, 0.0, self.decay)
            return momentum.update(averaged, variables, decay)

        return jax.lax.cond(steps_taken % self.every == 0, move, lambda: averaged)


def all_finite(tree: Any) -> jax.Array:
    """Whether no number in `tree` is infinite or NaN.

    >>> bool(all_finite({"a": jnp.ones(3), "n": jnp.arange(2)})), bool(all_finite(jnp.log(0.0)))
    (True, False)
    """
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))
