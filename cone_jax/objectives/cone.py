"""CoNe: cross-entropy, contrast with nearest neighbours, distributional consistency.

    L = L_ce + sup_weight * L_sup_in + dc_weight * L_dc

Reference: arXiv 2308.10761 and its released code; fields name the points where they differ.
"""

import dataclasses
import math
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from cone_jax import losses, memory_bank
from cone_jax.memory_bank import MemoryBank, Neighbours
from cone_jax.objectives.objective import Metrics, Needs, StepInputs, require_positive


@dataclasses.dataclass(frozen=True)
class Cone:
    """The method's hyper-parameters, with the values of its ImageNet recipe."""

    sup_weight: float = 0.7
    sup_temperature: float = 0.1
    dc_weight: float = 0.4
    dc_temperature: float = 0.07
    neighbours: int = 512  # anchors of the contrastive term, the most similar bank rows
    anchors: Literal["nearest", "bank"] = "nearest"  # "bank": every row instead
    contrast: Literal["sup_in", "sup_out"] = "sup_in"
    label_smoothing: float = 0.0
    smoothing_form: losses.SmoothingForm = "official"
    # Drop a row from the contrastive term when its positives hold no more probability than this.
    min_positive_prob: float = 1e-8
    # Divide the contrastive term by the batch, or by the rows that have a positive.
    sup_reduction: Literal["batch", "kept"] = "batch"
    # Once the method is on, drop samples whose least likely class has no more probability than
    # this from L_ce and L_dc (released code only; 0: off).
    conf_mask_eps: float = 1e-8
    start_epochs: int = 1  # cross-entropy alone for so many epochs
    wait_for_bank: bool = True  # and until every row of the bank has been written

    needs: ClassVar[Needs] = Needs(key=True, bank=True)

    def __post_init__(self) -> None:
        require_positive("objective.cone", self, "sup_temperature", "dc_temperature", "neighbours")

    def __call__(self, inputs: StepInputs) -> tuple[jax.Array, Metrics]:
        assert inputs.key is not None and inputs.bank is not None
        bank, logits = inputs.bank, inputs.query.logits
        active = inputs.epoch >= self.start_epochs
        if self.wait_for_bank:
            active &= bank.filled == bank.size
        query = losses.normalise(inputs.query.embedding)
        key = losses.normalise(inputs.key.embedding)

        near = self._anchors(bank, query, inputs.exclude_ids)
        positive = (near.labels == inputs.labels[:, None]) & near.valid
        sup, has_positive = self._contrast(near, positive)
        consistency = losses.distributional_consistency(
            memory_bank.soft_labels(
                bank, key, temperature=self.dc_temperature, exclude_ids=inputs.exclude_ids
            ),
            logits,
        )
        cross_entropy = losses.cross_entropy(
            logits, inputs.labels, smoothing=self.label_smoothing, form=self.smoothing_form
        )
        keep = _unsaturated(logits, self.conf_mask_eps) | ~active
        sees_bank = jnp.any(memory_bank.valid_rows(bank, inputs.exclude_ids), axis=-1)

        loss_ce = jnp.mean(jnp.where(keep, cross_entropy, 0.0))
        loss_sup = jnp.where(active, sup, 0.0)
        loss_dc = jnp.mean(jnp.where(active & keep & sees_bank, consistency, 0.0))
        loss = loss_ce + self.sup_weight * loss_sup + self.dc_weight * loss_dc
        return loss, {
            "loss_ce": loss_ce,
            f"loss_{self.contrast}": loss_sup,
            "loss_dc": loss_dc,
            "active": active.astype(jnp.float32),
            "masked_fraction": jnp.mean(~keep),
            "positives": jnp.mean(jnp.sum(positive, axis=-1, dtype=jnp.float32)),
            "purity": jnp.sum(positive) / jnp.maximum(jnp.sum(near.valid), 1),
            "without_positive": jnp.mean(~has_positive),
        }

    def _anchors(
        self, bank: MemoryBank, query: Float[Array, "B D"], exclude_ids: jax.Array | None
    ) -> Neighbours:
        if self.anchors == "nearest":
            return memory_bank.neighbours(bank, query, self.neighbours, exclude_ids)
        return memory_bank.all_rows(bank, query, exclude_ids)

    def _contrast(
        self, near: Neighbours, positive: Bool[Array, "B k"]
    ) -> tuple[Float[Array, ""], Bool[Array, " B"]]:
        """The contrastive term over the batch, and which rows have a positive."""
        term = losses.sup_in if self.contrast == "sup_in" else losses.sup_out
        per_sample = term(
            near.similarity, positive, temperature=self.sup_temperature, where=near.valid
        )
        has_positive = jnp.any(positive, axis=-1)
        kept = has_positive
        if self.contrast == "sup_in" and self.min_positive_prob > 0.0:
            # sup_in is minus the logarithm of the positives' probability.
            kept &= per_sample < -math.log(self.min_positive_prob)
        count = jnp.maximum(jnp.sum(kept), 1) if self.sup_reduction == "kept" else kept.size
        return jnp.sum(jnp.where(kept, per_sample, 0.0)) / count, has_positive


def _unsaturated(logits: Float[Array, "B C"], eps: float) -> Bool[Array, " B"]:
    """Rows whose least likely class still has more than `eps` probability."""
    if eps <= 0.0:
        return jnp.ones(logits.shape[:1], bool)
    least = jnp.min(jax.nn.log_softmax(logits), axis=-1)
    return least > math.log(eps)
