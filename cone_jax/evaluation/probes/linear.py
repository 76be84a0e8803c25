"""Multinomial logistic regression on frozen features: L-BFGS on the devices.

The loss is ``mean cross-entropy + l2 / 2 * |kernel|^2``; the bias is not penalised. It is convex,
so there is one answer: scikit-learn's ``LogisticRegression(C=1 / (n * l2))``.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from cone_jax import distributed
from cone_jax.data.sources import splits
from cone_jax.evaluation.accuracy import RANKS, ranked_accuracies
from cone_jax.evaluation.probes.extraction import Labelled

# The range of SimCLR's linear evaluation, a value each power of ten.
L2_GRID = tuple(float(f"1e{power}") for power in range(-6, 6))
HELD_OUT = 0.1  # of each class, to choose l2 on
MAX_STEPS = 1000
TOLERANCE = 1e-5  # of the largest entry of the gradient


class LinearClassifier(NamedTuple):
    """Class centres, for features as they are."""

    kernel: np.ndarray  # [d, C]
    bias: np.ndarray  # [C]

    def ranked(self, features: np.ndarray) -> np.ndarray:
        """The most probable classes [n, min(5, C)], best first, the lower one of equals."""
        logits = features @ self.kernel + self.bias
        return np.argsort(-logits, axis=1, kind="stable")[:, :RANKS]


def linear_scores(
    train: Labelled,
    test: Labelled,
    *,
    num_classes: int,
    mesh: Mesh,
    l2_grid: Sequence[float] = L2_GRID,
    seed: int = 0,
) -> dict[str, float]:
    """Accuracies ``linear/top1`` and others, and ``linear/l2``, which is chosen on a hold-out.

    Features are standardised with the statistics of `train`. A tenth of each class of `train`
    is held out to choose l2, the larger one of equals; then all of `train` is used.
    """
    seen, others = standardise(train[0], test[0])
    l2 = choose_l2(seen, train[1], num_classes=num_classes, mesh=mesh, grid=l2_grid, seed=seed)
    model = fit(seen, train[1], num_classes=num_classes, l2=l2, mesh=mesh)
    scores = ranked_accuracies(model.ranked(others), test[1])
    return {**{f"linear/{name}": value for name, value in scores.items()}, "linear/l2": l2}


def standardise(train: np.ndarray, *others: np.ndarray) -> tuple[np.ndarray, ...]:
    """All sets with the mean and the deviation of `train` removed, column by column."""
    mean = train.mean(axis=0, dtype=np.float64)
    deviation = train.std(axis=0, dtype=np.float64)
    # A feature that never fires says nothing; it must not divide by its rounding errors.
    scale = 1.0 / np.where(deviation > 1e-6 * (1.0 + np.abs(mean)), deviation, np.inf)
    return tuple(((rows - mean) * scale).astype(np.float32) for rows in (train, *others))


def choose_l2(
    features: np.ndarray,
    labels: np.ndarray,
    *,
    num_classes: int,
    mesh: Mesh,
    grid: Sequence[float],
    seed: int,
) -> float:
    """The value with the highest top-1 accuracy on a hold-out, the larger one of equals."""
    held = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        keys = [str(member).encode() for member in members]
        held[members[sorted(splits.held_out(keys, HELD_OUT, seed))]] = True
    if not held.any() or len(grid) == 1:
        return max(grid)
    model, scored = None, []
    # From the smoothest problem on, each answer is a good start for the next.
    for l2 in sorted(grid, reverse=True):
        model = fit(
            features[~held],
            labels[~held],
            num_classes=num_classes,
            l2=l2,
            mesh=mesh,
            start=model,
        )
        ranked = model.ranked(features[held])
        scored.append((ranked_accuracies(ranked, labels[held])["top1"], l2))
    return max(scored)[1]


def fit(
    features: np.ndarray,
    labels: np.ndarray,
    *,
    num_classes: int,
    l2: float,
    mesh: Mesh,
    start: LinearClassifier | None = None,
    max_steps: int = MAX_STEPS,
    tolerance: float = TOLERANCE,
) -> LinearClassifier:
    """The minimum of the loss; examples [n, d] are split over the devices."""
    padding = -len(features) % mesh.size
    rows = {
        "features": np.pad(features.astype(np.float32), ((0, padding), (0, 0))),
        "labels": np.pad(labels, (0, padding)),
        "weights": np.pad(np.full(len(labels), 1.0 / len(labels), np.float32), (0, padding)),
    }
    if start is None:
        start = LinearClassifier(
            np.zeros((features.shape[1], num_classes), np.float32),
            np.zeros(num_classes, np.float32),
        )
    found = _minimise(
        jax.device_put(start, distributed.replicated(mesh)),
        jax.device_put(rows, distributed.split(mesh)),
        jnp.float32(l2),
        jnp.float32(tolerance),
        max_steps=max_steps,
    )
    gather = jax.jit(lambda tree: tree, out_shardings=distributed.replicated(mesh))
    return LinearClassifier(*jax.device_get(gather(found)))


def _loss(model: LinearClassifier, rows: dict[str, jax.Array], l2: jax.Array) -> jax.Array:
    logits = jnp.matmul(rows["features"], model.kernel, precision=jax.lax.Precision.HIGHEST)
    each = optax.softmax_cross_entropy_with_integer_labels(logits + model.bias, rows["labels"])
    return jnp.sum(rows["weights"] * each) + 0.5 * l2 * jnp.sum(jnp.square(model.kernel))


@functools.partial(jax.jit, static_argnames="max_steps")
def _minimise(
    start: LinearClassifier,
    rows: dict[str, jax.Array],
    l2: jax.Array,
    tolerance: jax.Array,
    *,
    max_steps: int,
) -> LinearClassifier:
    loss = functools.partial(_loss, rows=rows, l2=l2)
    solver = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(loss)

    def is_unfinished(carry: tuple) -> jax.Array:
        _, _, step, steepest = carry
        return (step < max_steps) & (steepest > tolerance)

    def improve(carry: tuple) -> tuple:
        model, state, step, _ = carry
        value, gradient = value_and_grad(model, state=state)
        updates, state = solver.update(
            gradient, state, model, value=value, grad=gradient, value_fn=loss
        )
        model = optax.apply_updates(model, updates)
        # The line search has evaluated the gradient where it stopped.
        return (
            model,
            state,
            step + 1,
            optax.tree.max(jax.tree.map(jnp.abs, optax.tree.get(state, "grad"))),
        )

    begin = (start, solver.init(start), jnp.int32(0), jnp.float32(jnp.inf))
    return jax.lax.while_loop(is_unfinished, improve, begin)[0]
