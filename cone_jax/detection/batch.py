"""What goes into a detector and what comes out, in static shapes.

B padded images, G places for objects in each. A mask is stored as a small picture of the region
`mask_frames`, by default the object's box and a margin (`cone_jax.data.objects.crop_mask`). An
object of 112 x 112 values takes 12.5 kB where a bitmap of the padded image takes 1 MB, and it does
not change with the scale of the image. A bitmap of the whole image is the frame (0, 0, W, H), so
nothing else is needed where exactness matters more.
"""

import dataclasses
from collections.abc import Mapping

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt8


@flax.struct.dataclass
class GroundTruth:
    """The labelled objects of a batch; `valid` marks places that hold one.

    `classes` are 1 to the number of classes. Crowds are valid objects that no box is matched with.
    `masks` are 0 to 1, or 0 to 255 as bytes.

    >>> one = jnp.ones((1, 1), bool)
    >>> box = jnp.array([[[0.0, 0.0, 4.0, 4.0]]])
    >>> truth = GroundTruth(box, one.astype(int), one, ~one, jnp.ones((1, 1, 28, 28)), box)
    >>> truth.masks.shape
    (1, 1, 28, 28)
    """

    boxes: Float[Array, "B G 4"]  # x0, y0, x1, y1 in pixels of the padded image
    classes: Int[Array, "B G"]  # 1 to C
    valid: Bool[Array, "B G"]  # whether the place holds an object
    crowd: Bool[Array, "B G"]  # whether it stands for a crowd
    masks: Float[Array, "B G h w"] | UInt8[Array, "B G h w"]  # the object in its frame
    mask_frames: Float[Array, "B G 4"]  # the box that each mask covers

    @classmethod
    def from_batch(cls, batch: Mapping[str, jax.Array]) -> "GroundTruth":
        """The columns of a batch that describe objects."""
        return cls(**{each.name: batch[each.name] for each in dataclasses.fields(cls)})


@flax.struct.dataclass
class Detections:
    """What a detector found, best first; `valid` marks places that hold something.

    Boxes are in pixels of the resized image. `masks` are probabilities on a grid over the box;
    `pasting` brings them into the image.

    >>> boxes, masks = jnp.array([[[0.0, 0.0, 4.0, 4.0]] * 2]), jnp.ones((1, 2, 28, 28))
    >>> valid = jnp.array([[True, False]])
    >>> found = Detections(boxes, jnp.array([[0.9, 0.0]]), jnp.array([[1, 0]]), valid, masks)
    >>> found.scores[found.valid].tolist()
    [0.8999999761581421]
    """

    boxes: Float[Array, "B D 4"]  # x0, y0, x1, y1
    scores: Float[Array, "B D"]  # probabilities of the classes
    classes: Int[Array, "B D"]  # 1 to C
    valid: Bool[Array, "B D"]  # whether the place holds an object
    masks: Float[Array, "B D M M"]  # of each object's own class; M is 0 without masks


def inside(shape: tuple[int, ...], sizes: Int[Array, "B 2"]) -> Bool[Array, "B H W"]:
    """Which pixels of a padded `shape` (H, W) belong to images of the given sizes.

    >>> inside((1, 3), jnp.array([[1, 2]])).tolist()
    [[[True, True, False]]]
    """
    rows = jnp.arange(shape[0])[None, :] < sizes[:, :1]
    columns = jnp.arange(shape[1])[None, :] < sizes[:, 1:]
    return rows[:, :, None] & columns[:, None, :]


def mask_values(masks: jax.Array) -> jax.Array:
    """Masks as float32 of 0 to 1.

    >>> mask_values(jnp.array([255], jnp.uint8)).tolist()
    [1.0]
    """
    values = masks.astype(jnp.float32)
    return values / 255.0 if masks.dtype == jnp.uint8 else values
