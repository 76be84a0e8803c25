"""Variables to and from another arrangement: names by layout, kernels transposed.

PyTorch keeps convolution kernels as [out, in, height, width] and linear ones as [out, in];
Flax as [height, width, in, out] and [in, out]. Only our own layout keeps them as Flax does.
"""

from collections.abc import Mapping
from typing import Any

import flax
import numpy as np

from cone_jax.interop import layouts
from cone_jax.models import Encoder

StateDict = dict[str, np.ndarray]


def to_state_dict(encoder: Encoder, variables: Mapping[str, Any]) -> StateDict:
    """All parameters and running statistics, float32, in the layout of exports."""
    flat = flax.traverse_util.flatten_dict(dict(variables))
    layout = layouts.available(encoder)[0]
    names = layouts.names(encoder, variables, layout)
    return {
        names[path]: np.ascontiguousarray(arrange(layout, path, np.asarray(value, np.float32)))
        for path, value in flat.items()
    }


def arrange(layout: str, path: layouts.Path, value: np.ndarray) -> np.ndarray:
    """A variable as `layout` arranges it."""
    if layout == layouts.OWN or path[-1] != "kernel":
        return value
    return value.transpose(3, 2, 0, 1) if value.ndim == 4 else value.T


def restore(layout: str, path: layouts.Path, value: np.ndarray) -> np.ndarray:
    """The inverse of `arrange`."""
    if layout == layouts.OWN or path[-1] != "kernel":
        return value
    return value.transpose(2, 3, 1, 0) if value.ndim == 4 else value.T
