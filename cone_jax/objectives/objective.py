"""What a training method is to the trainer: what it needs, and its loss.

An objective is a frozen dataclass. Its fields are its hyper-parameters, their defaults are the
defaults of its config section, and calling it gives the loss of one batch. The trainer provides
what `needs` asks for and nothing else.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple, Protocol

from jaxtyping import Array, Float, Int

from cone_jax.errors import UserError
from cone_jax.memory_bank import MemoryBank
from cone_jax.models import EncoderOutput


@dataclasses.dataclass(frozen=True)
class Needs:
    """What the trainer has to provide beside the query's outputs and the labels."""

    key: bool = False  # a forward pass of the momentum network, and its upkeep
    bank: bool = False  # a memory bank, filled with the keys after each step


class StepInputs(NamedTuple):
    """One batch, after the forward passes. B rows over all devices."""

    query: EncoderOutput  # gradients flow through this alone
    key: EncoderOutput | None
    labels: Int[Array, " B"]
    exclude_ids: Int[Array, " B"] | None  # records whose bank rows a sample must not see: its own
    bank: MemoryBank | None  # as it was before this step
    epoch: Int[Array, ""]


Metrics = dict[str, Float[Array, ""]]


class Objective(Protocol):
    """A training method."""

    needs: ClassVar[Needs]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __call__(self, inputs: StepInputs) -> tuple[Float[Array, ""], Metrics]:
        """The loss to minimise, and what to report beside it."""
        ...


def require_positive(section: str, settings: Any, *fields: str) -> None:
    """Refuses values of 0 and below, naming the config field."""
    for field in fields:
        value = getattr(settings, field)
        if not value > 0:
            raise UserError(f"{section}.{field} ({value}) must be positive")
