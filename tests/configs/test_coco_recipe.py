"""Mask R-CNN's recipe: every setting of the implementations it names, as rows of a table."""

import pytest

from cone_jax import config as config_lib
from cone_jax.config.run_config import get_field
from cone_jax.errors import UserError
from cone_jax.recipes import coco
from cone_jax.settings import Schedule
from cone_jax.training import optimizers

# Of all four: docs/detection.md and the papers' configs.
COMMON = {
    "batch_size": 16,
    "optimizer.name": "sgd",
    "optimizer.learning_rate": 0.02,
    "optimizer.momentum": 0.9,
    "optimizer.weight_decay": 1e-4,
    "optimizer.decay_scope": "exclude_norms",
    "objective.detection.rpn_low": 0.3,
    "objective.detection.rpn_high": 0.7,
    "objective.detection.rpn_samples": 256,
    "objective.detection.rpn_objects": 0.5,
    "objective.detection.rpn_nms": 0.7,
    "objective.detection.roi_threshold": 0.5,
    "objective.detection.roi_samples": 512,
    "objective.detection.roi_objects": 0.25,
    "objective.detection.box_weights": (10.0, 10.0, 5.0, 5.0),
    "objective.detection.score_threshold": 0.05,
    "objective.detection.detection_nms": 0.5,
    "objective.detection.detections": 100,
    "objective.detection.anchor_sizes": (32.0, 64.0, 128.0, 256.0, 512.0),
    "objective.detection.anchor_ratios": (0.5, 1.0, 2.0),
    "objective.detection.box_features": 1024,
    "objective.detection.pyramid_channels": 256,
    "objective.detection.mask_channels": 256,
    "objective.detection.box_convolutions": 4,
    "objective.detection.mask_resolution": 14,
    "model.name": "resnet50",
    "data.train_transforms": (
        "short_side(640, 800, step=32, longest=1333)",
        "flip",
        "pad(800, 1344)",
    ),
    "data.test_transforms": ("short_side(800, longest=1333)", "pad(800, 1344)"),
}
# neck, backbone's norm, frozen stages, norm of the heads, box head, BatchNorm after res5,
# precise BN, beta, aligned, samples of RoIAlign, anchors, proposals before and after NMS, side of
# the pooled features, convolutions of the mask head
FIELDS = (
    "neck",
    "backbone_norm",
    "freeze_at",
    "head_norm",
    "box_head",
    "res5_norm",
    "precise_bn_batches",
    "smooth_l1_beta",
    "aligned",
    "sampling_ratio",
    "anchor_style",
    "proposals_before_nms",
    "proposals",
    "box_resolution",
    "mask_convolutions",
)
D2, TV, LINEAR = "detectron2", "torchvision", "linear"
FPN, C4 = ((2000, 1000), (1000, 1000), 7, 4), ((12000, 6000), (2000, 1000), 14, 0)
TABLE = {
    "fpn,1x": ("fpn", "batch", 0, "batch", "convolutions", False, 200, 0.0, True, 0, D2, *FPN),
    "c4,1x": ("c4", "batch", 0, "none", LINEAR, True, 200, 0.0, True, 0, D2, *C4),
    "fpn,moco,2x": ("fpn", "batch", 0, "batch", "convolutions", False, 200, 0.0, True, 0, D2, *FPN),
    "fpn,detectron2,1x": ("fpn", "frozen", 2, "none", LINEAR, False, 0, 0.0, True, 0, D2, *FPN),
    "c4,detectron2,2x": ("c4", "frozen", 2, "none", LINEAR, False, 0, 0.0, True, 0, D2, *C4),
    "fpn,torchvision": (
        *("fpn", "frozen", 2, "none", LINEAR, False, 0, 1 / 9, False, 2, TV),
        *((2000, 1000), (2000, 1000), 7, 4),
    ),
}


@pytest.mark.parametrize("options", TABLE)
def test_the_settings_are_the_published_ones(options):
    config = coco.get_config(options)
    config_lib.validate(config)
    for field, expected in COMMON.items():
        assert get_field(config, field) == expected, field
    detection = config.objective.detection
    assert tuple(detection[name] for name in FIELDS) == TABLE[options]


@pytest.mark.parametrize(("options", "times"), [("fpn,1x", 1), ("c4,2x", 2), ("", 1)])
def test_the_rate_falls_where_detectron2s_does(options, times):
    config = coco.get_config(options)
    rate = optimizers.scheduled_rate(
        Schedule.read(config.schedule), 0.02, total_steps=config.steps, steps_per_epoch=7329
    )
    assert config.steps == 90_000 * times
    first, second = (60_000, 80_000) if times == 1 else (120_000, 160_000)
    for step, expected in (
        (0, 0.02 / 1000),
        (1000, 0.02),
        (first - 1, 0.02),
        (first, 0.002),
        (second - 1, 0.002),
        (second, 0.0002),
    ):
        assert float(rate(step)) == pytest.approx(expected, rel=1e-4), step


SMALL = ("own", "own,small", "c4,own,small", "own,torchvision", "tiny", "own,tiny,boxes")


@pytest.mark.parametrize("options", SMALL)
def test_small_variants_are_valid(options):
    config = coco.get_config(options)
    config_lib.validate(config)
    assert config.objective.detection.masks == ("boxes" not in options)
    if "own" in options:
        assert config.objective.detection.backbone_norm == "frozen"


def test_own_pictures_may_be_trained_from_scratch():
    """With `moco` nothing is constant, and BatchNorm has more than two pictures."""
    config = coco.get_config("own,moco,small")
    config_lib.validate(config)
    detection = config.objective.detection
    assert detection.backbone_norm == detection.head_norm == "batch"
    assert detection.freeze_at == 0
    assert (config.batch_size, config.epochs, config.steps) == (8, 60, 0)
    assert 0 < detection.precise_bn_batches < 200


@pytest.mark.parametrize("options", ["fpn,c4", "moco,detectron2", "1x,2x", "1x,own"])
def test_options_that_exclude_each_other_are_refused(options):
    with pytest.raises(UserError, match="exclude each other"):
        coco.get_config(options)


def test_the_recipe_documents_its_options():
    for option in ("fpn", "c4", "1x", "2x", "moco", "detectron2", "torchvision", "boxes", "own"):
        assert option in coco.__doc__
