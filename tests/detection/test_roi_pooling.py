"""RoIAlign is that of the implementations everybody trains with."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cone_jax import detection
from cone_jax.detection import roi_pooling
from tests.detection import onnx_oracle, torchvision_oracle

pytestmark = pytest.mark.optimised
SCALE = {"spatial_scale": 0.5, "output_size": 4}
FORMS = [(ratio, aligned) for ratio in (0, 1, 2, 3) for aligned in (False, True)]
torchvision = torchvision_oracle.torchvision


STATIC = ("spatial_scale", "output_size", "sampling_ratio", "aligned")
pool = jax.jit(detection.roi_align, static_argnames=STATIC)


def features(height=13, width=17, channels=3, seed=0):
    return np.random.default_rng(seed).normal(size=(height, width, channels)).astype(np.float32)


def boxes_inside(number, height, width, seed=0):
    """Boxes within a picture, from less than a pixel to all of it."""
    rng = np.random.default_rng(seed)
    corners = np.sort(rng.uniform(size=(number, 2, 2)), axis=1) * [width, height]
    boxes = corners.reshape(number, 4).astype(np.float32)
    boxes[0] = [0, 0, width, height]
    boxes[1] = [3, 3, 3.3, 3.2]
    boxes[2] = [4, 4, 8, 12]
    return boxes


def torch_roi_align(maps, boxes, **options):
    with_image = torch.cat([torch.zeros(len(boxes), 1), torch.from_numpy(boxes)], dim=1)
    return torchvision.ops.roi_align(maps, with_image, **options)


@pytest.mark.parametrize(("sampling_ratio", "aligned"), FORMS)
def test_values_and_gradient_are_torchvisions(sampling_ratio, aligned):
    maps, boxes = features(), boxes_inside(40, 26, 34)
    options = {**SCALE, "sampling_ratio": sampling_ratio, "aligned": aligned}
    theirs_in = torch.from_numpy(maps).permute(2, 0, 1)[None].requires_grad_()
    theirs = torch_roi_align(theirs_in, boxes, **options)
    weights = np.random.default_rng(1).normal(size=(40, 4, 4, 3)).astype(np.float32)
    (theirs * torch.from_numpy(weights).permute(0, 3, 1, 2)).sum().backward()

    np.testing.assert_allclose(
        pool(maps, boxes, **options), theirs.detach().permute(0, 2, 3, 1).numpy(), atol=1e-5
    )
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(pool(x, boxes, **options) * weights)))(maps)
    np.testing.assert_allclose(gradient, theirs_in.grad[0].permute(1, 2, 0).numpy(), atol=1e-5)


@pytest.mark.parametrize("aligned", [False, True])
def test_on_a_wide_map_positions_are_rounded_as_by_torchvision(aligned):
    """The finest level of a picture of COCO's: the last bit of a position is 3e-5 of a cell."""
    maps, boxes = features(200, 336, 2), boxes_inside(40, 800, 1344)
    options = {"spatial_scale": 0.25, "output_size": 7, "sampling_ratio": 2, "aligned": aligned}
    theirs = torch_roi_align(torch.from_numpy(maps).permute(2, 0, 1)[None], boxes, **options)
    ours = pool(maps, boxes, **options)
    np.testing.assert_allclose(ours, theirs.permute(0, 2, 3, 1).numpy(), atol=2e-6)


@pytest.mark.parametrize(("sampling_ratio", "aligned"), FORMS)
def test_boxes_beyond_the_map_are_pooled_as_by_the_compiled_kernel(sampling_ratio, aligned):
    """Samples up to one cell outside take the border's value, those further out are 0."""
    maps = features()
    rng = np.random.default_rng(2)
    low = rng.uniform(-20, 40, size=(200, 2))
    boxes = np.concatenate([low, low + rng.uniform(0.1, 60, size=(200, 2))], axis=1)
    # Whole cells: samples that lie exactly on the two borders of the rule.
    boxes[:100] = np.round(boxes[:100])
    boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2] + 0.1)
    options = {**SCALE, "sampling_ratio": sampling_ratio, "aligned": aligned}
    theirs = onnx_oracle.roi_align(maps, boxes, **options)
    ours = pool(maps, boxes.astype(np.float32), **options)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert (theirs == 0).any()


@pytest.mark.parametrize("sampling_ratio", [0, 2])
def test_levels_of_a_pyramid_are_those_of_torchvision(sampling_ratio):
    sides = (64, 32, 16, 8)
    pyramid = [features(side, side, 2, seed=side) for side in sides]
    boxes = np.concatenate([boxes_inside(60, 256, 256), [[0, 0, 112, 112], [0, 0, 224, 224]]])
    boxes = boxes.astype(np.float32)
    pooler = torchvision.ops.MultiScaleRoIAlign(["0", "1", "2", "3"], 3, sampling_ratio)
    maps = {str(i): torch.from_numpy(x).permute(2, 0, 1)[None] for i, x in enumerate(pyramid)}
    theirs = pooler(maps, [torch.from_numpy(boxes)], [(256, 256)]).permute(0, 2, 3, 1)
    align = functools.partial(
        detection.multilevel_roi_align,
        spatial_scales=[1 / 4, 1 / 8, 1 / 16, 1 / 32],
        output_size=3,
        sampling_ratio=sampling_ratio,
        aligned=False,
    )
    ours = jax.jit(align)(pyramid, boxes)
    np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-5)
    levels = roi_pooling.box_levels(jnp.asarray(boxes), count=4)
    assert set(levels.tolist()) == {0, 1, 2}


