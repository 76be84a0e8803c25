"""Every architecture against an independent PyTorch one: same names, same weights, same logits."""

import jax
import numpy as np
import pytest
import torch
from flax.traverse_util import flatten_dict

from cone_jax import models
from cone_jax.interop import importing, layouts, state_dict
from tests.models import random_variables, torch_reference

FEATURES = {
    "resnet50": 2048,
    "regnetx_400mf": 400,
    "mobilenet_v2": 1280,
    "shufflenet_v2": 1024,
    "deit_tiny": 192,
}
SMALL_HEAD = models.Projection(hidden=32, dim=8)


def torch_logits(model, images):
    with torch.inference_mode():
        return model(torch.from_numpy(images.transpose(0, 3, 1, 2).copy())).numpy()


def load(model, tensors):
    """Strictly, but for PyTorch's counters of training batches."""
    tensors = {name: torch.from_numpy(value.copy()) for name, value in tensors.items()}
    result = model.load_state_dict(tensors, strict=False)
    assert not result.unexpected_keys
    assert all(key.endswith("num_batches_tracked") for key in result.missing_keys)


# 64 px makes every stage halve an even resolution, where symmetric padding and SAME differ. The
# ResNets' CIFAR stem is compared with PyTorch where exports are tested.
@pytest.mark.parametrize(
    ("name", "stem", "size"),
    [(name, "imagenet", 64) for name in FEATURES]
    + [(name, "cifar", 32) for name in FEATURES if name != "resnet50"],
)
def test_logits_equal_those_of_an_independent_implementation_and_back(name, stem, size):
    encoder = models.create(name, 7, stem=stem, projection=SMALL_HEAD)
    bias_std = 1.0 if name == "mobilenet_v2" else 0.1  # ReLU6 must have something to clip
    variables = random_variables.draw(encoder, size, bias_std=bias_std)
    images = random_variables.images(size)
    head = torch_reference.projection_head(FEATURES[name], 32, 8, 7)
    reference = torch_reference.create(name, head, cifar=stem == "cifar")
    exported = state_dict.to_state_dict(encoder, variables)
    load(reference, exported)
    ours = random_variables.logits(encoder, variables, images)
    assert np.std(ours[0] - ours[1]) > 1e-3  # the logits depend on the images
    np.testing.assert_allclose(ours, torch_logits(reference, images), rtol=1e-4, atol=1e-4)
    tensors = {key: value.numpy() for key, value in reference.state_dict().items()}
    other = random_variables.draw(encoder, size, seed=2)
    returned, report = importing.from_tensors(tensors, encoder, other, source="reference")
    assert not report.missing
    assert not report.unexpected
    jax.tree.map(np.testing.assert_array_equal, returned, variables)


@pytest.mark.parametrize(
    ("name", "options"),
    [(name, {}) for name in models.names() if name not in FEATURES]
    + [("regnetx_400mf", {"last_width": 384})],
)
def test_names_and_shapes_of_the_other_depths_are_those_of_the_reference(name, options):
    encoder = models.create(name, 10, projection=None, **options)
    abstract = models.abstract_variables(encoder, 64)
    names = layouts.names(encoder, abstract, "torchvision")
    shapes = {names[path]: leaf.shape for path, leaf in flatten_dict(abstract).items()}
    width = 16 if name in ("resnet8", "resnet14", "resnet20") else 64
    with torch.device("meta"):
        features = {"resnet18": 512, "resnet34": 512, "regnetx_400mf": 384}.get(name, 2048)
        head = torch.nn.Linear(64 if width == 16 else features, 10)
        reference = torch_reference.create(name, head, width=width, **options)
    expected = {
        name: tensor.shape
        for name, tensor in reference.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }
    # Kernels are transposed, so sizes are compared without their order.
    assert {name: sorted(s) for name, s in shapes.items()} == {
        name: sorted(s) for name, s in expected.items()
    }


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
