"""A network that nobody else knows goes to every format and comes back with its logits."""

import json
from unittest import mock

import flax
import flax.linen as nn
import numpy as np
import pytest
import safetensors.numpy
import torch

from cone_jax import interop, models
from cone_jax.errors import UserError
from cone_jax.interop import exporting
from cone_jax.models import registry
from cone_jax.models.layers import Layers, global_average_pool
from tests.models import random_variables

METADATA = interop.ExportMetadata(
    class_names=("ant", "bee", "cat"), image_size=8, mean=(0.5,) * 3, std=(0.25,) * 3
)
FORMATS = [name for name in exporting.FORMATS if name not in ("detectron2", "onnx_pixels")]


class OwnNet(nn.Module):
    """Two convolutions and a parameter of a name that no other network has."""

    make: Layers
    width: int

    @nn.compact
    def __call__(self, x, *, train):
        make = self.make.training(train)
        x = nn.relu(make.batch_norm(name="bn")(make.conv(self.width, 3, name="first")(x)))
        x = make.conv(2 * self.width, 3, stride=2, groups=2, name="second")(x)
        gate = self.param("gate", nn.initializers.normal(1.0), (2, self.width))
        return global_average_pool(x) * gate.reshape(-1)


def own_net(name, *, make, stem, width=4):
    return OwnNet(make, width)


# The second begins like a published family.
@pytest.fixture(scope="module", params=["own_net", "resnet_of_mine"])
def network(request):
    with mock.patch.dict(registry.BACKBONES, {request.param: own_net}):
        head = models.Projection(hidden=12, dim=6)
        encoder = models.create(request.param, 3, width=6, projection=head)
        variables = random_variables.draw(encoder, 8)
        images = random_variables.images(8, count=5)
        yield encoder, variables, images, random_variables.logits(encoder, variables, images)


@pytest.fixture(scope="module")
def exports(network, tmp_path_factory):
    encoder, variables, *_ = network
    directory = tmp_path_factory.mktemp("exports")
    for format in FORMATS:
        interop.export(format, variables, encoder, METADATA, directory)
    return directory


@pytest.mark.parametrize("format", FORMATS)
def test_an_export_gives_the_networks_logits(network, exports, format):
    _, _, images, expected = network
    logits = interop.open_export(exports / format).logits(images)
    np.testing.assert_allclose(logits, expected, atol=1e-5)


@pytest.mark.parametrize(
    "source", ["safetensors", "safetensors/model.safetensors", "pth/model.pth"]
)
def test_weights_come_back_exactly(network, exports, source):
    encoder, variables, *_ = network
    shapes = models.abstract_variables(encoder, 8)
    loaded, report = interop.load_initial(exports / source, encoder, shapes)
    assert report.complete
    assert report.layout == "cone_jax"
    expected, found = (flax.traverse_util.flatten_dict(v, sep="/") for v in (variables, loaded))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


def test_names_are_paths_and_arrays_as_flax_has_them(network, exports):
    _, variables, *_ = network
    path = exports / "safetensors/model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    assert tensors["params/backbone/second/kernel"].shape == (3, 3, 3, 12)
    tree = flax.traverse_util.unflatten_dict(tensors, sep="/")
    gates = (v["params"]["backbone"]["gate"] for v in (tree, variables))
    np.testing.assert_array_equal(*gates)
    for_torch = torch.load(exports / "pth/model.pth", weights_only=True)
    assert {name: tuple(value.shape) for name, value in for_torch.items()} == {
        name: value.shape for name, value in tensors.items()
    }
    with safetensors.safe_open(path, framework="numpy") as file:
        assert json.loads(file.metadata()["layout"]) == "cone_jax"
    for format in ("safetensors", "pth"):
        assert json.loads((exports / format / "export.json").read_text())["layout"] == "cone_jax"


def test_detectron2_has_no_such_network(network, tmp_path):
    encoder, variables, *_ = network
    with pytest.raises(UserError, match=r"--format \(detectron2\) takes resnet50"):
        interop.export("detectron2", variables, encoder, METADATA, tmp_path)
    assert not list(tmp_path.iterdir())


def test_weights_of_another_network_are_refused(exports):
    other = models.create("resnet8", 3, stem="cifar", width=4, projection=None)
    shapes = models.abstract_variables(other, 8)
    with pytest.raises(UserError, match="does not fit the backbone of resnet8"):
        interop.load_initial(exports / "safetensors", other, shapes)
