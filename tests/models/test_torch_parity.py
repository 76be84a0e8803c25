"""Every architecture against an independent PyTorch one: same names, same weights, same logits."""

import jax
import numpy as np
import pytest
import torch

from cone_jax import models
from cone_jax.errors import UserError
from cone_jax.interop import importing, state_dict
from tests.models import random_variables, timm_oracle, torch_reference

FEATURES = {
    **dict.fromkeys(("resnet8", "resnet14", "resnet20"), 64),
    **dict.fromkeys(("resnet18", "resnet34"), 512),
    **dict.fromkeys(("resnet50", "resnet101", "resnet152", "resnet200"), 2048),
    "regnetx_400mf": 400,
    "mobilenet_v2": 1280,
    "shufflenet_v2": 1024,
    "deit_tiny": 192,
}
SMALL_HEAD = models.Projection(hidden=32, dim=8)
# At these resolutions every stage halves an even one, where symmetric padding and SAME differ,
# and in one of the two the last stage is larger than a kernel's centre.
SIZES = {"imagenet": 64, "cifar": 32}


def test_every_network_has_a_reference():
    assert FEATURES.keys() | timm_oracle.TIMM.keys() == set(models.names())


def torch_logits(model, images):
    with torch.inference_mode():
        return model(torch.from_numpy(images.transpose(0, 3, 1, 2).copy())).numpy()


def load(model, tensors):
    """Strictly, but for PyTorch's counters of training batches."""
    tensors = {name: torch.from_numpy(value.copy()) for name, value in tensors.items()}
    result = model.load_state_dict(tensors, strict=False)
    assert not result.unexpected_keys
    assert all(key.endswith("num_batches_tracked") for key in result.missing_keys)


def pair(name, stem, options):
    """Our network and the reference, both ending in the method's head."""
    encoder = models.create(name, 7, stem=stem, projection=SMALL_HEAD, **options)
    features = options.get("last_width", FEATURES[name])
    head = torch_reference.projection_head(features, 32, 8, 7)
    width = 16 if features == 64 else 64
    reference = torch_reference.create(name, head, cifar=stem == "cifar", width=width, **options)
    return encoder, reference


def gain(name):
    """Less than 1 where a hundred layers would make logits of thousands, more where they fade."""
    return {"resnet101": 0.7, "resnet152": 0.7, "resnet200": 0.7, "shufflenet_v2": 1.3}.get(name, 1)


def our_logits(encoder, variables, images):
    if encoder.spec.name.startswith("resnet"):
        # Operation by operation: deep networks repeat few shapes, and compile as a whole for long.
        return np.asarray(encoder.apply(variables, images, train=False).logits)
    return random_variables.logits(encoder, variables, images)


def assert_same(ours, theirs):
    assert np.std(ours[0] - ours[1]) > 1e-3  # the logits depend on the images
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


every_network = pytest.mark.parametrize(
    ("name", "stem", "options"),
    [
        *((name, stem, {}) for name in FEATURES for stem in SIZES),
        *(("regnetx_400mf", stem, {"last_width": 384}) for stem in SIZES),
        *(("shufflenet_v2", stem, {"channel_order": "authors"}) for stem in SIZES),
    ],
)


@every_network
def test_our_weights_give_an_independent_implementation_our_logits(name, stem, options):
    encoder, reference = pair(name, stem, options)
    bias_std = 1.0 if name == "mobilenet_v2" else 0.1  # ReLU6 must have something to clip
    variables = random_variables.draw(encoder, SIZES[stem], bias_std=bias_std, gain=gain(name))
    images = random_variables.images(SIZES[stem])
    load(reference, state_dict.to_state_dict(encoder, variables))
    assert_same(our_logits(encoder, variables, images), torch_logits(reference, images))


@every_network
def test_weights_of_an_independent_implementation_give_us_its_logits(name, stem, options):
    encoder, reference = pair(name, stem, options)
    images = random_variables.images(SIZES[stem])
    torch_reference.randomise(reference, gain(name))
    tensors = {key: value.numpy() for key, value in reference.state_dict().items()}
    empty = jax.tree.map(
        lambda leaf: np.full(leaf.shape, np.nan, leaf.dtype),
        models.abstract_variables(encoder, SIZES[stem]),
    )
    variables, report = importing.from_tensors(tensors, encoder, empty, source="reference")
    assert report.complete
    assert {name for name in tensors if "num_batches_tracked" in name} == set(report.ignored)
    assert_same(our_logits(encoder, variables, images), torch_logits(reference, images))


def test_the_stride_in_the_first_1x1_convolution_is_an_option():
    encoder = models.create("resnet50", 7, projection=SMALL_HEAD, width=16, stride_in_1x1=True)
    head = torch_reference.projection_head(512, 32, 8, 7)
    reference = torch_reference.create("resnet50", head, width=16)
    for stage in (reference.layer2, reference.layer3, reference.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    variables = random_variables.draw(encoder, 64)
    images = random_variables.images(64)
    load(reference, state_dict.to_state_dict(encoder, variables))
    assert_same(our_logits(encoder, variables, images), torch_logits(reference, images))
    with pytest.raises(UserError, match="is for bottlenecks, which resnet18 does not have"):
        models.create("resnet18", 7, stride_in_1x1=True)


@pytest.mark.parametrize("size", [32, 80])
def test_deit_interpolates_positions_as_pytorch_does(size):
    encoder = models.create("deit_tiny", 7, projection=None, image_size=64)
    variables = random_variables.draw(encoder, 64)
    reference = torch_reference.DeiTTiny(torch.nn.Linear(192, 7), side=4).eval()
    load(reference, state_dict.to_state_dict(encoder, variables))
    images = random_variables.images(size)
    np.testing.assert_allclose(
        random_variables.logits(encoder, variables, images),
        torch_logits(reference, images),
        rtol=1e-4,
        atol=1e-4,
    )
