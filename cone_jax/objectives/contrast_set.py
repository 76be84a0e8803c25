"""The anchors of PaCo and of its multi-task baseline: queries and keys of the batch, the bank."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from cone_jax import losses, memory_bank
from cone_jax.objectives.objective import Needs, StepInputs

# The classifier and the contrast part ways after the backbone.
CONTRAST_SET_NEEDS = Needs(
    views="query_key",
    key=True,
    bank=True,
    whole_batch=True,
    embedding=True,
    classifier_sees="features",
)


class ContrastSet(NamedTuple):
    """Similarity of each query to every anchor. A = 2 B + K."""

    similarity: Float[Array, "B A"]
    positive: Bool[Array, "B A"]  # of the query's class
    where: Bool[Array, "B A"]  # exists, and is not the query itself


def contrast_set(inputs: StepInputs) -> ContrastSet:
    """Queries, keys and bank rows as anchors. Gradients reach the queries on both sides."""
    assert inputs.key is not None and inputs.bank is not None
    query = losses.normalise(inputs.query.embedding)
    key = jax.lax.stop_gradient(losses.normalise(inputs.key.embedding))
    rows = memory_bank.all_rows(inputs.bank, query, inputs.exclude_ids)
    others = ~jnp.eye(query.shape[0], dtype=bool)
    where = jnp.concatenate([others, jnp.ones_like(others), rows.valid], axis=-1)
    same_class = inputs.labels[:, None] == inputs.labels
    of_class = jnp.concatenate(
        [same_class, same_class, rows.labels == inputs.labels[:, None]], axis=-1
    )
    similarity = jnp.concatenate(
        [losses.cosines(query, query), losses.cosines(query, key), rows.similarity], axis=-1
    )
    return ContrastSet(similarity, of_class & where, where)
