"""Exact accuracy: every example counts once, whatever the batch size or the device count."""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, cast

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from clu import metrics as clu_metrics
from jax.sharding import Mesh

from cone_jax import losses, sharding
from cone_jax.data.normalisation import normalise_images
from cone_jax.models import Encoder, EncoderOutput


@flax.struct.dataclass
class ClassCounts(clu_metrics.Metric):
    """Examples and correct answers of each class."""

    correct: jax.Array  # [C]
    total: jax.Array  # [C]

    def merge(self, other: "ClassCounts") -> "ClassCounts":
        return ClassCounts(self.correct + other.correct, self.total + other.total)

    def compute(self) -> jax.Array:
        """Accuracy of each class, NaN for a class without examples."""
        return self.correct / self.total


@flax.struct.dataclass
class ClassificationMetrics:
    """What accumulates over the batches of an evaluation."""

    top1: clu_metrics.Average
    top5: clu_metrics.Average
    loss: clu_metrics.Average
    classes: ClassCounts

    def merge(self, other: "ClassificationMetrics") -> "ClassificationMetrics":
        return ClassificationMetrics(
            top1=self.top1.merge(other.top1),
            top5=self.top5.merge(other.top5),
            loss=self.loss.merge(other.loss),
            classes=self.classes.merge(other.classes),
        )


@dataclasses.dataclass(frozen=True)
class ClassificationResult:
    """Accuracies are fractions."""

    top1: float
    top5: float  # top-C where there are fewer than five classes
    loss: float
    mean_per_class: float  # over the classes that have examples
    per_class: tuple[float, ...]  # NaN for a class without examples
    examples: int

    def scalars(self, prefix: str) -> dict[str, float]:
        """The numbers for a metrics file, such as ``test/top1``."""
        names = ("top1", "top5", "loss", "mean_per_class")
        return {f"{prefix}/{name}": getattr(self, name) for name in names}


@functools.partial(jax.jit, static_argnames=("encoder", "mean", "std"))
def eval_step(
    variables: dict[str, Any],
    batch: dict[str, jax.Array],
    *,
    encoder: Encoder,
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> ClassificationMetrics:
    """Scores one batch; rows whose `mask` is False do not count."""
    images = normalise_images(batch["image"], mean, std)
    logits = cast(EncoderOutput, encoder.apply(variables, images, train=False)).logits
    labels, mask = batch["label"], batch["mask"]
    num_classes = logits.shape[-1]
    _, ranked = jax.lax.top_k(logits, min(5, num_classes))
    hits = ranked == labels[:, None]
    average = clu_metrics.Average.from_model_output
    one_hot = jax.nn.one_hot(labels, num_classes) * mask[:, None]
    return ClassificationMetrics(
        top1=average(hits[:, 0].astype(jnp.float32), mask),
        top5=average(jnp.any(hits, axis=-1).astype(jnp.float32), mask),
        loss=average(losses.cross_entropy(logits, labels), mask),
        classes=ClassCounts(
            jnp.sum(one_hot * hits[:, :1], axis=0).astype(jnp.int32),
            jnp.sum(one_hot, axis=0).astype(jnp.int32),
        ),
    )


def evaluate(
    encoder: Encoder,
    variables: dict[str, Any],
    batches: Iterable[dict[str, np.ndarray]],
    *,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    mesh: Mesh,
) -> ClassificationResult:
    """Scores the network on host batches of ``image``, ``label`` and ``mask``."""
    total = None
    for batch in batches:
        wanted = {name: batch[name] for name in ("image", "label", "mask")}
        scored = eval_step(
            variables, sharding.to_devices(mesh, wanted), encoder=encoder, mean=mean, std=std
        )
        total = scored if total is None else _merge(total, scored)
    if total is None:
        raise ValueError("nothing to evaluate: no batches")
    # With several processes, each can read only what is replicated.
    final = jax.device_get(jax.jit(lambda x: x, out_shardings=sharding.replicated(mesh))(total))
    seen = final.classes.total > 0
    with np.errstate(invalid="ignore"):
        per_class = final.classes.correct / final.classes.total
    return ClassificationResult(
        top1=float(final.top1.compute()),
        top5=float(final.top5.compute()),
        loss=float(final.loss.compute()),
        mean_per_class=float(per_class[seen].mean()),
        per_class=tuple(per_class.tolist()),
        examples=int(final.classes.total.sum()),
    )


@jax.jit
def _merge(left: ClassificationMetrics, right: ClassificationMetrics) -> ClassificationMetrics:
    return left.merge(right)
