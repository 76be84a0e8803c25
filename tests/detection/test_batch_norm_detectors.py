"""MoCo's C4 and InfoMin's FPN, in training mode, against PyTorch: outputs and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import traverse_util

from cone_jax import detection
from tests.detection import torch_detectors

SIDE = 256
# On three levels of a pyramid.
BOXES = np.array(
    [
        [[8, 12, 60, 72], [100, 40, 170, 96], [20, 16, 190, 150], [4, 6, 246, 250]],
        [[30, 30, 61, 58], [5, 110, 77, 230], [60, 50, 180, 170], [9, 2, 251, 240]],
    ],
    np.float32,
)
NAMES = ("objectness", "proposal codes", "logits", "codes", "masks")


def everything(detector, images, sizes, boxes):
    """What all heads say of the given boxes."""
    levels = detector._levels(images, sizes, train=True)
    anchored = (jnp.concatenate(x, 1) for x in zip(*detector.proposal_head(levels), strict=True))
    features = detector._box_features(levels, boxes, train=True)
    logits, codes = detector._predict(features, (boxes.shape[0] * boxes.shape[1],))
    if detector.settings.neck == "c4":
        masks = detector.mask_head(features, train=True)
    else:
        masks = detector._mask_logits(levels, boxes, train=True)
        masks = masks.reshape(-1, *masks.shape[2:])
    return *anchored, logits, codes, masks


def random_parameter(rng, name, shape):
    """Signals of the order of 1, nothing left at 0 or 1."""
    if name.endswith("kernel"):
        fan_in = np.prod(shape[-2:-1] if "doubling" in name else shape[:-1])
        return (rng.normal(size=shape) * np.sqrt(2 / fan_in)).astype(np.float32)
    return (rng.uniform(0.7, 1.1, shape) * (1 if "scale" in name else 0.1)).astype(np.float32)


@pytest.mark.parametrize(
    ("neck", "reference"),
    [("c4", torch_detectors.moco_c4), ("fpn", torch_detectors.infomin_fpn)],
)
def test_outputs_and_gradients_are_those_of_pytorch(neck, reference):
    small = {"pyramid_channels": 16, "mask_channels": 16, "box_features": 32}
    settings = detection.Settings.moco(neck, num_classes=3, backbone="resnet18", width=8, **small)
    detector = detection.Detector(settings)
    rng = np.random.default_rng(0)
    images = rng.normal(size=(2, SIDE, SIDE, 3)).astype(np.float32)
    sizes = np.array([[SIDE, SIDE]] * 2)
    shapes = jax.eval_shape(detector.init, jax.random.key(0), images, sizes)
    params = {
        name: random_parameter(rng, name, each.shape)
        for name, each in traverse_util.flatten_dict(shapes["params"], sep="/").items()
    }
    statistics = jax.tree.map(lambda each: np.zeros(each.shape, np.float32), shapes["batch_stats"])
    tensors = {name: torch.from_numpy(x).double().requires_grad_() for name, x in params.items()}
    pictures = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous().double()
    theirs = reference(
        torch_detectors.Network(tensors, settings), pictures, torch.from_numpy(BOXES).double()
    )
    weights = [rng.normal(size=tuple(x.shape)) / x.numel() for x in theirs]
    sum((x * torch.from_numpy(w)).sum() for x, w in zip(theirs, weights, strict=True)).backward()
    exact = {name: each.grad.numpy() for name, each in tensors.items()}

    def total(flat):
        out, _ = detector.apply(
            {"params": traverse_util.unflatten_dict(flat, sep="/"), "batch_stats": statistics},
            *(images, sizes, BOXES),
            method=everything,
            mutable=["batch_stats"],
        )
        return sum(
            jnp.sum(x * w.astype(np.float32)) for x, w in zip(out, weights, strict=True)
        ), out

    gradients, ours = jax.jit(jax.grad(total, has_aux=True))(params)
    for name, mine, expected in zip(NAMES, ours, theirs, strict=True):
        expected = expected.detach().numpy()
        scale = max(1.0, np.abs(expected).max())
        assert np.abs(mine - expected).max() < 1e-5 * scale, name
        assert np.ptp(expected) > 1e-2, "something to compare"
    # PyTorch's own float32 gradients differ from these by up to 7e-6, and in norm by 3e-5.
    for name, expected in exact.items():
        error = np.abs(gradients[name] - expected).max()
        assert error < 1e-5 * max(1.0, np.abs(expected).max()), name
        assert np.linalg.norm(gradients[name] - expected) < 1e-4 * np.linalg.norm(expected), name
