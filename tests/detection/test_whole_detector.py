"""A whole Mask R-CNN of torchvision, imported, does what it did there."""

import dataclasses
import functools
import re

import jax
import numpy as np
import pytest
import torch
from flax import traverse_util

from cone_jax import detection
from cone_jax.detection import detector as detector_module
from cone_jax.detection import heads
from cone_jax.detection.backbone import Backbone
from cone_jax.errors import UserError
from cone_jax.interop import detector_weights, files
from cone_jax.interop import torchvision_detector as torchvision_names
from cone_jax.models import resnet
from cone_jax.models.layers import Layers
from tests.detection import random_weights, torchvision_oracle

pytestmark = pytest.mark.optimised
PROPOSALS = {"proposals_before_nms": (100, 100), "proposals": (40, 40)}
THEIR_PROPOSALS = {
    f"rpn_{when}_nms_top_n_{mode}": number
    for when, number in (("pre", 100), ("post", 40))
    for mode in ("train", "test")
}

THEIR_NAMES = {
    "rpn_objectness": "loss_objectness",
    "rpn_box": "loss_rpn_box_reg",
    "classification": "loss_classifier",
    "box": "loss_box_reg",
    "mask": "loss_mask",
}


def test_detections_are_torchvisions():
    """ResNet-50 with a feature pyramid, two photographs of different sizes in one batch."""
    images = random_weights.photographs((128, 160), (128, 144))
    network = random_weights.maskrcnn_resnet50(
        num_classes=5, min_size=128, max_size=160, box_detections_per_img=30, **THEIR_PROPOSALS
    ).eval()
    network.transform.postprocess = lambda result, *_: result  # masks are not pasted
    with torch.no_grad():
        theirs = network([torch.from_numpy(image) for image in images])
    settings = detection.Settings.torchvision(num_classes=4, detections=30, **PROPOSALS)
    variables = torchvision_names.from_torchvision(random_weights.arrays(network), settings)
    detector = detection.Detector(settings)
    ours = jax.jit(detector.apply)(variables, *random_weights.padded(images, (128, 160)))
    for image, expected in enumerate(theirs):
        valid = np.asarray(ours.valid[image])
        assert valid.sum() == len(expected["scores"]) >= 10
        np.testing.assert_array_equal(ours.classes[image][valid], expected["labels"])
        np.testing.assert_allclose(ours.scores[image][valid], expected["scores"], atol=1e-3)
        np.testing.assert_allclose(ours.boxes[image][valid], expected["boxes"], atol=1e-3)
        np.testing.assert_allclose(ours.masks[image][valid], expected["masks"][:, 0], atol=1e-3)


def their_losses(network, images, targets):
    """Losses and gradients by torchvision's names, BatchNorm frozen."""
    network.train()
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()
    losses = network([torch.from_numpy(image) for image in images], targets)
    sum(losses.values()).backward()
    gradients = {name: p.grad.numpy() for name, p in network.named_parameters()}
    return {name: value.item() for name, value in losses.items()}, gradients


def test_the_five_losses_and_their_gradients_are_torchvisions():
    """So many samples that all anchors and proposals are drawn: nothing is left to chance."""
    assert detector_module.TRAINED_SLOTS < 24
    scenes = [random_weights.scene(128, 160), random_weights.scene(128, 144, seed=1, objects=3)]
    network = random_weights.maskrcnn_resnet18(
        num_classes=5,
        min_size=128,
        max_size=160,
        rpn_batch_size_per_image=8000,
        box_batch_size_per_image=96,
        **THEIR_PROPOSALS,
    )
    targets = [
        {
            "boxes": torch.from_numpy(boxes),
            "labels": torch.from_numpy(labels),
            "masks": torch.from_numpy(masks.astype(np.uint8)),
        }
        for _, boxes, labels, masks in scenes
    ]
    images = [each[0] for each in scenes]
    theirs, their_gradients = their_losses(network, images, targets)
    settings = detection.Settings.torchvision(
        num_classes=4,
        backbone="resnet18",
        freeze_at=0,
        rpn_samples=8000,
        roi_samples=96,  # up to 24 objects: their masks in two parts
        **PROPOSALS,
    )
    variables = torchvision_names.from_torchvision(random_weights.arrays(network), settings)
    detector = detection.Detector(settings)

    def losses(params, key):
        result = detector.apply(
            {**variables, "params": params},
            *random_weights.padded(images, (128, 160)),
            random_weights.ground_truth(scenes, (128, 160)),
            key,
            method="losses",
        )
        return sum(result.values()), result

    grad = jax.jit(jax.grad(losses, has_aux=True))
    gradients, ours = grad(variables["params"], jax.random.key(0))
    for name, value in ours.items():
        np.testing.assert_allclose(
            value, theirs[THEIR_NAMES[name]], rtol=1e-5, atol=1e-5, err_msg=name
        )
        assert value > 1e-3
    renamed = torchvision_names.to_torchvision({**variables, "params": gradients}, settings)
    for name, expected in their_gradients.items():
        if ".bn" in name or "downsample.1" in name:
            assert not np.any(renamed[name]), "frozen"
            continue
        difference = renamed[name] - expected
        assert np.abs(difference).max() < 1e-5 * max(1, np.abs(expected).max()), name
        # A ReLU within rounding of 0 opens in one program and not in the other. PyTorch's own
        # float32 gradients differ from its float64 ones by 1e-4 of the largest for this reason.
        assert np.linalg.norm(difference) < 1e-4 * np.linalg.norm(expected), name


