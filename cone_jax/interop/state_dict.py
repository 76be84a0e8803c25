"""Variables to and from another arrangement: names by layout, kernels transposed.

PyTorch keeps convolution kernels as [out, in, height, width] and linear ones as [out, in];
Flax as [height, width, in, out] and [in, out]. Only our own layout keeps them as Flax does.

A distilled DeiT has two classifiers where we have one. Of features c and d of its two tokens
its logits are (c V + v + d W + w) / 2; ours are [c d] U + u with U = [V; W] / 2, u = (v + w) / 2.
"""

from collections.abc import Mapping
from typing import Any

import flax
import numpy as np

from cone_jax.interop import layouts
from cone_jax.models import Encoder

StateDict = dict[str, np.ndarray]


def to_state_dict(
    encoder: Encoder, variables: Mapping[str, Any], layout: str | None = None
) -> StateDict:
    """All parameters and running statistics, float32, in `layout` or in that of exports."""
    flat = flax.traverse_util.flatten_dict(dict(variables))
    layout = layout or layouts.available(encoder)[0]
    names = layouts.names(encoder, variables, layout)
    tensors: StateDict = {}
    for path, value in flat.items():
        tensors |= _split(names[path], arrange(layout, path, np.asarray(value, np.float32)))
    return {name: np.ascontiguousarray(value) for name, value in tensors.items()}


def join(encoder: Encoder, tensors: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """`tensors`, those that are one of ours joined, under a name that contains both."""
    if not layouts.has_two_classifiers(encoder):
        return tensors
    joined = dict(tensors)
    for first in tensors:
        prefix, classifier, leaf = first.rpartition("head.")
        second = f"head_dist.{leaf}"
        if classifier and prefix + second in tensors:
            pair = [np.asarray(joined.pop(name), np.float32) for name in (first, prefix + second)]
            both = np.concatenate(pair, axis=1) if pair[0].ndim > 1 else pair[0] + pair[1]
            joined[first + layouts.JOINT + second] = both / 2
    return joined


def _split(name: str, value: np.ndarray) -> StateDict:
    """The inverse of `join`, for one tensor: a bias, whose parts nobody knows, goes to both."""
    first, joint, second = name.partition(layouts.JOINT)
    if not joint:
        return {name: value}
    pair = np.split(2 * value, 2, axis=1) if value.ndim > 1 else (value, value.copy())
    return {first: pair[0], second: pair[1]}


def arrange(layout: str, path: layouts.Path, value: np.ndarray) -> np.ndarray:
    """A variable as `layout` arranges it."""
    if path[-1] == "layer_scale" and layout == "torchvision":
        return value[:, None, None]
    if layout == layouts.OWN or path[-1] != "kernel":
        return value
    return value.transpose(3, 2, 0, 1) if value.ndim == 4 else value.T


def restore(layout: str, path: layouts.Path, value: np.ndarray) -> np.ndarray:
    """The inverse of `arrange`."""
    if path[-1] == "layer_scale" and layout == "torchvision":
        return value.reshape(-1)
    if layout == layouts.OWN or path[-1] != "kernel":
        return value
    return value.transpose(2, 3, 1, 0) if value.ndim == 4 else value.T
