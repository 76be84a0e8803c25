"""Mask R-CNN as one module: images in, losses or detections out, no step on the host.

The parameters of the backbone are those of the classification network. Shapes are static: one
compilation per shape of padded images.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from cone_jax.detection import anchors as anchor_lib
from cone_jax.detection import heads, losses, proposals, roi_pooling, sampling, targets
from cone_jax.detection.backbone import RES5, STEM, Backbone, head_layers
from cone_jax.detection.batch import Detections, GroundTruth, inside
from cone_jax.detection.matching import take
from cone_jax.detection.settings import Settings
from cone_jax.models.layers import Layers

Losses = dict[str, Float[Array, ""]]
# Detections of each image whose masks are computed at once.
MASK_SLOTS = 10
# Sampled objects of each image whose masks are trained at once.
TRAINED_SLOTS = 16


class _Proposed(NamedTuple):
    """The proposal head's output for all anchors, and the proposals made from it."""

    logits: Float[Array, "B N"]
    codes: Float[Array, "B cells 4A"]  # of the A anchors of each cell
    anchors: Float[Array, "N 4"]
    usable: Bool[Array, "B N"]
    boxes: Float[Array, "B P 4"]
    valid: Bool[Array, "B P"]


class Res5Norm(nn.Module):
    """MoCo's additional BatchNorm behind res5."""

    make: Layers

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        return self.make.training(train).batch_norm(name="bn")(x)


