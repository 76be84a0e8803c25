"""Architectures: one file per family, and the encoder they all become part of."""

from cone_jax.models.cost import abstract_variables, multiply_accumulates, parameters
from cone_jax.models.layers import ANY_PLATFORM
from cone_jax.models.registry import (
    Classifier,
    Encoder,
    EncoderOutput,
    ModelSpec,
    Projection,
    build,
    create,
    from_settings,
    names,
)

__all__ = [
    "ANY_PLATFORM",
    "Classifier",
    "Encoder",
    "EncoderOutput",
    "ModelSpec",
    "Projection",
    "abstract_variables",
    "build",
    "create",
    "from_settings",
    "multiply_accumulates",
    "names",
    "parameters",
]
