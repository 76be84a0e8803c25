"""scikit-learn's handwritten digits: 1,797 grey 8x8 images that come with the install."""

import numpy as np

from cone_jax.data.sources import splits
from cone_jax.data.sources.array import ArraySource

NUM_TRAIN = 1437
# The split is part of the data set's definition, like CIFAR's: it does not follow config.seed.
SPLIT_SEED = 0


def open_digits(split: str) -> ArraySource:
    """The ``train`` (1,437 images) or ``test`` (360) part of a fixed, seeded split."""
    # scikit-learn takes a second to import; only this source needs it.
    from sklearn.datasets import load_digits

    part = splits.part(split)
    data = load_digits()
    order = np.random.Generator(np.random.PCG64(SPLIT_SEED)).permutation(len(data.target))
    chosen = order[:NUM_TRAIN] if part == "train" else order[NUM_TRAIN:]
    # Pixels are counts 0..16 of set bits in a 4x4 cell; scaled to the full range.
    images = np.round(data.images[chosen] * (255.0 / 16.0)).astype(np.uint8)
    names = [str(name) for name in data.target_names]
    return ArraySource(images, data.target[chosen].astype(np.int32), names, f"digits/{split}")
