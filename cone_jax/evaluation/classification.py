"""Exact accuracy: every example counts once, whatever the batch size or the device count.

The devices give a few numbers for each example; they are gathered in the order of the records,
in every process, and what is said of a network is computed from them in float64.
"""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from cone_jax import losses, sharding
from cone_jax.evaluation import calibration
from cone_jax.evaluation.inference import infer
from cone_jax.models import Encoder

# What `summarise` finds, beside the accuracy of each class.
METRICS = ("top1", "top5", "loss", "mean_per_class", "ece")


class Examples(NamedTuple):
    """What a network makes of each of n examples, in the order of their records."""

    records: np.ndarray  # [n] int
    labels: np.ndarray  # [n] int
    predictions: np.ndarray  # [n] int, the most probable class
    in_top5: np.ndarray  # [n] bool, whether the label is among the five most probable
    losses: np.ndarray  # [n], cross-entropy
    confidences: np.ndarray  # [n], the probability of the prediction


@dataclasses.dataclass(frozen=True)
class ClassificationResult:
    """Accuracies are fractions."""

    top1: float
    top5: float  # top-C where there are fewer than five classes
    loss: float
    mean_per_class: float  # over the classes that have examples
    ece: float  # expected calibration error, 15 bins
    per_class: tuple[float, ...]  # NaN for a class without examples
    examples: int

    def scores(self) -> dict[str, float]:
        """The numbers for a metrics file."""
        return {name: getattr(self, name) for name in METRICS}


@functools.partial(jax.jit, static_argnames=("encoder", "mean", "std", "mesh"))
def _examine(
    variables: dict[str, Any],
    batch: dict[str, jax.Array],
    allowed: jax.Array | None,
    *,
    encoder: Encoder,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    mesh: Mesh,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The mask of one batch and the columns of its `Examples`, on every device."""
    logits = infer(variables, batch["image"], encoder=encoder, mean=mean, std=std).logits
    if allowed is not None:
        logits = jnp.where(allowed, logits, -jnp.inf)
    labels = batch["label"]
    _, ranked = jax.lax.top_k(logits, min(5, logits.shape[-1]))
    columns = {
        "records": batch["id"],
        "labels": labels,
        "predictions": ranked[:, 0],
        "in_top5": jnp.any(ranked == labels[:, None], axis=-1),
        "losses": losses.cross_entropy(logits, labels),
        "confidences": jnp.max(jax.nn.softmax(logits), axis=-1),
    }
    # With several processes, each can read only what is replicated.
    return jax.lax.with_sharding_constraint((batch["mask"], columns), sharding.replicated(mesh))


def examine(
    encoder: Encoder,
    variables: dict[str, Any],
    batches: Iterable[dict[str, np.ndarray]],
    *,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    mesh: Mesh,
    classes: Iterable[int] | None = None,
) -> Examples:
    """Shows the network host batches of ``image``, ``label``, ``id`` and ``mask``, all in order.

    Rows whose mask is False are left out. With `classes` the network chooses among those only.
    """
    allowed = None if classes is None else _allowed(encoder.spec.num_classes, classes)
    scored = []
    for batch in batches:
        wanted = {name: batch[name] for name in ("image", "label", "id", "mask")}
        scored.append(
            _examine(
                variables,
                sharding.to_devices(mesh, wanted),
                allowed,
                encoder=encoder,
                mean=mean,
                std=std,
                mesh=mesh,
            )
        )
    if not scored:
        raise ValueError("nothing to evaluate: no batches")
    masks, parts = zip(*jax.device_get(scored), strict=True)
    mask = np.concatenate(masks)
    return Examples(
        **{name: np.concatenate([part[name] for part in parts])[mask] for name in Examples._fields}
    )


def summarise(examples: Examples, num_classes: int) -> ClassificationResult:
    """What there is to say about all examples together."""
    if not len(examples.labels):
        raise ValueError("nothing to evaluate: no example")
    correct = examples.predictions == examples.labels
    totals = np.bincount(examples.labels, minlength=num_classes)
    right = np.bincount(examples.labels[correct], minlength=num_classes)
    with np.errstate(invalid="ignore"):
        per_class = right / totals
    return ClassificationResult(
        top1=float(correct.mean()),
        top5=float(examples.in_top5.mean()),
        loss=float(examples.losses.mean(dtype=np.float64)),
        mean_per_class=float(per_class[totals > 0].mean()),
        ece=calibration.expected_calibration_error(examples.confidences, correct),
        per_class=tuple(per_class.tolist()),
        examples=len(correct),
    )


def _allowed(num_classes: int, classes: Iterable[int]) -> np.ndarray:
    allowed = np.zeros(num_classes, bool)
    allowed[list(classes)] = True
    return allowed
