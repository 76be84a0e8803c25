"""Networks to compare, without the time it takes to compile their initialisation."""

import functools

import flax
import jax
import numpy as np

from cone_jax import models


def draw(encoder, image_size, seed=0, bias_std=0.1):
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
            is_kernel = path[-1] == "kernel"
            std = 1 / np.sqrt(np.prod(leaf.shape[:-1])) if is_kernel else bias_std
            values = rng.normal(0, std, leaf.shape)
        drawn[path] = values.astype(np.float32)
    return flax.traverse_util.unflatten_dict(drawn)


def images(size, count=2, seed=1):
    """Normalised pictures, float32 [count, size, size, 3]."""
    return np.random.default_rng(seed).normal(size=(count, size, size, 3)).astype(np.float32)


# For computations that run once: compiled in half the time, run in twice.
quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def logits(encoder, variables, images):
    """In evaluation mode."""
    run = quick_jit(lambda v, x: encoder.apply(v, x, train=False).logits)
    return np.asarray(run(variables, images))
