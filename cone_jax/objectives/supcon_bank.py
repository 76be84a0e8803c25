"""SupCon with a memory bank: contrast with the own key and a queue of earlier keys.

The variant that Khosla et al. (arXiv 2004.11362) report and never released, on the frame of
MoCo v2: the query sees one view, the momentum network the other. A linear stage follows.
"""

import dataclasses

import jax
import jax.numpy as jnp

from cone_jax import losses, memory_bank
from cone_jax.objectives.objective import Metrics, Needs, Objective, StepInputs
from cone_jax.settings import field


@dataclasses.dataclass(frozen=True)
class SupConBank(Objective, path="objective.supcon_bank"):
    """L_out; anchors are the sample's own key and every row of the bank."""

    temperature: float = field(0.07, "temperature of the similarities", above=0)

    @property
    def needs(self) -> Needs:
        return Needs(views="query_key", key=True, bank=True, embedding=True, classifier=False)

    def __call__(self, inputs: StepInputs) -> tuple[jax.Array, Metrics]:
        assert inputs.key is not None and inputs.bank is not None
        query = losses.normalise(inputs.query.embedding)
        key = jax.lax.stop_gradient(losses.normalise(inputs.key.embedding))
        rows = memory_bank.all_rows(inputs.bank, query, inputs.exclude_ids)
        own = jnp.sum(query * key, axis=-1, keepdims=True)
        always = jnp.ones(own.shape, bool)
        positive = (rows.labels == inputs.labels[:, None]) & rows.valid
        per_row = losses.sup_out(
            jnp.concatenate([own, rows.similarity], axis=-1),
            jnp.concatenate([always, positive], axis=-1),
            temperature=self.temperature,
            where=jnp.concatenate([always, rows.valid], axis=-1),
        )
        loss = jnp.mean(per_row)
        positives = 1.0 + jnp.mean(jnp.sum(positive, axis=-1, dtype=jnp.float32))
        return loss, {"loss_sup_out": loss, "positives": positives}
