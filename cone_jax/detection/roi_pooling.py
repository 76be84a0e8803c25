"""RoIAlign: features of a box of any size, resampled to a fixed grid.

RoIAlign averages bilinear samples over the bins of a grid. The weight of a cell in a bin is a
product of a vertical and a horizontal part, the rule for points outside the map and the adaptive
number of samples included. For each box ``out = A_y F A_x^T``: two matrix products, no gathers,
exact, and linear in the features, so that the gradient is two products as well.

Reference: He et al., "Mask R-CNN", arXiv 1703.06870.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from cone_jax.detection import boxes as box_lib

# Adaptive samples lie more than half a cell apart, so that at most 4 have a weight for a cell. One
# more on each side makes up for rounding.
NEAR_SAMPLES = 6
# Boxes pooled at once. Bounds the intermediate product, [boxes, output, W, C].
CHUNK = 32
FIRST_LEVEL, CANONICAL_LEVEL, CANONICAL_SIZE = 2, 4, 224.0


def roi_align(
    features: Float[Array, "H W C"],
    boxes: Float[Array, "N 4"],
    *,
    spatial_scale: float,
    output_size: int,
    sampling_ratio: int = 0,
    aligned: bool = True,
) -> Float[Array, "N output_size output_size C"]:
    r"""Features of boxes, averaged in a grid of bins.

    A bin is the mean of samples that are interpolated between the four cells around them:
    $\sum_h \sum_w \max(0, 1 - |y - h|) \max(0, 1 - |x - w|) F_{hw}$. Samples beyond the map by more
    than one cell are 0. A gradient reaches the features, never the boxes. Every cell takes part in
    the products, if only with the weight 0, so that a map must be finite everywhere.

    Reference: He et al., "Mask R-CNN", arXiv 1703.06870.

    Args:
        features: a map of C channels.
        boxes: x0, y0, x1, y1 in pixels of the image; N may be 0.
        spatial_scale: the size of the map divided by that of the image.
        output_size: bins per axis.
        sampling_ratio: samples per axis and bin; 0 takes ``ceil(side / output_size)``.
        aligned: puts pixel centres at half-integers (Detectron2). Otherwise (torchvision's default)
            they lie at integers and a side counts as one cell at least.

    Returns:
        For each box a grid of C values, in the type of `features`.

    >>> ramp = jnp.broadcast_to(jnp.arange(8.0)[None, :, None], (8, 8, 1))
    >>> roi_align(
    ...     ramp, jnp.array([[2.0, 2.0, 6.0, 6.0]]), spatial_scale=1.0, output_size=2
    ... )[0, 0, :, 0].tolist()
    [2.5, 4.5]
    """
    return multilevel_roi_align(
        [features],
        boxes,
        spatial_scales=[spatial_scale],
        output_size=output_size,
        sampling_ratio=sampling_ratio,
        aligned=aligned,
    )


@jax.named_scope("roi_align")
def multilevel_roi_align(
    pyramid: Sequence[Float[Array, "H W C"]],
    boxes: Float[Array, "N 4"],
    *,
    spatial_scales: Sequence[float],
    output_size: int,
    sampling_ratio: int = 0,
    aligned: bool = True,
) -> Float[Array, "N output_size output_size C"]:
    r"""RoIAlign from the level of a feature pyramid that suits the size of each box.

    A box of sides w and h is read from level $\lfloor 4 + \log_2(\sqrt{wh} / 224) \rfloor$, where
    the map of level $l$ has the stride $2^l$. Every level contributes a product in which the
    weights of other levels' boxes are 0.

    Reference: Lin et al., "Feature Pyramid Networks for Object Detection", arXiv 1612.03144.

    Args:
        pyramid: a map per level, finest first, each half as large as the one before.
        boxes: x0, y0, x1, y1 in pixels of the image.
        spatial_scales: of each map, as for `roi_align`, and so are the others.

    Returns:
        For each box a grid of C values.

    >>> pyramid = [jnp.zeros((8, 8, 1)), jnp.ones((4, 4, 1))]
    >>> boxes = jnp.array([[0.0, 0.0, 100.0, 100.0], [0.0, 0.0, 500.0, 500.0]])
    >>> scales = [1 / 64, 1 / 128]
    >>> found = multilevel_roi_align(pyramid, boxes, spatial_scales=scales, output_size=1)
    >>> found.ravel().tolist()  # the small box from the fine level, the large one from the other
    [0.0, 1.0]
    """
    pyramid, boxes = [_floating(each) for each in pyramid], jnp.asarray(boxes, jnp.float32)
    box_lib.require_shape(boxes)
    levels = box_levels(boxes, count=len(pyramid))

    def pool(chunk: tuple[Array, Array]) -> Array:
        chunk_boxes, chunk_levels = chunk
        parts = []
        for level, (features, scale) in enumerate(zip(pyramid, spatial_scales, strict=True)):
            weights_y, weights_x = (
                axis_weights(*part, size, output_size=output_size, sampling_ratio=sampling_ratio)
                for part, size in zip(
                    _box_ranges(chunk_boxes, scale, aligned), features.shape[:2], strict=True
                )
            )
            here = (chunk_levels == level)[:, None, None]
            parts.append(_resample(features, jnp.where(here, weights_y, 0.0), weights_x))
        return functools.reduce(jnp.add, parts).astype(pyramid[0].dtype)

    return _in_chunks(pool, (boxes, levels))


def box_levels(boxes: Float[Array, "N 4"], *, count: int) -> Int[Array, " N"]:
    """The level of each box, 0 for the finest of `count`: ``floor(4 + log2(sqrt(area) / 224))``
    minus 2, the number of the finest level.

    (Eq. 1 of Lin et al., "Feature Pyramid Networks", arXiv 1612.03144.)

    >>> boxes = jnp.array([[0.0, 0.0, 223.0, 223.0], [0.0, 0.0, 224.0, 224.0], [0.0] * 4])
    >>> box_levels(boxes, count=4).tolist()
    [1, 2, 0]
    """
    side = jnp.sqrt(jnp.maximum(box_lib.area(boxes), 1e-12))
    level = jnp.floor(CANONICAL_LEVEL + jnp.log2(side / CANONICAL_SIZE) + 1e-6)
    return jnp.clip(level.astype(jnp.int32) - FIRST_LEVEL, 0, count - 1)


def crop_masks(
    masks: Float[Array, "N h w"],
    frames: Float[Array, "N 4"],
    boxes: Float[Array, "N 4"],
    *,
    output_size: int,
    aligned: bool = True,
) -> Float[Array, "N output_size output_size"]:
    """What each mask looks like inside its box: adaptive RoIAlign, one mask per box.

    A mask covers the region `frames` of the image. The frame of a bitmap of the whole image is
    (0, 0, W, H), for which the crop is exactly torchvision's (`aligned` False) or Detectron2's.

    Args:
        masks: N pictures of values from 0 to 1.
        frames: the region that each of them covers.
        boxes: the region wanted of each.
        output_size: the side of the result.
        aligned: as for `roi_align`.

    Returns:
        The share of each bin that the mask covers.

    >>> half = jnp.array([[[1.0, 1.0, 0.0, 0.0]] * 4])
    >>> frame = jnp.array([[10.0, 10.0, 14.0, 14.0]])
    >>> crop_masks(half, frame, frame, output_size=2)[0].tolist()
    [[1.0, 0.0], [1.0, 0.0]]
    """
    height, width = masks.shape[1:]
    parts = []
    for axis, cells in ((1, height), (0, width)):
        low, high = boxes[:, axis], boxes[:, axis + 2]
        if not aligned:
            low, high = low + 0.5, jnp.maximum(high, low + 1.0) + 0.5
        origin, extent = frames[:, axis], frames[:, axis + 2] - frames[:, axis]
        scale = cells / jnp.maximum(extent, box_lib.MIN_SIDE)
        start = (low - origin) * scale - 0.5
        parts.append(axis_weights(start, (high - low) * scale, cells, output_size=output_size))
    exact = lax.Precision.HIGHEST
    rows = jnp.einsum("nph,nhw->npw", parts[0], masks.astype(jnp.float32), precision=exact)
    return jnp.einsum("npw,nqw->npq", rows, parts[1], precision=exact)


def axis_weights(
    start: Float[Array, " N"],
    length: Float[Array, " N"],
    cells: int,
    *,
    output_size: int,
    sampling_ratio: int = 0,
) -> Float[Array, "N output_size cells"]:
    """One axis of RoIAlign: how much each of `cells` cells counts in each bin.

    Bins divide the range from `start` over `length`, in cells whose centres lie at 0, 1, ...; each
    holds G equally spaced samples. A sample y gives cell h the weight ``max(0, 1 - |y - h|)``,
    with y moved onto the outermost centre from up to one cell beyond. Hence samples with a weight
    for h lie within one cell of h, and of an adaptive number only those few are looked at.
    """
    start, length = (lax.stop_gradient(x)[:, None, None] for x in (start, length))
    # Maps may be so wide that the last bit of a position counts. So everything is rounded as
    # written: not as XLA does by itself, which multiplies by the inverse of a constant.
    length, number_of_bins = lax.optimization_barrier((length, jnp.full_like(length, output_size)))
    bin_length = length / number_of_bins
    if sampling_ratio > 0:
        number = jnp.full_like(bin_length, sampling_ratio)
    else:
        number = jnp.maximum(jnp.ceil(bin_length), 0.0)
    # A box without length has no samples and all weights 0, whatever the step.
    step = bin_length / jnp.maximum(number, 1.0)
    cell = jnp.arange(cells, dtype=jnp.float32)[None, None, :]
    bins = jnp.arange(output_size, dtype=jnp.float32)[None, :, None]
    bin_start = start + _rounded(bins * bin_length)
    if sampling_ratio > 0:
        samples = [jnp.float32(index) for index in range(sampling_ratio)]
    else:
        distance = (cell - 1.0 - bin_start) / jnp.where(step > 0.0, step, 1.0)
        first = jnp.floor(distance - 0.5) - 1.0
        # A single sample may lie anywhere in a short bin.
        first = jnp.where(number > 1.0, first, 0.0)
        samples = [first + index for index in range(NEAR_SAMPLES)]
    total = jnp.zeros((start.shape[0], output_size, cells), jnp.float32)
    for sample in samples:
        position = bin_start + _rounded((sample + 0.5) * step)
        inside = (position >= -1.0) & (position <= cells)
        inside &= (sample >= 0.0) & (sample < number)
        position = jnp.clip(position, 0.0, cells - 1.0)
        total += jnp.where(inside, jnp.maximum(1.0 - jnp.abs(position - cell), 0.0), 0.0)
    return lax.stop_gradient(total / jnp.maximum(number, 1.0))


def _rounded(product: jax.Array) -> jax.Array:
    """A product that cannot become part of a sum, which would be rounded once instead of twice."""
    return jnp.maximum(product, jnp.finfo(jnp.float32).min)


def _floating(features: jax.Array) -> jax.Array:
    """One map, in a type for products: whole numbers have no room for weights."""
    features = jnp.asarray(features)
    if features.ndim != 3:
        raise ValueError(f"features {features.shape} must be [H, W, C]; for a batch use jax.vmap")
    floating = jnp.issubdtype(features.dtype, jnp.floating)
    return features if floating else features.astype(jnp.float32)


def _box_ranges(
    boxes: Float[Array, "N 4"], spatial_scale: float, aligned: bool
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Start and length of each box along y and along x, in cells."""
    scaled = boxes.astype(jnp.float32) * spatial_scale - (0.5 if aligned else 0.0)
    start, length = scaled[:, :2], scaled[:, 2:] - scaled[:, :2]
    if not aligned:
        length = jnp.maximum(length, 1.0)
    return (start[:, 1], length[:, 1]), (start[:, 0], length[:, 0])


def _resample(
    features: Float[Array, "H W C"],
    weights_y: Float[Array, "N P H"],
    weights_x: Float[Array, "N P W"],
) -> Float[Array, "N P P C"]:
    """``A_y F A_x^T`` for each box, summed in float32."""

    def product(formula: str, *factors: Array) -> Array:
        return jnp.einsum(
            formula, *factors, precision=precision, preferred_element_type=jnp.float32
        )

    dtype = features.dtype
    precision = lax.Precision.HIGHEST if dtype == jnp.float32 else None
    rows = product("nph,hwc->npwc", weights_y.astype(dtype), features).astype(dtype)
    return product("nqw,npwc->npqc", weights_x.astype(dtype), rows)


def _in_chunks(pool: Callable[[tuple[Array, Array]], Array], boxes: tuple[Array, Array]) -> Array:
    """`pool` applied to `CHUNK` boxes at a time."""
    number = boxes[0].shape[0]
    if number <= CHUNK:
        return pool(boxes)
    padded = [jnp.pad(x, ((0, -number % CHUNK), *[(0, 0)] * (x.ndim - 1))) for x in boxes]
    first, second = (x.reshape(-1, CHUNK, *x.shape[1:]) for x in padded)
    pooled = lax.map(pool, (first, second))
    return pooled.reshape(-1, *pooled.shape[2:])[:number]
