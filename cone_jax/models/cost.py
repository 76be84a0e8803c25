"""What a network costs: parameters, and multiply-accumulates of one forward pass.

Both come from abstract evaluation: nothing is computed, no memory is taken.
"""

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from cone_jax.models.layers import ANY_PLATFORM
from cone_jax.models.registry import Encoder, build


def abstract_variables(encoder: Encoder, image_size: int) -> Any:
    """The shapes of an encoder's variables: ``params`` and, with BatchNorm, ``batch_stats``.

    Args:
        encoder: the network.
        image_size: the side of its input in pixels.

    Returns:
        A tree of shapes and types; nothing is computed.

    >>> from cone_jax import models
    >>> shapes = abstract_variables(models.create("resnet18", 10, projection=None), 224)
    >>> shapes["params"]["classifier"]["kernel"].shape
    (512, 10)
    """
    image = jax.ShapeDtypeStruct((1, image_size, image_size, 3), jnp.float32)
    others = [jax.ShapeDtypeStruct((1, 2), jnp.int32) for _ in encoder.inputs]
    return jax.eval_shape(
        lambda *inputs: encoder.init(jax.random.key(0), *inputs, train=False), image, *others
    )


def parameters(encoder: Encoder, image_size: int) -> int:
    """The number of trained values.

    Args:
        encoder: the network.
        image_size: the side of its input in pixels; a transformer's positions depend on it.

    Returns:
        A plain number.

    >>> from cone_jax import models
    >>> parameters(models.create("resnet50", 1000, projection=None), 224)
    25557032
    """
    variables = abstract_variables(encoder, image_size)
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(variables["params"]))


def multiply_accumulates(encoder: Encoder, image_size: int) -> int:
    """The multiply-adds of convolutions and matrix products, for one image in evaluation mode.

    Args:
        encoder: the network.
        image_size: the side of its input in pixels.

    Returns:
        A plain number, without BatchNorm, activations and pooling.

    >>> from cone_jax import models
    >>> round(multiply_accumulates(models.create("resnet50", 1000, projection=None), 224) / 1e9, 2)
    4.09
    """
    encoder = build(encoder.spec, platform=ANY_PLATFORM)
    image = jax.ShapeDtypeStruct((1, image_size, image_size, 3), jnp.float32)
    variables = abstract_variables(encoder, image_size)
    jaxpr = jax.make_jaxpr(lambda v, x: encoder.apply(v, x, train=False))(variables, image)
    return sum(_multiplications(equation) for equation in _equations(jaxpr.jaxpr))


def _equations(jaxpr: core.Jaxpr) -> Iterator[core.JaxprEqn]:
    """All equations, those of inner functions included."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if isinstance(inner, core.ClosedJaxpr):
                    yield from _equations(inner.jaxpr)
                elif isinstance(inner, core.Jaxpr):
                    yield from _equations(inner)


def _multiplications(equation: core.JaxprEqn) -> int:
    shapes: list[Any] = [
        getattr(variable.aval, "shape", ()) for variable in (*equation.invars, *equation.outvars)
    ]
    if equation.primitive.name == "conv_general_dilated":
        _, kernel, outputs = shapes
        out_channels = kernel[equation.params["dimension_numbers"].rhs_spec[0]]
        return math.prod(outputs) * math.prod(kernel) // out_channels
    if equation.primitive.name == "dot_general":
        left, _, outputs = shapes
        (contracted, _), _ = equation.params["dimension_numbers"]
        return math.prod(outputs) * math.prod(left[axis] for axis in contracted)
    return 0
