"""Networks to compare, without the time it takes to compile their initialisation."""

import functools

import flax
import jax
import numpy as np

from cone_jax import models

# Running variances near this, and a transformer's stream near its root, make a wrong epsilon show;
# gammas are as much smaller, so that signals keep their size.
SMALL_VARIANCE = 1e-3
STREAM = ("position", "class_token", "patch_embedding", "attention_out", "mlp_out")


def draw(encoder, image_size, seed=0, bias_std=0.1, gain=1.0):
    """Kernels that keep the signal's size, and nothing left at 0 or 1.

    At 0 or 1 a forgotten bias, a lost scale or a mean taken for a variance would not show. In deep
    residual networks a `gain` below 1 keeps the sum of the branches small.
    """
    rng = np.random.default_rng(seed)
    shapes = flax.traverse_util.flatten_dict(models.abstract_variables(encoder, image_size))
    drawn = {}
    for path, leaf in shapes.items():
        if path[-1] == "var":
            values = SMALL_VARIANCE * rng.uniform(0.5, 1.5, leaf.shape)
        elif path[-1] == "scale":
            has_statistics = ("batch_stats", *path[1:-1], "var") in shapes
            mean = gain * (SMALL_VARIANCE**0.5 if has_statistics else 1.0)
            values = mean * rng.uniform(0.5, 1.5, leaf.shape)
        else:
            is_kernel = path[-1] == "kernel"
            std = 1 / np.sqrt(np.prod(leaf.shape[:-1])) if is_kernel else bias_std
            values = std * rng.standard_normal(leaf.shape, np.float32)
        if not set(STREAM).isdisjoint(path):
            values = values * SMALL_VARIANCE**0.5
        drawn[path] = values.astype(np.float32)
    return flax.traverse_util.unflatten_dict(drawn)


def images(size, count=2, seed=1):
    """Normalised pictures, float32 [count, size, size, 3]."""
    return np.random.default_rng(seed).normal(size=(count, size, size, 3)).astype(np.float32)


@functools.partial(jax.jit, static_argnums=0)
def _logits(encoder, variables, images):
    return encoder.apply(variables, images, train=False).logits


def logits(encoder, variables, images):
    """In evaluation mode."""
    return np.asarray(_logits(encoder, variables, images))
