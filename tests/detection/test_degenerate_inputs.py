"""Whatever the ground truth, losses and gradients are finite; and the settings check themselves."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cone_jax import detection
from cone_jax.detection.settings import Settings

SIDE, PLACES, IMAGES = 64, 100, 2
TINY = {
    "num_classes": 3,
    "backbone": "resnet18",
    "width": 8,
    "pyramid_channels": 8,
    "box_features": 8,
    "mask_channels": 8,
    "rpn_samples": 32,
    "roi_samples": 16,
    "proposals_before_nms": (40, 40),
    "proposals": (20, 20),
    "detections": 10,
    "box_convolutions": 1,
    "mask_convolutions": 1,
}
PRESETS = {
    "detectron2-fpn": Settings.detectron2("fpn", **TINY),
    "moco-fpn": Settings.moco("fpn", **TINY, crowd_overlap=0.7),
    "moco-c4": Settings.moco("c4", **{**TINY, "dtype": "bfloat16"}),
}


@functools.cache
def compiled(name):
    """Variables, and a program for losses, gradients and new statistics."""
    detector = detection.Detector(PRESETS[name])
    image, size = jnp.zeros((1, SIDE, SIDE, 3)), jnp.array([[SIDE, SIDE]])
    shapes = jax.eval_shape(detector.init, jax.random.key(0), image, size)
    rng = np.random.default_rng(0)
    variables = jax.tree.map(lambda x: rng.normal(scale=0.2, size=x.shape).astype("f4"), shapes)
    variables["batch_stats"] = jax.tree.map(np.ones_like, variables["batch_stats"])

    @jax.jit
    def step(images, sizes, truth):
        def total(params):
            losses, changed = detector.apply(
                {**variables, "params": params},
                images,
                sizes,
                truth,
                jax.random.key(0),
                method="losses",
                mutable=["batch_stats"],
            )
            return sum(losses.values()), (losses, changed)

        gradients, (losses, changed) = jax.grad(total, has_aux=True)(variables["params"])
        finite = [jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves((gradients, changed))]
        return losses, jnp.all(jnp.stack(finite)), gradients

    return detector, variables, step


def truth_of(boxes, crowd):
    """Both images have the same objects, the second one in reverse."""
    number = len(boxes)
    rng = np.random.default_rng(number)
    truth = detection.GroundTruth(
        boxes=np.zeros((IMAGES, PLACES, 4), np.float32),
        classes=np.zeros((IMAGES, PLACES), np.int32),
        valid=np.zeros((IMAGES, PLACES), bool),
        crowd=np.zeros((IMAGES, PLACES), bool),
        masks=rng.integers(0, 256, (IMAGES, PLACES, 14, 14), np.uint8),
        mask_frames=np.zeros((IMAGES, PLACES, 4), np.float32),
    )
    for image, order in enumerate((1, -1)):
        if number:
            truth.boxes[image, :number] = np.array(boxes, np.float32)[::order]
            truth.crowd[image, :number] = np.array(crowd)[::order]
        truth.classes[image, :number] = 1 + np.arange(number) % 3
        truth.valid[image, :number] = True
        truth.mask_frames[image, :number] = truth.boxes[image, :number]
    return truth


def losses_are_finite(name, boxes, crowd=None, scale=1.0):
    _, _, step = compiled(name)
    images = scale * np.random.default_rng(1).normal(size=(IMAGES, SIDE, SIDE, 3))
    sizes = np.array([[SIDE, SIDE], [40, 50]], np.int32)
    truth = truth_of(boxes, crowd if crowd is not None else [False] * len(boxes))
    losses, finite, _ = step(images.astype(np.float32), sizes, truth)
    assert all(np.isfinite(value) for value in losses.values()), losses
    assert all(value >= 0 for value in losses.values())
    assert finite
    return {name: float(value) for name, value in losses.items()}


# Most coordinates lie in the picture, some far outside; a box may be turned inside out.
coordinate = st.one_of(st.integers(0, SIDE).map(float), st.floats(-500, 500, width=32))
any_box = st.tuples(*[coordinate] * 4)
one_pixel = st.tuples(st.integers(0, SIDE - 1), st.integers(0, SIDE - 1)).map(
    lambda at: (at[0], at[1], at[0] + 1, at[1] + 1)
)
objects = st.lists(st.tuples(st.one_of(any_box, one_pixel), st.booleans()), max_size=12)


@pytest.mark.parametrize("name", PRESETS)
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=objects)
def test_any_ground_truth_gives_finite_losses_and_gradients(name, drawn):
    losses_are_finite(name, [box for box, _ in drawn], [crowd for _, crowd in drawn])


@pytest.mark.parametrize("name", PRESETS)
def test_without_objects_everything_is_background(name):
    losses = losses_are_finite(name, [])
    assert losses["rpn_objectness"] > 0
    assert losses["classification"] > 0
    assert losses["rpn_box"] == losses["box"] == losses["mask"] == 0
    crowds = losses_are_finite(name, [(0, 0, 30, 30)] * 3, [True] * 3)
    assert crowds["box"] == crowds["mask"] == 0, "no box is matched with a crowd"


@pytest.mark.parametrize("name", PRESETS)
def test_100_objects_and_an_empty_picture_are_no_exception(name):
    corner = np.random.default_rng(2).uniform(0, 50, size=(100, 2))
    boxes = np.concatenate([corner, corner + 10], axis=1)
    losses = losses_are_finite(name, boxes)
    assert all(value > 0 for value in losses.values())
    losses_are_finite(name, boxes, scale=0.0)


@pytest.mark.parametrize("name", PRESETS)
def test_objects_outside_leave_all_anchors_negative(name):
    losses = losses_are_finite(name, [(-400, -400, -380, -390), (900, 900, 950, 930)])
    assert losses["rpn_box"] == 0
    assert losses["rpn_objectness"] > 0


@pytest.mark.parametrize("name", PRESETS)
def test_one_pixel_has_an_anchor_of_its_own(name):
    losses = losses_are_finite(name, [(31, 17, 32, 18)])
    assert all(value > 0 for value in losses.values())


@pytest.mark.parametrize("name", PRESETS)
def test_padding_of_the_ground_truth_changes_nothing(name):
    _, _, step = compiled(name)
    images = np.random.default_rng(3).normal(size=(IMAGES, SIDE, SIDE, 3)).astype(np.float32)
    sizes = np.full((IMAGES, 2), SIDE, np.int32)
    truth = truth_of([(5, 5, 30, 40), (20, 10, 60, 50)], [False, False])
    garbage = truth.replace(
        boxes=np.where(truth.valid[..., None], truth.boxes, [0, 0, 33, 33]).astype(np.float32),
        classes=np.where(truth.valid, truth.classes, 2),
        crowd=~truth.valid,
    )
    for value, expected in zip(
        jax.tree.leaves(step(images, sizes, garbage)),
        jax.tree.leaves(step(images, sizes, truth)),
        strict=True,
    ):
        np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("name", PRESETS)
def test_detections_lie_in_the_picture_best_first(name):
    detector, variables, _ = compiled(name)
    images = np.random.default_rng(4).normal(size=(IMAGES, SIDE, SIDE, 3)).astype(np.float32)
    sizes = np.array([[SIDE, SIDE], [40, 50]], np.int32)
    found = jax.jit(detector.apply)(variables, images, sizes)
    resolution = {"fpn": 28, "c4": 14}[PRESETS[name].neck]
    assert found.masks.shape == (IMAGES, 10, resolution, resolution)
    assert np.all(np.isfinite(found.masks))
    for image, (height, width) in enumerate(sizes):
        valid = np.asarray(found.valid[image])
        assert valid.any()
        boxes, scores = np.asarray(found.boxes[image])[valid], found.scores[image][valid]
        assert np.all(boxes[:, :2] >= 0)
        assert np.all(boxes[:, 2:] <= [width, height])
        assert np.all(np.diff(scores) <= 0)
        assert np.all(scores > 0.05)
        assert set(np.asarray(found.classes[image])[valid]) <= {1, 2, 3}
        assert not np.any(found.classes[image][~valid])


def test_the_backbone_has_gradients_except_where_it_is_frozen():
    _, _, step = compiled("detectron2-fpn")
    images = np.random.default_rng(5).normal(size=(IMAGES, SIDE, SIDE, 3)).astype(np.float32)
    truth = truth_of([(5, 5, 30, 40), (20, 10, 60, 50)], [False, False])
    _, _, gradients = step(images, np.full((IMAGES, 2), SIDE, np.int32), truth)
    flat = jax.tree_util.tree_leaves_with_path(gradients)
    frozen = 0
    for path, value in flat:
        keys = [entry.key for entry in path]
        if detection.is_frozen(PRESETS["detectron2-fpn"], keys):
            frozen += 1
            assert not np.any(value), keys
        elif keys[0] == "backbone":
            assert np.any(value), keys
    assert 0 < frozen < len(flat)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("backbone", "vgg16", "did you mean|Valid: .*resnet18"),
        ("neck", "bifpn", "Valid: c4, fpn"),
        ("dtype", "float16", "float32 or bfloat16"),
        ("num_classes", 0, "at least 1"),
        ("rpn_nms", 1.5, "between 0 and 1"),
        ("rpn_low", 0.8, "at most rpn_high 0.7"),
        ("proposals", (1000, 0), "at least 1"),
        ("proposals", (1000,), "two numbers"),
        ("anchor_sizes", (32.0,), "one size per level"),
        ("res5_norm", True, "False with a feature pyramid"),
        ("freeze_at", 6, "between 0 and 5"),
    ],
)
def test_settings_refuse_what_cannot_be(field, value, said):
    with pytest.raises(ValueError, match=rf"(detection\.{field}|model\.\w+) .*{said}"):
        dataclasses.replace(Settings(), **{field: value})


def test_presets_are_the_published_ones():
    """Detectron2's model zoo, MoCo's and InfoMin's configs, torchvision's defaults."""
    expected = {
        "detectron2-fpn": ("frozen", 2, (2000, 1000), (1000, 1000), 0.0, True, 0, "linear"),
        "detectron2-c4": ("frozen", 2, (12000, 6000), (2000, 1000), 0.0, True, 0, "linear"),
        "moco-fpn": ("batch", 0, (2000, 1000), (1000, 1000), 0.0, True, 0, "convolutions"),
        "moco-c4": ("batch", 0, (12000, 6000), (2000, 1000), 0.0, True, 0, "linear"),
        "torchvision-fpn": ("frozen", 2, (2000, 1000), (2000, 1000), 1 / 9, False, 2, "linear"),
    }
    for name, row in expected.items():
        preset, neck = name.split("-")
        chosen = getattr(Settings, preset)(neck)
        assert row == (
            chosen.backbone_norm,
            chosen.freeze_at,
            chosen.proposals_before_nms,
            chosen.proposals,
            chosen.smooth_l1_beta,
            chosen.aligned,
            chosen.sampling_ratio,
            chosen.box_head,
        ), name
        assert chosen.res5_norm == (name == "moco-c4")
        assert chosen.head_norm == ("batch" if name == "moco-fpn" else "none")
