"""Non-maximum suppression is exact: the greedy result, whatever the tiles."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cone_jax import detection
from cone_jax.detection import suppression
from tests.detection import onnx_oracle, torchvision_oracle

pytestmark = pytest.mark.optimised
iou = jax.jit(detection.iou)


@functools.partial(jax.jit, static_argnames=("iou_threshold", "max_outputs"))
def compiled(boxes, scores, groups=None, *, iou_threshold, max_outputs):
    return detection.nms(
        boxes, scores, iou_threshold=iou_threshold, max_outputs=max_outputs, groups=groups
    )


def kept(boxes, scores, groups=None, *, iou_threshold, max_outputs=None):
    index, valid = compiled(
        boxes,
        scores,
        groups,
        iou_threshold=iou_threshold,
        max_outputs=max_outputs or len(boxes),
    )
    index, valid = np.asarray(index), np.asarray(valid)
    assert np.all(valid[:-1] >= valid[1:]), "valid ones come first"
    return index[valid]


def crowded(number, seed, levels=None):
    """Boxes with whole coordinates that overlap much; with `levels`, scores with many ties."""
    rng = np.random.default_rng(seed)
    low = rng.integers(0, 60, size=(number, 2))
    boxes = np.concatenate([low, low + rng.integers(1, 40, size=(number, 2))], axis=1)
    scores = rng.integers(0, levels, number) / levels if levels else rng.uniform(size=number)
    return boxes.astype(np.float32), scores.astype(np.float32)


def torchvisions(boxes, scores, threshold):
    return torchvision_oracle.torchvision.ops.nms(
        torch.from_numpy(boxes), torch.from_numpy(scores), threshold
    ).numpy()


@pytest.mark.parametrize("number", [1, 255, 256, 257, 900])
@pytest.mark.parametrize("threshold", [0.0, 0.5, 0.7])
@pytest.mark.parametrize("levels", [None, 7])
def test_the_kept_boxes_and_their_order_are_torchvisions(number, threshold, levels):
    boxes, scores = crowded(number, seed=number, levels=levels)
    ours = kept(boxes, scores, iou_threshold=threshold)
    assert ours.tolist() == torchvisions(boxes, scores, threshold).tolist()


@pytest.mark.parametrize("max_outputs", [1, 40, 300])
def test_the_first_outputs_are_onnxruntimes(max_outputs):
    boxes, scores = crowded(600, seed=3)
    theirs = onnx_oracle.nms(boxes, scores, iou_threshold=0.6, max_outputs=max_outputs)
    ours = kept(boxes, scores, iou_threshold=0.6, max_outputs=max_outputs)
    assert ours.tolist() == theirs.tolist()


def test_only_boxes_of_one_group_suppress_each_other():
    boxes, scores = crowded(700, seed=4, levels=30)
    groups = np.random.default_rng(5).integers(0, 5, 700)
    theirs = torchvision_oracle.torchvision.ops.batched_nms(
        torch.from_numpy(boxes), torch.from_numpy(scores), torch.from_numpy(groups), 0.5
    )
    ours = kept(boxes, scores, groups, iou_threshold=0.5)
    assert ours.tolist() == theirs.tolist()
    assert len(ours) > len(kept(boxes, scores, iou_threshold=0.5))


def test_boxes_without_a_score_do_not_exist():
    boxes, scores = crowded(300, seed=6)
    absent = np.arange(300) % 3 == 0
    marked = np.where(absent, -np.inf, scores).astype(np.float32)
    marked[0] = np.nan
    expected = np.flatnonzero(~absent)[torchvisions(boxes[~absent], scores[~absent], 0.5)]
    assert kept(boxes, marked, iou_threshold=0.5).tolist() == expected.tolist()
    assert not kept(boxes, np.full(300, -np.inf, np.float32), iou_threshold=0.5).size


def test_a_batch_is_suppressed_image_by_image():
    pairs = [crowded(400, seed) for seed in (7, 8)]
    boxes, scores = (np.stack(parts) for parts in zip(*pairs, strict=True))
    each = functools.partial(detection.nms, iou_threshold=0.5, max_outputs=50)
    index, valid = (np.asarray(x) for x in jax.jit(jax.vmap(each))(boxes, scores))
    for image in range(2):
        expected = torchvisions(boxes[image], scores[image], 0.5)[:50]
        assert index[image][valid[image]].tolist() == expected.tolist()


def test_arrays_of_numpy_may_be_constants_of_a_compiled_program():
    boxes, scores = crowded(300, seed=9)
    groups = np.arange(300) % 3

    @jax.jit
    def with_constants(scores):
        given = {"iou_threshold": 0.5, "max_outputs": 300, "groups": groups}
        return detection.nms(boxes.astype(np.float64), scores, **given)

    index, valid = (np.asarray(x) for x in with_constants(scores))
    assert index[valid].tolist() == kept(boxes, scores, groups, iou_threshold=0.5).tolist()


def test_of_no_boxes_none_are_kept():
    nothing = np.zeros((2, 0, 4), np.float32), np.zeros((2, 0), np.float32)
    each = functools.partial(detection.nms, iou_threshold=0.5, max_outputs=3)
    index, valid = jax.jit(jax.vmap(each))(*nothing)
    assert index.tolist() == [[0, 0, 0]] * 2
    assert not np.any(valid)


@pytest.mark.parametrize("max_outputs", [0, 1, 8, 700])
def test_places_may_be_fewer_or_more_than_boxes(max_outputs):
    boxes, scores = crowded(300, seed=13)
    index, valid = compiled(boxes, scores, iou_threshold=0.5, max_outputs=max_outputs)
    expected = torchvisions(boxes, scores, 0.5)[:max_outputs].tolist()
    assert index.shape == valid.shape == (max_outputs,)
    assert index.tolist() == expected + [0] * (max_outputs - len(expected))
    assert valid.tolist() == [place < len(expected) for place in range(max_outputs)]


def test_bfloat16_is_judged_in_float32():
    """Whole coordinates and sixteenths are exact in both."""
    boxes, scores = crowded(300, seed=10, levels=16)
    rough = [jnp.asarray(x, jnp.bfloat16) for x in (boxes, scores)]
    again = kept(boxes, scores, iou_threshold=0.5)
    assert kept(*rough, iou_threshold=0.5).tolist() == again.tolist()


def test_with_64_bits_the_choice_is_the_same():
    boxes, scores = crowded(600, seed=14)
    expected = kept(boxes, scores, iou_threshold=0.5)
    with jax.enable_x64(True):
        index, valid = detection.nms(
            *(jnp.asarray(x, jnp.float64) for x in (boxes, scores)),
            iou_threshold=0.5,
            max_outputs=600,
        )
    assert index.dtype == jnp.int32
    assert index[valid].tolist() == expected.tolist()


def test_a_choice_has_no_gradient_but_what_is_chosen_has():
    boxes, scores = crowded(40, seed=11)

    def total(boxes, scores):
        index, valid = detection.nms(boxes, scores, iou_threshold=0.5, max_outputs=40)
        return jnp.sum(jnp.where(valid[:, None], boxes[index], 0)) + jnp.sum(
            scores[index], where=valid
        )

    by_box, by_score = jax.jit(jax.grad(total, argnums=(0, 1)))(boxes, scores)
    chosen = np.isin(np.arange(40), torchvisions(boxes, scores, 0.5)).astype(np.float32)
    np.testing.assert_array_equal(by_score, chosen)
    np.testing.assert_array_equal(by_box, np.tile(chosen[:, None], 4))


def test_arrays_of_the_wrong_shape_are_refused():
    boxes, scores = crowded(5, seed=12)
    for arrays, said in (
        ((boxes[None], scores), r"boxes \(1, 5, 4\) must be \[N, 4\].*jax.vmap"),
        ((boxes, scores[:3]), r"scores \(3,\) must be \(5,\)"),
    ):
        with pytest.raises(ValueError, match=said):
            detection.nms(*arrays, iou_threshold=0.5, max_outputs=3)


def test_chains_of_overlaps_are_resolved_in_order():
    """Each box overlaps the next only: every other one stays, the worst case of the iteration."""
    number = 2 * suppression.TILE + 10
    left = np.arange(number, dtype=np.float32)
    boxes = np.stack([left, left * 0, left + 1.9, left * 0 + 1], axis=1)
    scores = -left
    assert kept(boxes, scores, iou_threshold=0.3).tolist() == list(range(0, number, 2))


boxes_strategy = st.lists(
    st.tuples(*[st.integers(-5, 5)] * 4, st.integers(0, 3)), min_size=1, max_size=12
)


@settings(max_examples=60, deadline=None)
@given(boxes_strategy)
def test_no_two_kept_boxes_overlap_and_every_other_is_overlapped(drawn):
    """Also where boxes have no area or are turned inside out."""
    padded = drawn + [(0, 0, 0, 0, -1)] * (12 - len(drawn))
    rows = np.array(padded, np.float32)
    scores = np.where(rows[:, 4] < 0, -np.inf, rows[:, 4]).astype(np.float32)
    index = kept(rows[:, :4], scores, iou_threshold=0.5)
    overlap = np.asarray(iou(rows[:, :4], rows[:, :4]))
    order = {each: place for place, each in enumerate(np.argsort(-scores, kind="stable"))}
    for each in range(len(drawn)):
        better = [i for i in index if order[i] < order[each] and overlap[i, each] > 0.5]
        assert (each in index) == (not better)
