"""The strength of each corruption at severities 1 to 5, as the benchmark publishes it.

``imagenet`` is for pictures of 224 pixels, ``cifar`` for 32. What the numbers of a corruption
mean, its function says. Lengths of `elastic_transform` are fractions of a side.
"""

from typing import Any

# One entry a severity.
Strengths = tuple[Any, Any, Any, Any, Any]

PARAMETERS: dict[str, dict[str, Strengths]] = {
    "imagenet": {
        "gaussian_noise": (0.08, 0.12, 0.18, 0.26, 0.38),
        "shot_noise": (60, 25, 12, 5, 3),
        "impulse_noise": (0.03, 0.06, 0.09, 0.17, 0.27),
        "defocus_blur": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
        "glass_blur": ((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
        "motion_blur": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
        "zoom_blur": ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
        "snow": (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
        "frost": ((1.0, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
        "fog": ((1.5, 2), (2.0, 2), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4)),
        "brightness": (0.1, 0.2, 0.3, 0.4, 0.5),
        "contrast": (0.4, 0.3, 0.2, 0.1, 0.05),
        # The definition counts in units of 244 pixels on pictures of 224.
        "elastic_transform": (
            (2 * 244 / 224, 0.7 * 244 / 224, 0.1 * 244 / 224),
            (2 * 244 / 224, 0.08 * 244 / 224, 0.2 * 244 / 224),
            (0.05 * 244 / 224, 0.01 * 244 / 224, 0.02 * 244 / 224),
            (0.07 * 244 / 224, 0.01 * 244 / 224, 0.02 * 244 / 224),
            (0.12 * 244 / 224, 0.01 * 244 / 224, 0.02 * 244 / 224),
        ),
        "pixelate": (0.6, 0.5, 0.4, 0.3, 0.25),
        "jpeg_compression": (25, 18, 15, 10, 7),
    },
    "cifar": {
        "gaussian_noise": (0.04, 0.06, 0.08, 0.09, 0.10),
        "shot_noise": (500, 250, 100, 75, 50),
        "impulse_noise": (0.01, 0.02, 0.03, 0.05, 0.07),
        "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        "zoom_blur": ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        "snow": (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        "frost": ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
        "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1.0, 2), (1.5, 1.75)),
        "brightness": (0.05, 0.1, 0.15, 0.2, 0.3),
        "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),
        "elastic_transform": (
            (0.0, 0.0, 0.08),
            (0.05, 0.2, 0.07),
            (0.08, 0.06, 0.06),
            (0.1, 0.04, 0.05),
            (0.1, 0.03, 0.03),
        ),
        "pixelate": (0.95, 0.9, 0.85, 0.75, 0.65),
        "jpeg_compression": (80, 65, 58, 50, 40),
    },
}

# Pictures up to this side are small: the largest that the benchmark's small sets have.
_LARGEST_SMALL_SIDE = 64


def table_for(height: int, width: int) -> str:
    """Which parameters suit pictures of this size.

    >>> table_for(224, 224), table_for(32, 32)
    ('imagenet', 'cifar')
    """
    return "cifar" if max(height, width) <= _LARGEST_SMALL_SIDE else "imagenet"
