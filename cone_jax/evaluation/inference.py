"""The way from pixels to a network's outputs that every evaluation takes."""

from typing import Any, cast

import jax

from cone_jax.data.on_device import normalise_images
from cone_jax.models import Encoder, EncoderOutput


def infer(
    variables: dict[str, Any],
    images: jax.Array,
    *,
    encoder: Encoder,
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> EncoderOutput:
    """What the network makes of uint8 [B, H, W, 3] in evaluation mode."""
    pixels = normalise_images(images, mean, std)
    return cast(EncoderOutput, encoder.apply(variables, pixels, train=False))


infer_compiled = jax.jit(infer, static_argnames=("encoder", "mean", "std"))
