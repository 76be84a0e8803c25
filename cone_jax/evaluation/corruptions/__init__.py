"""The fifteen common corruptions of ImageNet-C (Hendrycks and Dietterich, 2019).

    corrupt(image, "fog", severity=3, rng=rng)          # uint8 [H, W, 3] -> uint8 [H, W, 3]

`parameters` has the benchmark's published numbers, for large pictures (ImageNet-C) and for small
ones (CIFAR-C); the corruptions follow its definition and are written anew on NumPy, SciPy and
Pillow. Four things differ from the released files, so that numbers on pictures corrupted here are
comparable among themselves, but only close to published ones: the random draws; the frost, a
generated texture where the user does not have the benchmark's photographs; pixels are rounded, not
cut off; and the pictures do not go through a JPEG file.
"""

from cone_jax.evaluation.corruptions.corruption import (
    CORRUPTIONS,
    SEVERITIES,
    CorruptedSource,
    corrupt,
)

__all__ = ["CORRUPTIONS", "SEVERITIES", "CorruptedSource", "corrupt"]
