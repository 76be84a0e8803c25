"""CoNe: cross-entropy, contrast with nearest neighbours, distributional consistency.

    L = L_ce + sup_weight * L_sup_in + dc_weight * L_dc

Reference: arXiv 2308.10761 and its released code; fields name the points where they differ, and
cover every variant of the paper's ablations. A term of weight 0 is not computed.
"""

import dataclasses
import math
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cone_jax import losses, memory_bank
from cone_jax.console import Chart, Metric
from cone_jax.objectives.objective import (
    LOSS_CHART,
    BalancedCrossEntropy,
    Metrics,
    Needs,
    StepInputs,
    Views,
    other_view,
)
from cone_jax.settings import field


class Anchors(NamedTuple):
    """What each query is contrasted with."""

    similarity: Float[Array, "B A"]
    labels: Int[Array, "B A"]
    valid: Bool[Array, "B A"]


# The label of a sample's own key among its anchors: a positive whatever the sample's label.
OWN_KEY = -2

_PURITY = Chart(
    "purity",
    "Purity of the neighbours",
    "share, %",
    "The share of neighbours of the query's class, and of queries that have none.",
    factor=100.0,
)
_MASKED = Chart(
    "masked",
    "Masked samples",
    "share, %",
    "So confident that the released code leaves them out of L_ce and L_dc.",
    factor=100.0,
)
_LOG_SUM_EXP = Chart(
    "log_sum_exp",
    "Log-sum-exp errors",
    "τ m",
    "What is lost in reading L_sup_in as a margin between the nearest positive and the nearest "
    "negative. The paper reports averages of 0.06 to 0.1 and 0.3 to 0.45; that its unit is τ m is "
    "our reading.",
)
_LOG_SUM_EXP_RAW = Chart("log_sum_exp_raw", "Log-sum-exp errors, raw", "m")
_ACTIVE = Chart("active", "Method switched on", "share of steps, %", factor=100.0)
METRICS = (
    Metric("loss_sup_in", better="lower", chart=LOSS_CHART, label="L_sup_in"),
    Metric("loss_dc", better="lower", chart=LOSS_CHART, label="L_dc"),
    Metric("purity", unit="share", chart=_PURITY),
    Metric("without_positive", better="lower", unit="share", chart=_PURITY),
    Metric("masked_fraction", unit="share", chart=_MASKED),
    Metric("m_p_times_tau", better="lower", chart=_LOG_SUM_EXP, label="positives, τ m_p"),
    Metric("m_n_times_tau", better="lower", chart=_LOG_SUM_EXP, label="negatives, τ m_n"),
    Metric("m_p", better="lower", chart=_LOG_SUM_EXP_RAW, label="positives, m_p"),
    Metric("m_n", better="lower", chart=_LOG_SUM_EXP_RAW, label="negatives, m_n"),
    Metric("active", unit="share", chart=_ACTIVE),
)

# Queries of a batch whose neighbours are looked up exactly as well, to know what was missed.
RECALL_ROWS = 8


