"""NNCLR: a sample's nearest neighbour in the bank stands in for its other view.

Reference: Dwibedi et al., "With a Little Help from My Friends", arXiv 2104.14548. Without
cross-entropy no label enters the loss (unless `same_class_only`), and a linear stage follows.
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from cone_jax import losses, memory_bank
from cone_jax.objectives.objective import Metrics, Needs, Objective, StepInputs, with_cross_entropy
from cone_jax.settings import field


@dataclasses.dataclass(frozen=True)
class Nnclr(Objective, path="objective.nnclr"):
    """``L = nn_weight * L_nn + ce_weight * L_ce``."""

    temperature: float = field(0.1, "temperature of the similarities", above=0)
    nn_weight: float = field(1.0, "weight of L_nn", above=0)
    ce_weight: float = field(0.0, "weight of L_ce; 1: NNCLR + CE", low=0.0)
    lookup: Literal["query", "key"] = field(
        "query",
        "who looks the neighbour up: each view for the other one, without a momentum network, as "
        "published (query); or the momentum network for the query, one view or two, the design "
        "choice for NNCLR + CE on CoNe's frame (key)",
    )
    same_class_only: bool = field(False, "the neighbour must have the sample's label")

    @property
    def needs(self) -> Needs:
        by_key = self.lookup == "key"
        return Needs(
            views="any" if by_key else "rows",
            key=by_key,
            bank=True,
            whole_batch=True,
            embedding=True,
            predictor=True,
            classifier=self.ce_weight > 0,
        )

    def __call__(self, inputs: StepInputs) -> tuple[jax.Array, Metrics]:
        assert inputs.query.prediction is not None
        prediction = losses.normalise(inputs.query.prediction)
        if self.lookup == "key":
            assert inputs.key is not None
            pairs = [(inputs.key.embedding, inputs.labels, prediction, inputs.exclude_ids)]
        else:
            z1, z2 = _first_and_second(inputs.query.embedding)
            p1, p2 = _first_and_second(prediction)
            labels, _ = _first_and_second(inputs.labels)
            ids = inputs.exclude_ids
            ids = None if ids is None else _first_and_second(ids)[0]
            pairs = [(z1, labels, p2, ids), (z2, labels, p1, ids)]
        terms, agreement = zip(*(self._term(inputs, *pair) for pair in pairs), strict=True)
        loss_nn = jnp.mean(jnp.stack(terms))
        metrics = {"loss_nn": loss_nn, "neighbour_agreement": jnp.mean(jnp.stack(agreement))}
        return with_cross_entropy(self.nn_weight * loss_nn, metrics, inputs, self.ce_weight)

    def _term(
        self,
        inputs: StepInputs,
        embedding: Float[Array, "n D"],
        labels: Int[Array, " n"],
        prediction: Float[Array, "n D"],
        ids: Int[Array, " n"] | None,
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Each neighbour recognises its sample's prediction in the batch."""
        assert inputs.bank is not None
        z = jax.lax.stop_gradient(losses.normalise(embedding))
        near = memory_bank.neighbours(
            inputs.bank, z, 1, ids, same_class=labels if self.same_class_only else None
        )
        found = near.valid[:, 0]
        neighbour = jax.lax.stop_gradient(inputs.bank.features[near.rows[:, 0]])
        own = jnp.eye(z.shape[0], dtype=bool)
        per_row = losses.sup_out(
            losses.cosines(neighbour, prediction), own, temperature=self.temperature
        )
        agrees = jnp.sum(found & (near.labels[:, 0] == labels)) / jnp.maximum(jnp.sum(found), 1)
        return jnp.mean(jnp.where(found, per_row, 0.0)), agrees


def _first_and_second(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The two views of each sample, where views are rows: [2 n, ...] -> two of [n, ...]."""
    pairs = rows.reshape(-1, 2, *rows.shape[1:])
    return pairs[:, 0], pairs[:, 1]
