"""Which fields to change when a run does not fit: cheapest first, with what each saves."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from cone_jax import objectives
from cone_jax.compilation import programs
from cone_jax.console import readable


@dataclasses.dataclass(frozen=True)
class Cure:
    """A field, the value that saves memory, and what it costs."""

    field: str
    value: str
    price: str
    saves: int | None = None  # bytes of one device; None: the compiler has not been asked
    compiled: bool = False  # by the compiler; otherwise by arithmetic on the state
    fits: bool | None = None  # whether the run fits with it, where that was compiled

    def saving(self) -> str:
        """What it saves, as a person reads it."""
        if self.saves is None:
            return "not compiled"
        enough = {True: ", and then it fits", False: ", which is not enough", None: ""}[self.fits]
        return f"{readable(self.saves)}{enough if self.compiled else ' of the state'}"


def find(config: ConfigDict, devices: int, state: Mapping[str, int]) -> list[Cure]:
    """The cures for a config, whose state takes these bytes of a device by part."""
    return list(_cures(config, devices, state))


def _cures(config: ConfigDict, devices: int, state: Mapping[str, int]) -> Iterator[Cure]:
    needs = objectives.chosen(config.objective).needs
    bank = state.get("bank", 0)
    if needs.bank and config.bank.sharding == "replicated" and devices > 1:
        saves = bank - bank // devices
        yield Cure("bank.sharding", "sharded", "nothing but collectives", saves)
    if config.model.sharding == "replicated" and devices > 1:
        weights = programs.total(state) - bank
        yield Cure(
            *("model.sharding", "sharded", "gathering the parameters"), weights - weights // devices
        )
    if config.model.dtype == "float32":
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
        yield Cure("bank.size", str(config.bank.size // 2), "half of the neighbours", bank // 2)


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
