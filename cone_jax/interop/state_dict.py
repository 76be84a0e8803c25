"""Variables to and from PyTorch's arrangement: names by layout, kernels transposed.

PyTorch keeps convolution kernels as [out, in, height, width] and linear ones as [out, in];
Flax as [height, width, in, out] and [in, out].
"""

from collections.abc import Mapping
from typing import Any

import flax
import numpy as np

from cone_jax.interop import layouts
from cone_jax.models import Encoder

StateDict = dict[str, np.ndarray]


def to_state_dict(encoder: Encoder, variables: Mapping[str, Any]) -> StateDict:
    """All parameters and running statistics, float32, under the names of exports."""
    flat = flax.traverse_util.flatten_dict(dict(variables))
    names = layouts.names(encoder, variables, layouts.available(encoder)[0])
    return {
        names[path]: np.ascontiguousarray(to_torch(path, np.asarray(value, np.float32)))
        for path, value in flat.items()
    }


def to_torch(path: layouts.Path, value: np.ndarray) -> np.ndarray:
    """A variable as PyTorch arranges it."""
    if path[-1] != "kernel":
        return value
    return value.transpose(3, 2, 0, 1) if value.ndim == 4 else value.T


def from_torch(path: layouts.Path, value: np.ndarray) -> np.ndarray:
    """The inverse of `to_torch`."""
    if path[-1] != "kernel":
        return value
    return value.transpose(2, 3, 1, 0) if value.ndim == 4 else value.T
