"""The five losses and their gradients are torchvision's, given the same samples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from cone_jax import detection
from cone_jax.detection import losses
from tests.detection import torchvision_oracle

pytestmark = pytest.mark.optimised
models = torchvision_oracle.torchvision.models.detection
BETA = 1 / 9
IMAGES, SLOTS, CLASSES = 2, 12, 4


def draw(*shape, seed=0, scale=1.0):
    return np.random.default_rng(seed).normal(scale=scale, size=shape).astype(np.float32)


def parameter(array):
    return torch.from_numpy(array).requires_grad_()


def same(ours, theirs, *leaves):
    """Value and gradients agree to 1e-5."""
    value, gradients = ours
    theirs.backward()
    np.testing.assert_allclose(value, theirs.item(), atol=1e-5)
    for gradient, leaf in zip(gradients, leaves, strict=True):
        np.testing.assert_allclose(gradient, leaf.grad.numpy(), atol=1e-5)
        assert np.abs(gradient).max() > 1e-4


@pytest.fixture
def slots():
    """Which of the slots are valid, and which of these hold objects."""
    valid = np.arange(SLOTS)[None] < np.array([[12], [9]])
    return valid, np.arange(SLOTS)[None] < np.array([[4], [2]])


def test_the_losses_of_the_proposal_head(slots):
    valid, is_object = slots
    logits, codes = draw(IMAGES, SLOTS), draw(IMAGES, SLOTS, 4, seed=1)
    wanted = draw(IMAGES, SLOTS, 4, seed=2)
    network = models.rpn.RegionProposalNetwork(None, None, 0.7, 0.3, SLOTS, 0.5, {}, {}, 0.7)
    chosen = [torch.from_numpy(part.astype(np.uint8)) for part in is_object]
    rest = [torch.from_numpy(part.astype(np.uint8)) for part in valid & ~is_object]
    network.fg_bg_sampler = lambda labels: (chosen, rest)
    their_logits, their_codes = parameter(logits.reshape(-1, 1)), parameter(codes.reshape(-1, 4))
    labels = [torch.from_numpy(part.astype(np.float32)) for part in is_object]
    both = network.compute_loss(their_logits, their_codes, labels, list(torch.from_numpy(wanted)))
    total = jnp.sum(valid)
    ours = jax.value_and_grad(losses.objectness)(logits, is_object, valid, total=total)
    same((ours[0], [ours[1].reshape(-1, 1)]), both[0], their_logits)
    ours = jax.value_and_grad(losses.box_codes)(codes, wanted, is_object, beta=BETA, total=total)
    same((ours[0], [ours[1].reshape(-1, 4)]), both[1], their_codes)


def test_the_losses_of_the_box_head(slots):
    valid, is_object = slots
    classes = np.where(is_object, 1 + np.arange(SLOTS)[None] % (CLASSES - 1), 0)
    logits, codes = draw(IMAGES, SLOTS, CLASSES), draw(IMAGES, SLOTS, CLASSES, 4, seed=1)
    wanted = draw(IMAGES, SLOTS, 4, seed=2, scale=0.3)
    their_logits, their_codes = parameter(logits[valid]), parameter(codes[valid].reshape(-1, 16))
    both = models.roi_heads.fastrcnn_loss(
        their_logits,
        their_codes,
        [torch.from_numpy(classes[i][valid[i]]) for i in range(IMAGES)],
        [torch.from_numpy(wanted[i][valid[i]]) for i in range(IMAGES)],
    )
    ours = jax.value_and_grad(losses.classification)(logits, classes, valid)
    same((ours[0], [ours[1][valid]]), both[0], their_logits)
    assert not np.any(ours[1][~valid]), "padding has no gradient"

    def box_loss(codes):
        own = jnp.take_along_axis(codes, classes[..., None, None], axis=2)[:, :, 0]
        return losses.box_codes(own, wanted, is_object, beta=BETA, total=jnp.sum(valid))

    ours = jax.value_and_grad(box_loss)(codes)
    same((ours[0], [ours[1][valid].reshape(-1, 16)]), both[1], their_codes)


def test_the_loss_of_the_mask_head(slots):
    _, is_object = slots
    classes = 1 + np.arange(IMAGES * SLOTS).reshape(IMAGES, SLOTS) % (CLASSES - 1)
    logits = draw(IMAGES, SLOTS, 6, 6, CLASSES)
    bitmaps = (draw(IMAGES, SLOTS, 20, 20, seed=3) > 0).astype(np.float32)
    low = np.random.default_rng(4).uniform(0, 10, size=(IMAGES, SLOTS, 2))
    boxes = np.concatenate([low, low + 7.5], axis=-1).astype(np.float32)
    theirs_in = parameter(np.ascontiguousarray(logits[is_object].transpose(0, 3, 1, 2)))
    theirs = models.roi_heads.maskrcnn_loss(
        theirs_in,
        [torch.from_numpy(boxes[i][is_object[i]]) for i in range(IMAGES)],
        list(torch.from_numpy(bitmaps)),
        list(torch.from_numpy(classes)),
        [torch.arange(int(is_object[i].sum())) for i in range(IMAGES)],
    )
    frame = np.tile(np.array([0, 0, 20, 20], np.float32), (IMAGES, SLOTS, 1))
    targets = jax.vmap(lambda *each: detection.crop_masks(*each, output_size=6, aligned=False))(
        bitmaps, frame, boxes
    )
    value, gradient = jax.value_and_grad(losses.mask)(logits, classes, targets, is_object)
    same((value, [gradient[is_object].transpose(0, 3, 1, 2)]), theirs, theirs_in)
    assert not np.any(gradient[~is_object])


@pytest.mark.parametrize("beta", [0.0, 1 / 9, 1.0])
def test_smooth_l1_is_pytorchs(beta):
    difference = draw(100)
    theirs_in = parameter(difference)
    theirs = torch.nn.functional.smooth_l1_loss(
        theirs_in, torch.zeros(100), beta=beta, reduction="none"
    )
    theirs.sum().backward()
    np.testing.assert_allclose(losses.smooth_l1(difference, beta=beta), theirs.detach(), atol=1e-6)
    gradient = jax.grad(lambda x: jnp.sum(losses.smooth_l1(x, beta=beta)))(difference)
    np.testing.assert_allclose(gradient, theirs_in.grad, atol=1e-6)


def test_without_a_valid_sample_losses_and_gradients_are_zero():
    none = np.zeros((2, 3), bool)
    nothing = jnp.array(0)
    logits, codes = draw(2, 3), draw(2, 3, 4)
    cases = [
        jax.value_and_grad(losses.objectness)(logits, none, none),
        jax.value_and_grad(losses.box_codes)(codes, codes, none, beta=0.0, total=nothing),
        jax.value_and_grad(losses.classification)(codes, np.zeros((2, 3), int), none),
        jax.value_and_grad(losses.mask)(
            draw(2, 3, 4, 4, 2), np.zeros((2, 3), int), np.zeros((2, 3, 4, 4), np.float32), none
        ),
    ]
    for value, gradient in cases:
        assert value == 0
        assert not np.any(gradient)
