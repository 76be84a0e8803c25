"""Which fields to change when a run does not fit into a device: cheapest first, with their price.

For an allocation that failed while training, and for a compiler that foresees it.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from cone_jax import objectives


@dataclasses.dataclass(frozen=True)
class Cure:
    """A field, the value that saves memory, and what it costs."""

    field: str
    value: str
    price: str
    saves: int | None = None  # bytes of one device; None: the compiler has not been asked
    compiled: bool = False  # by the compiler; otherwise by arithmetic on the state
    fits: bool | None = None  # whether the run fits with it, where that was compiled

    def __str__(self) -> str:
        return f"{self.field}={self.value}"


def find(
    config: ConfigDict, *, platform: str, devices: int, state: Mapping[str, int] | None = None
) -> list[Cure]:
    """The cures for a config on such devices.

    `state` has the bytes that each part of it takes on one of them, where they are known.

    >>> from cone_jax import config as config_lib
    >>> first, *_ = find(config_lib.default(), platform="gpu", devices=8)
    >>> str(first), first.price
    ('bank.sharding=sharded', 'nothing but collectives')
    """
    return list(_cures(config, platform, devices, state))


def _cures(
    config: ConfigDict, platform: str, devices: int, state: Mapping[str, int] | None
) -> Iterator[Cure]:
    needs = objectives.chosen(config.objective).needs
    bank = None if state is None else state["bank"]
    weights = None if state is None else sum(state.values()) - state["bank"]

    def beyond_share(size: int | None) -> int | None:
        return None if size is None else size - size // devices

    if needs.bank and config.bank.sharding == "replicated" and devices > 1:
        yield Cure("bank.sharding", "sharded", "nothing but collectives", beyond_share(bank))
    if config.model.sharding == "replicated" and devices > 1:
        price = "gathering the parameters"
        yield Cure("model.sharding", "sharded", price, beyond_share(weights))
    # A CPU computes in bfloat16 slowly.
    if config.model.dtype == "float32" and platform != "cpu":
        yield Cure("model.dtype", "bfloat16", "precision of the network's arithmetic")
    if needs.bank_probs and config.bank.probs == "stored":
        if config.bank.probs_dtype == "float32":
            yield Cure("bank.probs_dtype", "bfloat16", "digits of remembered probabilities")
        yield Cure("bank.probs", "recomputed", "a product with the bank in every step")
    if not config.model.options.remat:
        yield Cure("model.options.remat", "True", "a second forward pass")
    parts = config.accumulate * 2
    rows = config.batch_size // devices
    if not (needs.whole_batch or needs.bank_first) and rows % parts == 0:
        yield Cure("accumulate", str(parts), "BatchNorm sees a part at a time")
    if rows % 2 == 0:
        half = config.batch_size // 2
        yield Cure("batch_size", str(half), "another recipe: twice the steps")
    if needs.bank and config.bank.size // 2 >= config.batch_size:
        saves = None if bank is None else bank // 2
        yield Cure("bank.size", str(config.bank.size // 2), "half of the neighbours", saves)


def apply(config: ConfigDict, cure: Cure) -> ConfigDict:
    """The config with that field changed."""
    changed = ConfigDict(config.to_dict())
    section: Any = changed
    *path, name = cure.field.split(".")
    for part in path:
        section = section[part]
    if cure.field in ("accumulate", "batch_size", "bank.size"):
        section[name] = int(cure.value)
    else:
        section[name] = True if cure.value == "True" else cure.value
    return changed.lock()
