"""Boxes, anchors, matches and samples are those of torchvision."""

import functools

import jax
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cone_jax.detection import anchors, boxes, matching, sampling
from tests.detection import torchvision_oracle

pytestmark = pytest.mark.optimised
torchvision = torchvision_oracle.torchvision
models = torchvision.models.detection
WEIGHTS = [(1.0, 1.0, 1.0, 1.0), (10.0, 10.0, 5.0, 5.0)]


def random_boxes(number, seed, side=100.0):
    rng = np.random.default_rng(seed)
    low = rng.uniform(0, side, size=(number, 2))
    sides = rng.uniform(1, side / 2, size=(number, 2))
    return np.concatenate([low, low + sides], axis=1).astype(np.float32)


def tensors(*arrays):
    return [torch.from_numpy(np.asarray(array)) for array in arrays]


def test_overlaps_are_torchvisions():
    first, second = random_boxes(20, 0), random_boxes(30, 1)
    theirs = torchvision.ops.box_iou(*tensors(first, second)).numpy()
    np.testing.assert_allclose(jax.jit(boxes.iou)(first, second), theirs, atol=1e-6)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_codes_and_decoded_boxes_are_torchvisions(weights):
    coder = models._utils.BoxCoder(weights)
    truth, references = random_boxes(50, 2), random_boxes(50, 3)
    codes = jax.jit(functools.partial(boxes.encode, weights=weights))(truth, references)
    theirs = coder.encode_single(*tensors(truth, references)).numpy()
    np.testing.assert_allclose(codes, theirs, atol=1e-5, rtol=1e-5)
    # Some so large that only the limit keeps them from overflowing.
    drawn = np.random.default_rng(4).normal(scale=20, size=(50, 4)).astype(np.float32)
    decoded = jax.jit(functools.partial(boxes.decode, weights=weights))(drawn, references)
    theirs = coder.decode_single(*tensors(drawn, references)).numpy()
    np.testing.assert_allclose(decoded, theirs, rtol=1e-5, atol=1e-5)