class Detector(nn.Module):
    """Mask R-CNN on a ResNet, with a feature pyramid or on C4 with res5 as the head.

    Images [B, H, W, 3] are normalised RGB, padded at the right and at the bottom to sides that
    32 divides; `sizes` [B, 2] are their true heights and widths. The padding counts as 0.

    Reference: He et al., "Mask R-CNN", arXiv 1703.06870.

    >>> detector = Detector(Settings.torchvision(num_classes=2, backbone="resnet18", width=8))
    >>> images, sizes = jnp.zeros((1, 64, 64, 3)), jnp.array([[64, 64]])
    >>> found, _ = jax.eval_shape(
    ...     lambda key: detector.init_with_output(key, images, sizes), jax.random.key(0)
    ... )
    >>> found.boxes.shape, found.masks.shape
    ((1, 100, 4), (1, 100, 28, 28))
    """

    settings: Settings  # all numbers that define it
    # Of a batch, what `__call__` takes beside the images.
    inputs: ClassVar[tuple[str, ...]] = ("size",)

    def setup(self) -> None:
        settings, make = self.settings, head_layers(self.settings)
        per_cell = len(settings.level_sizes[0]) * len(settings.anchor_ratios)
        self.backbone = Backbone(settings)
        if settings.neck == "fpn":
            self.pyramid = heads.Pyramid(settings, make)
            self.box_head = heads.BoxHead(settings, make)
        elif settings.res5_norm:
            self.res5_norm = Res5Norm(make)
        self.proposal_head = heads.ProposalHead(per_cell, make)
        self.box_predictor = heads.BoxPredictor(settings, make)
        if settings.masks:
            self.mask_head = heads.MaskHead(settings, make)

    def __call__(
        self, images: Float[Array, "B H W 3"], sizes: Int[Array, "B 2"], *, train: bool = False
    ) -> Detections:
        """What is in the images, with BatchNorm in evaluation mode; for training see `losses`."""
        if train:
            raise ValueError("a detector is trained through its method `losses`")
        levels = self._levels(images, sizes, train=False)
        found = self._propose(levels, sizes, train=False)
        features = self._box_features(levels, found.boxes, train=False)
        logits, codes = self._predict(features, found.boxes.shape[:2])
        boxes, scores, classes, valid = jax.vmap(
            functools.partial(proposals.detect, settings=self.settings)
        )(logits, codes, found.boxes, found.valid, sizes)
        if self.settings.masks:
            masks = self._masks_of(levels, boxes, classes, valid)
        else:
            masks = jnp.zeros((*classes.shape, 0, 0))
        return Detections(boxes, scores, classes, valid, masks)

    def losses(
        self,
        images: Float[Array, "B H W 3"],
        sizes: Int[Array, "B 2"],
        truth: GroundTruth,
        key: PRNGKeyArray,
        *,
        train: bool = True,
    ) -> Losses:
        """The five losses; their sum is to be minimised. `key` draws the samples.

        With `train` False, BatchNorm uses its running statistics, as for the losses of a
        validation set.
        """
        rpn_key, roi_key = jax.random.split(key)
        levels = self._levels(images, sizes, train=train)
        found = self._propose(levels, sizes, train=True)
        result = self._proposal_losses(found, truth, rpn_key)
        keys = jax.random.split(roi_key, images.shape[0])
        wanted = jax.vmap(functools.partial(targets.proposal_targets, settings=self.settings))(
            keys, found.boxes, found.valid, truth
        )
        features = self._box_features(levels, wanted.boxes, train=train)
        result |= self._box_losses(features, wanted)
        if self.settings.masks:
            result["mask"] = self._mask_loss(levels, features, wanted, truth, train=train)
        return result

    def batch_losses(
        self,
        images: Float[Array, "B H W 3"],
        batch: Mapping[str, jax.Array],
        key: PRNGKeyArray,
        *,
        train: bool = True,
    ) -> Losses:
        """`losses` of a batch as the trainer has it: ``size`` and the ground truth by name."""
        truth = GroundTruth.from_batch(batch)
        return self.losses(images, batch["size"], truth, key, train=train)

    def _levels(self, images: jax.Array, sizes: jax.Array, *, train: bool) -> list[jax.Array]:
        """The feature maps that have anchors."""
        images = jnp.where(inside(images.shape[1:3], sizes)[..., None], images, 0.0)
        if self.settings.neck == "c4":
            return self.backbone(images, train=train, stages=range(STEM, RES5))[-1:]
        stages = self.backbone(images, train=train)
        return self.pyramid(stages[1:], train=train)

    def _propose(self, levels: list[jax.Array], sizes: jax.Array, *, train: bool) -> _Proposed:
        settings = self.settings
        grids = [(level.shape[1], level.shape[2]) for level in levels]
        finest = settings.strides[0]
        image = (grids[0][0] * finest, grids[0][1] * finest)
        per_level = anchor_lib.pyramid_anchors(
            image,
            grids,
            settings.strides,
            settings.level_sizes,
            settings.anchor_ratios,
            style=settings.anchor_style,
        )
        logits, codes = zip(*self.proposal_head(levels), strict=True)
        usable = [self._usable(level, sizes) for level in per_level]
        boxes, valid = jax.vmap(
            lambda logits, codes, size, usable: proposals.propose(
                logits, codes, per_level, size, settings=settings, train=train, usable=usable
            )
        )(logits, codes, sizes, usable)
        return _Proposed(
            jnp.concatenate(logits, axis=1),
            _by_cell(codes, len(settings.level_sizes[0]) * len(settings.anchor_ratios)),
            jnp.asarray(np.concatenate(per_level)),
            jnp.concatenate(usable, axis=1),
            boxes,
            valid,
        )

    def _usable(self, anchors: np.ndarray, sizes: jax.Array) -> jax.Array:
        """[B, N]: all anchors, or those centred in the image proper."""
        if self.settings.padding_anchors:
            return jnp.ones((sizes.shape[0], len(anchors)), bool)
        centre = jnp.asarray((anchors[:, 1::-1] + anchors[:, 3:1:-1]) / 2)  # y, x
        return jnp.all(centre[None] < sizes[:, None].astype(jnp.float32), axis=-1)

    def _proposal_losses(self, found: _Proposed, truth: GroundTruth, key: PRNGKeyArray) -> Losses:
        settings = self.settings
        keys = jax.random.split(key, found.logits.shape[0])
        wanted = jax.vmap(
            lambda key, usable, truth: targets.anchor_targets(
                key, found.anchors, usable, truth, settings=settings
            )
        )(keys, found.usable, truth)
        index, valid, is_object = wanted.samples
        total = jnp.sum(valid) if settings.rpn_loss_over == "sampled" else jnp.array(valid.size)
        logits, codes = take(found.logits, index), _codes_of(found.codes, index)
        beta = settings.smooth_l1_beta
        return {
            "rpn_objectness": losses.objectness(logits, is_object, valid, total=total),
            "rpn_box": losses.box_codes(codes, wanted.codes, is_object, beta=beta, total=total),
        }

    def _box_losses(self, features: jax.Array, wanted: targets.ProposalTargets) -> Losses:
        logits, codes = self._predict(features, wanted.classes.shape)
        own = jnp.take_along_axis(codes, wanted.classes[..., None, None], axis=2)[:, :, 0]
        samples, beta = wanted.samples, self.settings.smooth_l1_beta
        total = jnp.sum(samples.valid)
        return {
            "classification": losses.classification(logits, wanted.classes, samples.valid),
            "box": losses.box_codes(own, wanted.codes, samples.is_object, beta=beta, total=total),
        }

    def _mask_loss(
        self,
        levels: list[jax.Array],
        features: jax.Array,
        wanted: targets.ProposalTargets,
        truth: GroundTruth,
        *,
        train: bool,
    ) -> Float[Array, ""]:
        slots, valid = jax.vmap(
            lambda samples: sampling.object_slots(samples, self.settings.mask_slots)
        )(wanted.samples)
        boxes, classes = take(wanted.boxes, slots), take(wanted.classes, slots)
        if self.settings.neck == "c4":
            regions = features.reshape(*wanted.classes.shape, *features.shape[1:])
            pooled = _flat(take(regions, slots))
            logits = self.mask_head(pooled, train=train)
            logits = logits.reshape(*slots.shape, *logits.shape[1:])
        else:
            logits = self._mask_logits_of_objects(levels, boxes, valid, train=train)
        cropped = jax.vmap(
            functools.partial(
                targets.mask_targets, settings=self.settings, resolution=logits.shape[2]
            )
        )(boxes, take(wanted.object_index, slots), truth)
        return losses.mask(logits, classes, cropped, valid)

    def _mask_logits_of_objects(
        self, levels: list[jax.Array], boxes: jax.Array, valid: jax.Array, *, train: bool
    ) -> Float[Array, "B P M M K"]:
        """Mask logits of sampled objects; where BatchNorm allows, 0 for places without one.

        Objects fill the first places, often few of them, and the head is most of a step's work. So
        it looks at `TRAINED_SLOTS` of every image at a time, where there is an object at all.
        """
        places = boxes.shape[1]
        if self.settings.head_norm == "batch" or places <= TRAINED_SLOTS:
            return self._mask_logits(levels, boxes, train=train)
        missing = -places % TRAINED_SLOTS

        def chunks(x: jax.Array) -> jax.Array:
            x = jnp.pad(x, ((0, 0), (0, missing), *[(0, 0)] * (x.ndim - 2)))
            return jnp.moveaxis(x.reshape(x.shape[0], -1, TRAINED_SLOTS, *x.shape[2:]), 1, 0)

        def some(
            detector: Detector, carried: tuple[()], chunk: tuple[jax.Array, jax.Array]
        ) -> tuple[tuple[()], jax.Array]:
            def compute(inner: Detector) -> jax.Array:
                return inner._mask_logits(levels, chunk[0], train=train)

            def skip(inner: Detector) -> jax.Array:
                side, classes = inner.settings.mask_side, inner.settings.num_classes + 1
                shape = (*chunk[1].shape, side, side, classes)
                return jnp.zeros(shape, inner.settings.compute_dtype)

            return carried, nn.cond(jnp.any(chunk[1]), compute, skip, detector)

        scan = nn.scan(some, variable_broadcast=("params", "batch_stats"), split_rngs={})
        _, logits = scan(self, (), (chunks(boxes), chunks(valid)))
        logits = jnp.moveaxis(logits, 0, 1)
        return logits.reshape(boxes.shape[0], -1, *logits.shape[3:])[:, :places]

    def _mask_logits(self, levels: list[jax.Array], boxes: jax.Array, *, train: bool) -> jax.Array:
        pooled = self._pool(levels, boxes, self.settings.mask_resolution)
        logits = self.mask_head(pooled, train=train)
        return logits.reshape(*boxes.shape[:2], *logits.shape[1:])

    def _masks_of(
        self, levels: list[jax.Array], boxes: jax.Array, classes: jax.Array, valid: jax.Array
    ) -> Float[Array, "B D M M"]:
        """Masks of the detected classes, 0 where nothing was found.

        The head is most of the work, and most images fill few of their places. Detections come
        best first, so a loop over `MASK_SLOTS` places of every image at a time ends with the last
        detection of the fullest image.
        """
        slots = min(MASK_SLOTS, classes.shape[1])
        if self.is_initializing():
            return self._some_masks(levels, boxes, classes)
        side = self.settings.mask_side
        last = jnp.max(jnp.sum(valid, axis=1))

        def unfinished(_: Detector, state: tuple[jax.Array, jax.Array]) -> Any:
            return state[0] < last

        def some(
            detector: Detector, state: tuple[jax.Array, jax.Array]
        ) -> tuple[jax.Array, jax.Array]:
            start, masks = state
            # The last places, where fewer are left, are computed again.
            place = jnp.minimum(start, classes.shape[1] - slots)
            these = (lax.dynamic_slice_in_dim(x, place, slots, axis=1) for x in (boxes, classes))
            found = detector._some_masks(levels, *these)
            return start + slots, lax.dynamic_update_slice_in_dim(masks, found, place, axis=1)

        first = jnp.zeros((), jnp.int32), jnp.zeros((*classes.shape, side, side))
        _, masks = nn.while_loop(unfinished, some, self, first)
        return jnp.where(valid[..., None, None], masks, 0.0)

    def _some_masks(
        self, levels: list[jax.Array], boxes: jax.Array, classes: jax.Array
    ) -> jax.Array:
        if self.settings.neck == "c4":
            logits = self.mask_head(self._box_features(levels, boxes, train=False), train=False)
            logits = logits.reshape(*classes.shape, *logits.shape[1:])
        else:
            logits = self._mask_logits(levels, boxes, train=False)
        return jax.nn.sigmoid(losses.select_class(logits, classes).astype(jnp.float32))

    def _box_features(self, levels: list[jax.Array], boxes: jax.Array, *, train: bool) -> jax.Array:
        """Features of B x N regions, [BN, P, P, C]; those of C4 have gone through res5."""
        pooled = self._pool(levels, boxes, self.settings.box_resolution)
        if self.settings.neck == "c4":
            (pooled,) = self.backbone(pooled, train=train, stages=[RES5])
            if self.settings.res5_norm:
                pooled = self.res5_norm(pooled, train=train)
            return pooled
        return self.box_head(pooled, train=train)

    def _predict(self, features: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
        """Class logits [B, N, K + 1] and codes [B, N, K + 1, 4]."""
        if self.settings.neck == "c4":
            features = jnp.mean(features.astype(jnp.float32), axis=(1, 2))
        logits, codes = self.box_predictor(features)
        return logits.reshape(*shape, -1), codes.reshape(*shape, *codes.shape[1:])

    def _pool(self, levels: list[jax.Array], boxes: jax.Array, resolution: int) -> jax.Array:
        """RoIAlign, [BN, resolution, resolution, C]; P6 has anchors, but no regions."""
        settings = self.settings
        used = levels[:4]
        scales = [1.0 / stride for stride in settings.strides[:4]]
        pooled = jax.vmap(
            lambda maps, each: roi_pooling.multilevel_roi_align(
                maps,
                each,
                spatial_scales=scales,
                output_size=resolution,
                sampling_ratio=settings.sampling_ratio,
                aligned=settings.aligned,
            )
        )(used, boxes)
        return _flat(pooled)


def _by_cell(codes: Sequence[jax.Array], per_cell: int) -> jax.Array:
    """Codes [B, N, 4] of each level -> [B, cells, 4 per_cell], the shape they were computed in.

    On a TPU the gradient of a gather from [B, N, 4] passes over as many rows of 128 numbers.
    """
    return jnp.concatenate([x.reshape(x.shape[0], -1, 4 * per_cell) for x in codes], axis=1)


def _codes_of(codes: jax.Array, index: jax.Array) -> jax.Array:
    """Of codes by cell those [B, S, 4] of the anchors `index` [B, S]."""
    per_cell = codes.shape[-1] // 4
    rows = take(codes, index // per_cell).reshape(*index.shape, per_cell, 4)
    own = jnp.arange(per_cell) == (index % per_cell)[..., None]
    return jnp.sum(jnp.where(own[..., None], rows, 0), axis=-2)


def _flat(x: jax.Array) -> jax.Array:
    """[B, N, ...] -> [BN, ...]"""
    return x.reshape(-1, *x.shape[2:])
