"""The circular memory bank: the momentum network's recent outputs.

A bank is a pytree of arrays and the functions here are pure, so it lives in a train state,
goes through `jit` with donation, and is checkpointed like any parameter. Row r is valid once
something has been written to it; rows are written in order and the oldest are overwritten.
Queries get gradients, the contents of the bank are constants.

Its rows are on every device, or split over those of a mesh (`init(..., mesh=mesh, split=True)`);
all functions take both kinds and give the same result.
"""

from cone_jax.memory_bank.bank import (
    NO_ID,
    MemoryBank,
    enqueue,
    init,
    init_official,
    shardings,
)
from cone_jax.memory_bank.lookup import (
    Neighbours,
    all_rows,
    neighbours,
    recall,
    similarity,
    soft_labels,
    valid_rows,
)

__all__ = [
    "NO_ID",
    "MemoryBank",
    "Neighbours",
    "all_rows",
    "enqueue",
    "init",
    "init_official",
    "neighbours",
    "recall",
    "shardings",
    "similarity",
    "soft_labels",
    "valid_rows",
]