def test_decoding_inverts_encoding():
    truth, references = random_boxes(50, 5), random_boxes(50, 6)
    again = boxes.decode(boxes.encode(truth, references), references)
    np.testing.assert_allclose(again, truth, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("image", [(128, 160), (800, 1344), (224, 416)])
def test_anchors_of_a_pyramid_are_torchvisions(image):
    """Including the stride it takes for P6 where P5 has an odd side: 800 // 13, not 64."""
    sizes = ((32,), (64,), (128,), (256,), (512,))
    grids = [(image[0] // s, image[1] // s) for s in (4, 8, 16, 32)]
    grids.append(((grids[3][0] + 1) // 2, (grids[3][1] + 1) // 2))
    generator = models.anchor_utils.AnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * 5)
    pictures = models.image_list.ImageList(torch.zeros(1, 3, *image), [image])
    theirs = generator(pictures, [torch.zeros(1, 1, *grid) for grid in grids])[0]
    ours = anchors.pyramid_anchors(
        image, grids, (4, 8, 16, 32, 64), sizes, (0.5, 1.0, 2.0), style="torchvision"
    )
    np.testing.assert_array_equal(np.concatenate(ours), theirs.numpy())


def test_anchors_of_one_level_with_all_sizes_are_torchvisions_in_its_style():
    sizes, ratios = (32, 64, 128, 256, 512), (0.5, 1.0, 2.0)
    generator = models.anchor_utils.AnchorGenerator((sizes,), (ratios,))
    theirs = generator.generate_anchors(sizes, ratios).numpy()
    ours = anchors.cell_anchors(sizes, ratios, style="torchvision")
    np.testing.assert_array_equal(ours, theirs)


def test_anchors_in_detectron2s_style_have_exact_areas_size_by_size():
    """Its documentation: ratios are heights by widths, areas squares of the sizes."""
    cell = anchors.cell_anchors((32, 64), (0.5, 1.0, 2.0))
    sides = cell[:, 2:] - cell[:, :2]
    np.testing.assert_allclose(sides.prod(axis=1), [32**2] * 3 + [64**2] * 3, rtol=1e-5)
    np.testing.assert_allclose(sides[:, 1] / sides[:, 0], [0.5, 1, 2] * 2, rtol=1e-5)
    np.testing.assert_allclose(cell[:, :2], -cell[:, 2:])


@pytest.mark.parametrize(
    ("low", "high", "low_quality"), [(0.3, 0.7, True), (0.3, 0.7, False), (0.5, 0.5, False)]
)
def test_matches_are_torchvisions(low, high, low_quality):
    candidates, objects = random_boxes(400, 7), random_boxes(9, 8)
    candidates[:3] = objects[0]  # several best ones
    padded = np.concatenate([objects, random_boxes(4, 9)])
    valid = np.arange(13) < 9
    find = functools.partial(matching.match, low=low, high=high, low_quality=low_quality)
    nearest, label = (np.asarray(x) for x in jax.jit(find)(candidates, padded, valid))
    matcher = models._utils.Matcher(high, low, low_quality)
    theirs = matcher(torchvision.ops.box_iou(*tensors(objects, candidates))).numpy()
    expected = np.select([theirs >= 0, theirs == -1], [1, 0], default=-1)
    np.testing.assert_array_equal(label, expected)
    np.testing.assert_array_equal(nearest[label == 1], theirs[label == 1])
    assert {-1, 0, 1} == set(label.tolist()) | ({-1} if low == high else set())


def test_an_object_that_no_box_touches_matches_none():
    far = np.array([[900, 900, 910, 910]], np.float32)
    matches = matching.match(
        random_boxes(20, 10), far, np.array([True]), low=0.3, high=0.7, low_quality=True
    )
    assert not np.any(matches.label)


def test_background_in_a_crowd_is_ignored():
    inside, half, outside = [10, 10, 20, 20], [0, 10, 20, 20], [50, 50, 60, 60]
    candidates = np.array([inside, half, outside], np.float32)
    crowd = np.array([[10, 0, 40, 40]], np.float32)
    background = matching.Matches(np.zeros(3, np.int32), np.zeros(3, np.int32))
    label = matching.ignore_crowds(
        background, candidates, crowd, np.array([True]), overlap=0.7
    ).label
    assert label.tolist() == [-1, 0, 0]


labels = st.lists(st.sampled_from([-1, 0, 1]), min_size=20, max_size=20)
draw = jax.jit(sampling.sample, static_argnames=("count", "objects"))


@settings(max_examples=60, deadline=None)
@given(labels, st.sampled_from([(8, 4), (8, 8), (30, 15)]), st.integers(0, 5))
def test_samples_are_as_many_as_torchvision_takes(drawn, sizes, seed):
    count, objects = sizes
    label = np.array(drawn)
    chosen, valid, is_object = (
        np.asarray(x) for x in draw(jax.random.key(seed), label, count=count, objects=objects)
    )
    sampler = models._utils.BalancedPositiveNegativeSampler(count, objects / count)
    positive, negative = (part[0].sum().item() for part in sampler([torch.from_numpy(label)]))
    assert is_object.sum() == positive
    assert (valid & ~is_object).sum() == negative
    assert len(set(chosen[valid])) == valid.sum(), "without replacement"
    assert np.all(label[chosen[is_object]] == 1)
    assert np.all(label[chosen[valid & ~is_object]] == 0)
    assert np.all(is_object[:positive]), "objects come first"
    if valid.any():
        assert set(chosen[~valid]) <= set(chosen[valid]), "padding repeats samples"


def test_every_candidate_is_sampled_equally_often():
    label = np.array([1] * 6 + [0] * 6 + [-1] * 3)
    keys = jax.random.split(jax.random.key(0), 4000)
    several = jax.vmap(functools.partial(sampling.sample, count=5, objects=2), in_axes=(0, None))
    chosen = np.asarray(jax.jit(several)(keys, label).chosen)
    often = np.bincount(chosen.ravel(), minlength=15) / 4000
    np.testing.assert_allclose(often[:6], 2 / 6, atol=0.03)
    np.testing.assert_allclose(often[6:12], 3 / 6, atol=0.03)
    assert not often[12:].any()
