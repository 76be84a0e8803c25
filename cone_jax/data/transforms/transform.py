"""One step of the way from a picture to the network's input: the type that all of them share.

Transforms are frozen dataclasses of plain values: hashable, picklable, comparable, shared by
threads. All randomness comes from the generator passed in, so equal generators give equal pixels.
"""

import abc

import numpy as np

from cone_jax.data.decode import Raster


class Transform(abc.ABC):
    """One step. Subclasses are frozen dataclasses that check their fields on construction."""

    @abc.abstractmethod
    def __call__(self, image: Raster, rng: np.random.Generator) -> Raster:
        """The transformed image; never changes the one it was given."""

    def size_after(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        """(height, width) of the result, given that of the input; None = varies by image."""
        return size