def test_infomins_heads_have_the_names_of_torchvisions_parts():
    """BatchNorm in the pyramid and the heads: every array has a place there, and does the same."""
    small = {"pyramid_channels": 32, "mask_channels": 32, "box_features": 64}
    settings = dataclasses.replace(SMALL, head_norm="batch", box_head="convolutions", **small)
    network = random_weights.with_batch_norm_heads(channels=32, features=64, num_classes=5).eval()
    state = random_weights.arrays(network)
    variables = torchvision_names.from_torchvision(state, settings)
    back = torchvision_names.to_torchvision(variables, settings)
    assert set(back) == {name for name in state if "num_batches" not in name}
    rng = np.random.default_rng(0)
    stages = [
        rng.normal(size=(1, side, side, width)).astype(np.float32)
        for side, width in ((16, 64), (8, 128), (4, 256), (2, 512))
    ]
    regions = rng.normal(size=(3, 7, 7, 32)).astype(np.float32)

    def ours(part, module, x):
        own = {name: tree[part] for name, tree in variables.items()}
        return jax.jit(functools.partial(module(settings, Layers()).apply, train=False))(own, x)

    def channels_first(x):
        return torch.from_numpy(x).permute(0, 3, 1, 2)

    both = torch.nn.Sequential(network.roi_heads.mask_head, network.roi_heads.mask_predictor)
    with torch.no_grad():
        pyramid = network.backbone.fpn({str(k): channels_first(x) for k, x in enumerate(stages)})
        boxes = network.roi_heads.box_head(channels_first(regions))
        masks = both(channels_first(regions))
    levels = ours("pyramid", heads.Pyramid, stages)
    for level, expected in zip(levels, pyramid.values(), strict=True):
        np.testing.assert_allclose(level, expected.permute(0, 2, 3, 1), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(ours("box_head", heads.BoxHead, regions), boxes, atol=1e-4)
    found = ours("mask_head", heads.MaskHead, regions)
    np.testing.assert_allclose(found, masks.permute(0, 2, 3, 1), rtol=1e-4, atol=1e-4)


def test_without_masks_the_names_are_those_of_torchvisions_faster_rcnn():
    settings = dataclasses.replace(SMALL, masks=False)
    state = {name: x for name, x in small_state().items() if "mask" not in name}
    assert torchvision_names.fits(settings)
    detector = detection.Detector(settings)
    own = jax.eval_shape(
        detector.init, jax.random.key(0), np.zeros((1, 64, 64, 3)), np.array([[64, 64]])
    )
    imported = torchvision_names.from_torchvision(state, settings)
    assert jax.tree.structure(dict(own)) == jax.tree.structure(imported)


@functools.cache
def small_state():
    return random_weights.arrays(random_weights.maskrcnn_resnet18(num_classes=5))


SMALL = detection.Settings.torchvision(num_classes=4, backbone="resnet18")


def test_weights_return_to_torchvision_unchanged():
    state = small_state()
    variables = torchvision_names.from_torchvision(state, SMALL)
    back = torchvision_names.to_torchvision(variables, SMALL)
    expected = {name: x for name, x in state.items() if "num_batches" not in name}
    assert set(back) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(back[name], value, err_msg=name)


# What torchvision's released detectors are called in their files, and what they load as.
NAMES_OF_2019 = (
    (r"(_blocks\.\d)\.0\.", r"\1."),
    (r"rpn\.head\.conv\.0\.0\.", "rpn.head.conv."),
    (r"mask_head\.(\d)\.0\.", lambda found: f"mask_head.mask_fcn{int(found[1]) + 1}."),
)


def test_released_detectors_load_under_their_names_of_2019():
    """torchvision reads them, too, which tells whether the names are right."""
    former = dict(small_state())
    for pattern, name in NAMES_OF_2019:
        former = {re.sub(pattern, name, key): value for key, value in former.items()}
    assert len(former.keys() - small_state().keys()) == 2 * (4 + 4 + 1 + 4)
    theirs = random_weights.maskrcnn_resnet18(seed=1, num_classes=5)
    theirs.load_state_dict({key: torch.from_numpy(value) for key, value in former.items()})
    for name, value in random_weights.arrays(theirs).items():
        np.testing.assert_array_equal(value, small_state()[name], err_msg=name)
    expected = torchvision_names.from_torchvision(small_state(), SMALL)
    zeros = jax.tree.map(np.zeros_like, expected)
    started, _, account = detector_weights.from_tensors(
        files.Weights(former), detection.Detector(SMALL), zeros, source="released.pth"
    )
    assert set(account) == {"mapped"}
    for found in (torchvision_names.from_torchvision(former, SMALL), started):
        jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_released_detectors_have_frozen_norms_without_an_epsilon():
    """torchvision's `overwrite_eps(model, 0.0)`: variances may be as small as the usual one."""
    rng = np.random.default_rng(0)
    maps = rng.normal(size=(2, 3, 4, 5)).astype(np.float32)
    values = {
        "weight": rng.normal(size=5).astype(np.float32),
        "bias": rng.normal(size=5).astype(np.float32),
        "running_mean": rng.normal(size=5).astype(np.float32),
        "running_var": np.array([1e-6, 1e-5, 1e-3, 1.0, 10.0], np.float32),
    }
    theirs = torchvision_oracle.torchvision.ops.misc.FrozenBatchNorm2d(5, eps=0.0)
    theirs.load_state_dict({name: torch.from_numpy(value) for name, value in values.items()})
    settings = dataclasses.replace(SMALL, norm_epsilon=0.0)
    ours = Backbone(settings)._layers(stage=1, train=True).batch_norm()
    variables = {
        "params": {"scale": values["weight"], "bias": values["bias"]},
        "batch_stats": {"mean": values["running_mean"], "var": values["running_var"]},
    }
    expected = theirs(torch.from_numpy(maps).permute(0, 3, 1, 2)).permute(0, 2, 3, 1).numpy()
    np.testing.assert_allclose(ours.apply(variables, maps), expected, rtol=1e-4, atol=1e-4)


def test_imported_variables_have_the_shapes_of_the_detectors_own():
    detector = detection.Detector(SMALL)
    own = jax.eval_shape(
        detector.init, jax.random.key(0), np.zeros((1, 64, 64, 3)), np.array([[64, 64]])
    )
    imported = torchvision_names.from_torchvision(small_state(), SMALL)
    own, imported = traverse_util.flatten_dict(own), traverse_util.flatten_dict(imported)
    assert {k: x.shape for k, x in own.items()} == {k: x.shape for k, x in imported.items()}


@pytest.mark.parametrize(
    ("backbone", "neck"),
    [
        ("resnet18", "fpn"),
        ("resnet34", "c4"),
        ("resnet50", "fpn"),
        ("resnet50", "c4"),
        ("resnet101", "c4"),
        ("resnet152", "fpn"),
    ],
)
def test_the_backbone_has_the_variables_of_the_classification_network(backbone, neck):
    detector = detection.Detector(detection.Settings.moco(neck, num_classes=3, backbone=backbone))
    image = np.zeros((1, 64, 64, 3), np.float32)
    own = jax.eval_shape(detector.init, jax.random.key(0), image, np.array([[64, 64]]))
    network = resnet.create(backbone, make=Layers(), stem="imagenet")
    classifier = jax.eval_shape(
        functools.partial(network.init, train=False), jax.random.key(0), image
    )
    for collection in ("params", "batch_stats"):
        ours, theirs = (
            jax.tree.map(lambda x: x.shape, tree)
            for tree in (own[collection]["backbone"], classifier[collection])
        )
        assert ours == theirs


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda state: state.pop("rpn.head.bbox_pred.bias"),
            "'rpn.head.bbox_pred.bias' is missing",
        ),
        (lambda state: state.update(surprise=np.zeros(1)), "'surprise' has no place"),
        (
            lambda state: state.update({"roi_heads.box_predictor.cls_score.bias": np.zeros(91)}),
            r"detection.num_classes \(4\) must be 90",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(change, said):
    state = dict(small_state())
    change(state)
    with pytest.raises(UserError, match=said):
        torchvision_names.from_torchvision(state, SMALL)
