"""Anchors: boxes of fixed sizes and shapes around every cell of a feature map.

Two styles exist. Detectron2 keeps the exact sides and lists all shapes of one size before the
next size. torchvision rounds corners to whole pixels and lists all sizes of one shape first. The
order decides which channel of a trained head belongs to which anchor. Anchors depend on shapes
only, so they are NumPy arrays: constants of the compiled program.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

Style = Literal["detectron2", "torchvision"]


def cell_anchors(
    sizes: Sequence[float], ratios: Sequence[float], *, style: Style = "detectron2"
) -> np.ndarray:
    """The anchors of one cell, around the origin: float32 [len(sizes) * len(ratios), 4].

    `sizes` are square roots of areas, `ratios` heights divided by widths.

    >>> cell_anchors([32.0], [1.0]).tolist()
    [[-16.0, -16.0, 16.0, 16.0]]
    """
    root = np.sqrt(np.asarray(ratios, np.float32))
    size = np.asarray(sizes, np.float32)
    if style == "torchvision":
        widths, heights = (1 / root)[:, None] * size[None], root[:, None] * size[None]
    else:
        widths, heights = size[:, None] * (1 / root)[None], size[:, None] * root[None]
    corner = np.stack([widths.ravel(), heights.ravel()], axis=-1) / np.float32(2)
    anchors = np.concatenate([-corner, corner], axis=-1)
    return anchors.round() if style == "torchvision" else anchors


def grid_anchors(cell: np.ndarray, grid: tuple[int, int], stride: tuple[int, int]) -> np.ndarray:
    """The anchors of all cells, row by row: float32 [rows * columns * len(cell), 4].

    `grid` holds the rows and columns of the feature map, `stride` their distance in pixels. The
    first cell stands at the origin.

    >>> grid_anchors(np.array([[-1.0, -1.0, 1.0, 1.0]], np.float32), (1, 2), (4, 4)).tolist()
    [[-1.0, -1.0, 1.0, 1.0], [3.0, -1.0, 5.0, 1.0]]
    """
    y, x = np.meshgrid(
        *(np.arange(n) * s for n, s in zip(grid, stride, strict=True)), indexing="ij"
    )
    shifts = np.stack([x, y, x, y], axis=-1).reshape(-1, 1, 4).astype(np.float32)
    return (shifts + cell[None]).reshape(-1, 4)


def pyramid_anchors(
    image: tuple[int, int],
    grids: Sequence[tuple[int, int]],
    strides: Sequence[int],
    sizes: Sequence[Sequence[float]],
    ratios: Sequence[float],
    *,
    style: Style = "detectron2",
) -> list[np.ndarray]:
    """The anchors of each level for a padded image (height, width).

    `sizes` lists the sizes of each level: one per level of a feature pyramid, all five on the
    single level of C4. torchvision takes the stride from the shapes, which differs from the
    nominal one where a map of odd size was halved.

    >>> [len(level) for level in pyramid_anchors((64, 64), [(4, 4)], [16], [[32, 64]], [1.0])]
    [32]
    """
    levels = []
    for grid, nominal, level_sizes in zip(grids, strides, sizes, strict=True):
        stride = (nominal, nominal)
        if style == "torchvision":
            stride = (image[0] // grid[0], image[1] // grid[1])
        levels.append(grid_anchors(cell_anchors(level_sizes, ratios, style=style), grid, stride))
    return levels
