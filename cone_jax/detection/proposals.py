"""From the proposal head's output to proposals, and from class scores to detections."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from cone_jax.detection import boxes as box_lib
from cone_jax.detection.settings import Settings
from cone_jax.detection.suppression import nms


def propose(
    logits: Sequence[Float[Array, " N"]],
    codes: Sequence[Float[Array, "N 4"]],
    anchors: Sequence[Float[np.ndarray, "N 4"]],
    size: Float[Array, " 2"],
    *,
    settings: Settings,
    train: bool,
    usable: Sequence[Bool[Array, " N"]] | None = None,
) -> tuple[Float[Array, "P 4"], Bool[Array, " P"]]:
    """One image's proposals, best first, and which are valid; the sequences run over levels.

    Each level's best anchors are decoded and clipped to the image of `size`. Then suppression
    works within levels, and the best of all levels remain. Anchors that are not `usable` take no
    part. No gradient flows.
    """
    before = settings.proposals_before_nms[0 if train else 1]
    found_boxes, found_scores, groups = [], [], []
    for level, (level_logits, level_codes, level_anchors) in enumerate(
        zip(logits, codes, anchors, strict=True)
    ):
        scores = lax.stop_gradient(level_logits).astype(jnp.float32)
        if usable is not None:
            scores = jnp.where(usable[level], scores, -jnp.inf)
        scores, index = lax.top_k(scores, min(before, scores.shape[0]))
        chosen = lax.stop_gradient(level_codes)[index]
        boxes = box_lib.decode(chosen, jnp.asarray(level_anchors)[index])
        found_boxes.append(box_lib.clip(boxes, size))
        found_scores.append(scores)
        groups.append(jnp.full(scores.shape, level, jnp.int32))
    boxes, scores = jnp.concatenate(found_boxes), jnp.concatenate(found_scores)
    exists = box_lib.sides_at_least(boxes, settings.proposal_min_side) & (scores > -jnp.inf)
    if settings.nms_on_probabilities:
        scores = jax.nn.sigmoid(scores)
    index, valid = nms(
        boxes,
        jnp.where(exists, scores, -jnp.inf),
        iou_threshold=settings.rpn_nms,
        max_outputs=settings.proposals[0 if train else 1],
        groups=jnp.concatenate(groups),
    )
    return jnp.where(valid[:, None], boxes[index], 0.0), valid


def detect(
    logits: Float[Array, "P C"],
    codes: Float[Array, "P C 4"],
    proposals: Float[Array, "P 4"],
    valid: Bool[Array, " P"],
    size: Float[Array, " 2"],
    *,
    settings: Settings,
) -> tuple[Float[Array, "D 4"], Float[Array, " D"], Int[Array, " D"], Bool[Array, " D"]]:
    """One image's boxes, scores, classes and validity, best first.

    Every class of a proposal is a candidate of its own; suppression works within classes.
    """
    number, classes = logits.shape
    probability = jax.nn.softmax(logits.astype(jnp.float32), axis=-1)[:, 1:]
    # So many classes at most can be above the threshold, since they sum to 1.
    at_most = classes - 1
    if settings.score_threshold > 0.0:
        at_most = min(at_most, int(1.0 / settings.score_threshold))
    scores, label = lax.top_k(probability, at_most)
    label = label + 1
    chosen = jnp.take_along_axis(codes.astype(jnp.float32), label[..., None], axis=1)
    boxes = box_lib.decode(chosen, proposals[:, None], weights=settings.box_weights)
    boxes = box_lib.clip(boxes, size)
    exists = valid[:, None] & (scores > settings.score_threshold)
    exists &= box_lib.sides_at_least(boxes, settings.detection_min_side)
    boxes, label = boxes.reshape(number * at_most, 4), label.reshape(-1)
    scores = scores.reshape(-1)
    index, found = nms(
        boxes,
        jnp.where(exists.reshape(-1), scores, -jnp.inf),
        iou_threshold=settings.detection_nms,
        max_outputs=settings.detections,
        groups=label,
    )
    return (
        jnp.where(found[:, None], boxes[index], 0.0),
        jnp.where(found, scores[index], 0.0),
        jnp.where(found, label[index], 0),
        found,
    )