@pytest.mark.parametrize("aligned", [False, True])
def test_masks_are_cropped_as_by_torchvision(aligned):
    rng = np.random.default_rng(3)
    masks = (rng.uniform(size=(5, 40, 50)) > 0.5).astype(np.float32)
    boxes, which = boxes_inside(30, 40, 50), rng.integers(0, 5, 30)
    if aligned:
        rois = torch.from_numpy(np.concatenate([which[:, None], boxes], axis=1).astype(np.float32))
        maps = torch.from_numpy(masks)[:, None]
        theirs = torchvision.ops.roi_align(maps, rois, (7, 7), 1.0, aligned=True)[:, 0]
    else:
        theirs = torchvision.models.detection.roi_heads.project_masks_on_boxes(
            torch.from_numpy(masks), torch.from_numpy(boxes), torch.from_numpy(which), 7
        )
    frames = np.tile(np.array([0, 0, 50, 40], np.float32), (30, 1))
    crop = functools.partial(detection.crop_masks, output_size=7, aligned=aligned)
    ours = jax.jit(crop)(masks[which], frames, boxes)
    np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-5)


def test_bfloat16_features_are_pooled_in_their_own_type():
    maps, boxes = jnp.asarray(features()), jnp.asarray(boxes_inside(5, 26, 34))
    exact = pool(maps, boxes, **SCALE)
    rough = pool(maps.astype(jnp.bfloat16), boxes, **SCALE)
    assert rough.dtype == jnp.bfloat16
    np.testing.assert_allclose(rough.astype(jnp.float32), exact, atol=0.05)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float64])
def test_maps_of_any_type_are_pooled_in_floating_point(dtype):
    """Weights cut off to whole numbers would be 0."""
    maps, boxes = (10 * np.abs(features())).astype(dtype), boxes_inside(5, 26, 34)
    pooled = detection.roi_align(maps, boxes, **SCALE)
    assert pooled.dtype == jnp.float32
    np.testing.assert_allclose(pooled, pool(maps.astype(np.float32), boxes, **SCALE), atol=1e-5)


def test_of_no_boxes_nothing_is_pooled():
    maps, boxes = features(), np.zeros((0, 4), np.float32)
    assert pool(maps, boxes, **SCALE).shape == (0, 4, 4, 3)
    gradient = jax.grad(lambda x: jnp.sum(pool(x, boxes, **SCALE)))(maps)
    np.testing.assert_array_equal(gradient, np.zeros_like(maps))


def test_a_batch_is_pooled_image_by_image_and_boxes_have_no_gradient():
    maps = np.stack([features(seed=seed) for seed in (5, 6)])
    boxes = np.stack([boxes_inside(40, 26, 34, seed=seed) for seed in (5, 6)])
    align = functools.partial(detection.roi_align, **SCALE)
    for ours, image, own in zip(jax.vmap(align)(maps, boxes), maps, boxes, strict=True):
        np.testing.assert_allclose(ours, pool(image, own, **SCALE), atol=1e-5)
    gradient = jax.grad(lambda x: jnp.sum(jnp.square(align(maps[0], x))))(boxes[0])
    assert not np.any(gradient)


def test_arrays_of_the_wrong_shape_are_refused():
    maps, boxes = features(), boxes_inside(5, 26, 34)
    for arrays, said in (
        ((maps[None], boxes), r"features \(1, 13, 17, 3\) must be \[H, W, C\].*jax.vmap"),
        ((maps, boxes[:, :3]), r"boxes \(5, 3\) must be \[N, 4\]"),
    ):
        with pytest.raises(ValueError, match=said):
            detection.roi_align(*arrays, **SCALE)


coordinates = st.floats(-1e4, 1e4, width=32)


@settings(max_examples=50, deadline=None)
@given(st.lists(coordinates, min_size=4, max_size=4), st.booleans(), st.sampled_from([0, 2]))
def test_the_weights_of_any_box_are_finite_and_average(box, aligned, sampling_ratio):
    """Boxes without area, inside out, far outside: values stay within those of the map."""
    maps = np.ones((5, 6, 1), np.float32)
    pooled = pool(
        maps,
        np.array([box], np.float32),
        spatial_scale=0.25,
        output_size=2,
        sampling_ratio=sampling_ratio,
        aligned=aligned,
    )
    assert np.all(np.isfinite(pooled))
    assert np.all((pooled >= 0) & (pooled <= 1 + 1e-4))