@dataclasses.dataclass(frozen=True)
class Cone(BalancedCrossEntropy, path="objective.cone"):
    """The method's hyper-parameters, with the values of its ImageNet recipe."""

    metrics: ClassVar[tuple[Metric, ...]] = METRICS

    sup_weight: float = field(0.7, "weight of the contrastive term", low=0.0)
    sup_temperature: float = field(0.1, "temperature of the contrastive term", above=0)
    neighbours: int = field(
        512, "number of most similar bank rows that are anchors of the contrastive term", above=0
    )
    anchors: Literal["nearest", "bank"] = field(
        "nearest", "anchors of the contrastive term: the neighbours, or every bank row"
    )
    contrast: Literal["sup_in", "sup_out"] = field("sup_in", "form of the contrastive term")
    dc_weight: float = field(0.4, "weight of distributional consistency", low=0.0)
    dc_temperature: float = field(0.07, "temperature of distributional consistency", above=0)
    views: Literal["query_key", "rows"] = field(
        "query_key",
        "what two views are: one for the query and one for the key, or rows of a batch of 2 n",
    )
    contrastive_view: Literal["none", "key", "bank"] = field(
        "none",
        "whether the other view's key is an anchor: one more beside the neighbours (key), or in "
        "the bank by the time neighbours are chosen (bank)",
    )
    label_smoothing: float = field(0.0, "label smoothing of L_ce", low=0.0, high=1.0)
    smoothing_form: losses.SmoothingForm = field(
        "official", "form of that smoothing: see losses.cross_entropy"
    )
    min_positive_prob: float = field(
        1e-8,
        "rows whose positives have at most this probability leave the contrastive term",
    )
    sup_reduction: Literal["batch", "kept"] = field(
        "batch", "divide the contrastive term by the batch, or by the rows that have a positive"
    )
    conf_mask_eps: float = field(
        1e-8,
        "once the terms are on, samples whose least likely class has at most this probability "
        "leave L_ce and L_dc, as in the released code; 0: off",
    )
    start_epochs: int = field(1, "epochs of cross-entropy alone")
    wait_for_bank: bool = field(
        True, "cross-entropy alone until every row of the bank has been written"
    )

    @property
    def needs(self) -> Needs:
        remembers = self.sup_weight > 0 or self.dc_weight > 0
        views: Views = "any" if self.contrastive_view == "none" else "query_key"
        return Needs(
            views="rows" if self.views == "rows" else views,
            key=remembers,
            bank=remembers,
            bank_probs=self.dc_weight > 0,
            bank_first=self.contrastive_view == "bank",
            embedding=True,
            mixed_labels=True,
            class_prior=self.needs_prior,
        )

    def first_active_step(self, *, steps_per_epoch: int, steps_to_fill_bank: int) -> int:
        if not self.needs.bank:
            return 0
        filled = steps_to_fill_bank if self.wait_for_bank else 0
        return max(self.start_epochs * steps_per_epoch, filled)

    def __call__(self, inputs: StepInputs) -> tuple[jax.Array, Metrics]:
        logits = inputs.query.logits
        active = inputs.epoch >= self.start_epochs
        if self.wait_for_bank and inputs.bank is not None:
            active &= inputs.bank.filled == inputs.bank.size
        keep = _unsaturated(logits, self.conf_mask_eps) | ~active
        cross_entropy = self.cross_entropy(inputs, self.label_smoothing, self.smoothing_form)
        loss = loss_ce = jnp.mean(jnp.where(keep, cross_entropy, 0.0))
        metrics = {
            "loss_ce": loss_ce,
            "active": active.astype(jnp.float32),
            "masked_fraction": jnp.mean(~keep),
        }
        if self.sup_weight > 0:
            sup, diagnostics = self._contrast(inputs)
            loss_sup = jnp.where(active, sup, 0.0)
            loss = loss + self.sup_weight * loss_sup
            metrics |= {f"loss_{self.contrast}": loss_sup, **diagnostics}
        if self.dc_weight > 0:
            consistency = self._consistency(inputs)
            loss_dc = jnp.mean(jnp.where(active & keep, consistency, 0.0))
            loss = loss + self.dc_weight * loss_dc
            metrics["loss_dc"] = loss_dc
        return loss, metrics

    def _contrast(self, inputs: StepInputs) -> tuple[Float[Array, ""], Metrics]:
        """The contrastive term over the batch, and statistics of its anchors."""
        anchors = self._anchors(inputs)
        positive = _positives(anchors, inputs.labels)
        per_sample, kept = self._contrast_rows(anchors, positive)
        if inputs.mixed is not None:
            of_second = self._contrast_rows(anchors, _positives(anchors, inputs.mixed.labels))
            share = inputs.mixed.weight
            per_sample = share * per_sample + (1.0 - share) * of_second[0]
            kept |= of_second[1]
        count = jnp.maximum(jnp.sum(kept), 1) if self.sup_reduction == "kept" else kept.size
        sup = jnp.sum(per_sample) / count
        m_p = _mean_gap(anchors, positive, self.sup_temperature)
        m_n = _mean_gap(anchors, anchors.valid & ~positive, self.sup_temperature)
        return sup, {
            **self._recall(inputs),
            "positives": jnp.mean(jnp.sum(positive, axis=-1, dtype=jnp.float32)),
            "purity": jnp.sum(positive) / jnp.maximum(jnp.sum(anchors.valid), 1),
            "without_positive": jnp.mean(~jnp.any(positive, axis=-1)),
            "m_p": m_p,
            "m_n": m_n,
            # The unit of the paper's figures, most likely: that of a cosine.
            "m_p_times_tau": m_p * self.sup_temperature,
            "m_n_times_tau": m_n * self.sup_temperature,
        }

    def _anchors(self, inputs: StepInputs) -> Anchors:
        assert inputs.key is not None and inputs.bank is not None
        query = losses.normalise(inputs.query.embedding)
        if self.anchors == "nearest":
            near = memory_bank.neighbours(inputs.bank, query, self.neighbours, inputs.exclude_ids)
        else:
            near = memory_bank.all_rows(inputs.bank, query, inputs.exclude_ids)
        anchors = Anchors(near.similarity, near.labels, near.valid)
        if self.contrastive_view != "key":
            return anchors
        key = jax.lax.stop_gradient(losses.normalise(inputs.key.embedding))
        own_key = other_view(key) if self.views == "rows" else key
        own = jnp.sum(query * own_key, axis=-1, keepdims=True)
        return Anchors(
            similarity=jnp.concatenate([own, anchors.similarity], axis=-1),
            labels=jnp.concatenate([jnp.full(own.shape, OWN_KEY), anchors.labels], axis=-1),
            valid=jnp.concatenate([jnp.ones(own.shape, bool), anchors.valid], axis=-1),
        )

    def _recall(self, inputs: StepInputs) -> Metrics:
        """How many of the true neighbours an approximate selection finds, for a few queries."""
        bank = inputs.bank
        if bank is None or bank.recall_target == 1.0 or self.anchors != "nearest":
            return {}
        query = jax.lax.stop_gradient(losses.normalise(inputs.query.embedding[:RECALL_ROWS]))
        ids = None if inputs.exclude_ids is None else inputs.exclude_ids[:RECALL_ROWS]
        return {"neighbour_recall": memory_bank.recall(bank, query, self.neighbours, ids)}

    def _contrast_rows(
        self, anchors: Anchors, positive: Bool[Array, "B A"]
    ) -> tuple[Float[Array, " B"], Bool[Array, " B"]]:
        """The term of each row, and which rows count; 0 where one does not."""
        term = losses.sup_in if self.contrast == "sup_in" else losses.sup_out
        per_sample = term(
            anchors.similarity, positive, temperature=self.sup_temperature, where=anchors.valid
        )
        kept = jnp.any(positive, axis=-1)
        if self.contrast == "sup_in" and self.min_positive_prob > 0.0:
            # sup_in is minus the logarithm of the positives' probability.
            kept &= per_sample < -math.log(self.min_positive_prob)
        return jnp.where(kept, per_sample, 0.0), kept

    def _consistency(self, inputs: StepInputs) -> Float[Array, " B"]:
        """L_dc of each row; 0 where the bank shows it no row."""
        assert inputs.key is not None and inputs.bank is not None
        targets = memory_bank.soft_labels(
            inputs.bank,
            losses.normalise(inputs.key.embedding),
            temperature=self.dc_temperature,
            exclude_ids=inputs.exclude_ids,
            classify=inputs.classify_key,
        )
        sees_bank = jnp.any(memory_bank.valid_rows(inputs.bank, inputs.exclude_ids), axis=-1)
        per_sample = losses.distributional_consistency(targets, inputs.query.logits)
        return jnp.where(sees_bank, per_sample, 0.0)


def _positives(anchors: Anchors, labels: Int[Array, " B"]) -> Bool[Array, "B A"]:
    of_class = (anchors.labels == labels[:, None]) | (anchors.labels == OWN_KEY)
    return of_class & anchors.valid


def _mean_gap(anchors: Anchors, where: Bool[Array, "B A"], temperature: float) -> Float[Array, ""]:
    """`losses.log_sum_exp_gap`, averaged over the rows that have such anchors."""
    similarity = jax.lax.stop_gradient(anchors.similarity)
    gap = losses.log_sum_exp_gap(similarity, temperature=temperature, where=where)
    return jnp.sum(gap) / jnp.maximum(jnp.sum(jnp.any(where, axis=-1)), 1)


def _unsaturated(logits: Float[Array, "B C"], eps: float) -> Bool[Array, " B"]:
    """Rows whose least likely class still has more than `eps` probability."""
    if eps <= 0.0:
        return jnp.ones(logits.shape[:1], bool)
    least = jnp.min(jax.nn.log_softmax(logits), axis=-1)
    return least > math.log(eps)
