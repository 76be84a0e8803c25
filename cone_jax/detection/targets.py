"""Training targets for the anchors, proposals and masks of one image."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from cone_jax.detection import batch, matching, roi_pooling, sampling
from cone_jax.detection import boxes as box_lib
from cone_jax.detection.sampling import Samples
from cone_jax.detection.settings import Settings


class AnchorTargets(NamedTuple):
    """S sampled anchors, and the codes [S, 4] of the objects that they stand for."""

    samples: Samples
    codes: Float[Array, "S 4"]


class ProposalTargets(NamedTuple):
    """S sampled proposals: boxes, classes (0 for the background), objects' places and codes."""

    samples: Samples
    boxes: Float[Array, "S 4"]
    classes: Int[Array, " S"]
    object_index: Int[Array, " S"]
    codes: Float[Array, "S 4"]


def anchor_targets(
    key: PRNGKeyArray,
    anchors: Float[Array, "N 4"],
    usable: Bool[Array, " N"],
    truth: batch.GroundTruth,
    *,
    settings: Settings,
) -> AnchorTargets:
    """Targets of the proposal head; `truth` is that of one image, without the first axis."""
    single = truth.valid & ~truth.crowd
    matches = matching.match(
        anchors,
        truth.boxes,
        single,
        low=settings.rpn_low,
        high=settings.rpn_high,
        low_quality=True,
    )
    matches = _without_crowds(matches, anchors, truth, settings)
    label = jnp.where(usable, matches.label, matching.IGNORED)
    objects = int(settings.rpn_samples * settings.rpn_objects)
    samples = sampling.sample(key, label, count=settings.rpn_samples, objects=objects)
    matched = truth.boxes[matches.nearest[samples.chosen]]
    return AnchorTargets(samples, box_lib.encode(matched, anchors[samples.chosen]))


def proposal_targets(
    key: PRNGKeyArray,
    proposals: Float[Array, "P 4"],
    valid: Bool[Array, " P"],
    truth: batch.GroundTruth,
    *,
    settings: Settings,
) -> ProposalTargets:
    """Targets of the box head. The objects themselves are proposals, too."""
    single = truth.valid & ~truth.crowd
    boxes = lax.stop_gradient(jnp.concatenate([proposals, truth.boxes.astype(jnp.float32)]))
    threshold = settings.roi_threshold
    matches = matching.match(boxes, truth.boxes, single, low=threshold, high=threshold)
    matches = _without_crowds(matches, boxes, truth, settings)
    exists = jnp.concatenate([valid, single])
    label = jnp.where(exists, matches.label, matching.IGNORED)
    samples = sampling.sample(
        key,
        label,
        count=settings.roi_samples,
        objects=int(settings.roi_samples * settings.roi_objects),
    )
    boxes, index = boxes[samples.chosen], matches.nearest[samples.chosen]
    codes = box_lib.encode(truth.boxes[index], boxes, weights=settings.box_weights)
    classes = jnp.where(samples.is_object, truth.classes[index], 0)
    return ProposalTargets(samples, boxes, classes, index, codes)


def mask_targets(
    boxes: Float[Array, "P 4"],
    object_index: Int[Array, " P"],
    truth: batch.GroundTruth,
    *,
    settings: Settings,
    resolution: int,
) -> Float[Array, "P M M"]:
    """The matched objects' masks inside the sampled boxes."""
    cropped = roi_pooling.crop_masks(
        batch.mask_values(truth.masks[object_index]),
        truth.mask_frames[object_index],
        boxes,
        output_size=resolution,
        aligned=settings.aligned,
    )
    if settings.binary_mask_targets:
        cropped = (cropped >= 0.5).astype(jnp.float32)
    return cropped


def _without_crowds(
    matches: matching.Matches,
    boxes: Float[Array, "N 4"],
    truth: batch.GroundTruth,
    settings: Settings,
) -> matching.Matches:
    if settings.crowd_overlap is None:
        return matches
    crowds = truth.valid & truth.crowd
    return matching.ignore_crowds(
        matches, boxes, truth.boxes, crowds, overlap=settings.crowd_overlap
    )
