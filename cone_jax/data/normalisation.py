"""uint8 pixels to what a network sees, on the device."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp


def normalise_images(images: jax.Array, mean: Sequence[float], std: Sequence[float]) -> jax.Array:
    """``(x / 255 - mean) / std`` a channel; uint8 [..., 3] -> float32 [..., 3].

    >>> pixels = jnp.array([[0, 255, 51]], jnp.uint8)
    >>> [f"{x:.2f}" for x in normalise_images(pixels, (0.5,) * 3, (0.25,) * 3)[0]]
    ['-2.00', '2.00', '-1.20']
    """
    scale = 1.0 / (255.0 * jnp.asarray(std, jnp.float32))
    offset = jnp.asarray(mean, jnp.float32) / jnp.asarray(std, jnp.float32)
    return images.astype(jnp.float32) * scale - offset
