"""Variables for comparisons, made in NumPy: compiling an initialisation takes far longer."""

import flax
import numpy as np

from cone_jax import models


def draw(encoder, image_size, seed=0):
    """Kernels that keep the signal's size, and nothing left at 0 or 1.

    At 0 or 1 a forgotten bias, a lost scale or a mean taken for a variance would not show.
    """
    rng = np.random.default_rng(seed)
    shapes = flax.traverse_util.flatten_dict(models.abstract_variables(encoder, image_size))
    drawn = {}
    for path, leaf in shapes.items():
        if path[-1] in ("scale", "var"):
            values = rng.uniform(0.5, 1.5, leaf.shape)
        else:
            fan_in = np.prod(leaf.shape[:-1]) if path[-1] == "kernel" else 100.0
            values = rng.normal(0, np.sqrt(1 / fan_in), leaf.shape)
        drawn[path] = values.astype(np.float32)
    return flax.traverse_util.unflatten_dict(drawn)


def images(size, count=2, seed=1):
    """Normalised pictures, float32 [count, size, size, 3]."""
    return np.random.default_rng(seed).normal(size=(count, size, size, 3)).astype(np.float32)
