"""What becomes of a batch of pixels on the device: normalisation, MixUp and CutMix.

Pure functions of arrays, and of a key where they draw, for use inside `jit`.

MixUp and CutMix mix row i with row B - 1 - i. Batches are already shuffled, so this pairing is as
random as a permutation, and on a batch sharded over devices it is one exchange between opposite
shards. The pairing, like everything here, does not depend on the number of devices. One weight, one
box and one choice between the two methods are drawn for a whole batch, as in the public recipes.
"""

from collections.abc import Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from cone_jax.errors import UserError


@flax.struct.dataclass
class Mixed:
    """A mixed batch.

    Attributes:
        images: as given, each row `weight` of itself and `1 - weight` of its partner.
        labels_a: [B], the labels as given.
        labels_b: [B], the partners' labels.
        weight: [B] float32, the share of `labels_a`; the same in every row of a batch.
    """

    images: Any
    labels_a: jax.Array
    labels_b: jax.Array
    weight: jax.Array


def mixup(rng: jax.Array, images: Any, labels: jax.Array, *, alpha: float) -> Mixed:
    """x <- w x + (1 - w) x', with w ~ Beta(alpha, alpha).

    Args:
        rng: the key of this step.
        images: [B, H, W, C] floats, or a pytree of such (the views of a batch), all mixed alike.
        labels: [B] integers.
        alpha: 0.2 for ResNets, 0.8 in DeiT. 0 leaves the batch as it is.
    """
    return mix(rng, images, labels, mixup_alpha=alpha, cutmix_alpha=0.0)


def cutmix(rng: jax.Array, images: Any, labels: jax.Array, *, alpha: float = 1.0) -> Mixed:
    """A box of the partner is pasted over each image; the weight is the share that remains.

    The box has half sides 0.5 sqrt(1 - w) (W, H), w ~ Beta(alpha, alpha), rounded down, around a
    uniform pixel, and is clipped at the border. Arguments as for `mixup`.
    """
    return mix(rng, images, labels, mixup_alpha=0.0, cutmix_alpha=alpha)


def mix(
    rng: jax.Array,
    images: Any,
    labels: jax.Array,
    *,
    mixup_alpha: float = 0.8,
    cutmix_alpha: float = 1.0,
    switch: float = 0.5,
) -> Mixed:
    """CutMix with probability `switch`, else MixUp; a method with alpha 0 is never used.

    The defaults are DeiT's. With both alphas 0 the batch comes back as it is, with weight 1.
    """
    if min(mixup_alpha, cutmix_alpha) < 0 or not 0 <= switch <= 1:
        raise UserError(
            f"mixup alpha ({mixup_alpha}) and cutmix alpha ({cutmix_alpha}) must be at least 0, "
            f"the switch probability ({switch}) from 0 to 1"
        )
    if not mixup_alpha or not cutmix_alpha:
        switch = 1.0 if cutmix_alpha else 0.0
    switch_key, share_key, box_key = jax.random.split(rng, 3)
    use_cutmix = jax.random.uniform(switch_key) < switch
    share = jnp.ones(())
    if mixup_alpha or cutmix_alpha:
        alpha = jnp.where(use_cutmix, cutmix_alpha, mixup_alpha)
        share = jax.random.beta(share_key, alpha, alpha)

    height, width = jax.tree.leaves(images)[0].shape[1:3]
    kept = _outside_box(box_key, share, height, width)
    # Both methods are one weighted sum; they differ in whether the weight varies over pixels.
    pixel_weight = jnp.where(use_cutmix, kept, share)
    weight = jnp.where(use_cutmix, jnp.mean(kept), share)

    def blend(batch: jax.Array) -> jax.Array:
        if not jnp.issubdtype(batch.dtype, jnp.floating):
            raise TypeError(f"only normalised images can be mixed, not {batch.dtype}")
        own = pixel_weight[None, :, :, None].astype(batch.dtype)
        return own * batch + (1 - own) * batch[::-1]

    return Mixed(
        images=jax.tree.map(blend, images),
        labels_a=labels,
        labels_b=labels[::-1],
        weight=jnp.full(labels.shape, weight, jnp.float32),
    )


def _outside_box(rng: jax.Array, share: jax.Array, height: int, width: int) -> jax.Array:
    """[H, W] float32: 0 inside CutMix's box, 1 outside."""
    x_key, y_key = jax.random.split(rng)
    half = 0.5 * jnp.sqrt(1 - share)
    rows = _in_span(y_key, half, height)
    columns = _in_span(x_key, half, width)
    return 1.0 - (rows[:, None] & columns[None, :]).astype(jnp.float32)


def _in_span(rng: jax.Array, half: jax.Array, length: int) -> jax.Array:
    """[length] bool: whether a position lies in [centre - reach, centre + reach)."""
    reach = jnp.floor(half * length).astype(jnp.int32)
    centre = jax.random.randint(rng, (), 0, length)
    position = jnp.arange(length)
    return (centre - reach <= position) & (position < centre + reach)


def normalise_images(images: jax.Array, mean: Sequence[float], std: Sequence[float]) -> jax.Array:
    """``(x / 255 - mean) / std`` a channel; uint8 [..., 3] -> float32 [..., 3].

    >>> pixels = jnp.array([[0, 255, 51]], jnp.uint8)
    >>> [f"{x:.2f}" for x in normalise_images(pixels, (0.5,) * 3, (0.25,) * 3)[0]]
    ['-2.00', '2.00', '-1.20']
    """
    scale = 1.0 / (255.0 * jnp.asarray(std, jnp.float32))
    offset = jnp.asarray(mean, jnp.float32) / jnp.asarray(std, jnp.float32)
    return images.astype(jnp.float32) * scale - offset
