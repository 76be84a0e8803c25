"""The network as one serialised StableHLO program: weights inside, any batch size, no Flax.

program = jax.export.deserialize(bytearray(path.read_bytes()))
program.call(images)["logits"]
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from cone_jax.models import Encoder

PLATFORMS = ("cpu", "cuda", "tpu")


def write(path: Path, encoder: Encoder, variables: Mapping[str, Any], image_size: int) -> None:
    """Traces the network in evaluation mode and writes the program."""
    program = export.export(jax.jit(inference(encoder, variables)), platforms=PLATFORMS)(
        batch_of_any_size(image_size)
    )
    path.write_bytes(program.serialize())


def open_logits(path: Path) -> Any:
    """The program as a function of images that returns logits."""
    program = export.deserialize(bytearray(path.read_bytes()))
    return lambda images: np.asarray(program.call(images)["logits"])


def inference(encoder: Encoder, variables: Mapping[str, Any]) -> Any:
    """images -> logits and embedding, as graphs export them."""

    def infer(images: jax.Array) -> dict[str, jax.Array]:
        out: Any = encoder.apply(variables, images, train=False)
        return {"logits": out.logits, "embedding": out.embedding}

    return infer


def batch_of_any_size(image_size: int) -> jax.ShapeDtypeStruct:
    """The input of a graph: the number of images is a symbol."""
    (batch,) = export.symbolic_shape("batch")
    return jax.ShapeDtypeStruct((batch, image_size, image_size, 3), jnp.float32)
