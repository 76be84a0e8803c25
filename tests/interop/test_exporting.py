"""Every export gives the network's logits in the program it is meant for, and says what it is."""

import dataclasses
import json
import sys

import jax
import numpy as np
import onnx
import onnxruntime
import pytest
import safetensors
import torch

from cone_jax import interop, models
from cone_jax.errors import UserError
from cone_jax.interop import exporting
from tests.models import random_variables, torch_reference

METADATA = interop.ExportMetadata(
    class_names=("ant", "bee", "cat", "dog", "eel"),
    image_size=8,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    transforms=("resize(8)", "centre_crop(8)"),
    origin={"step": 12},
)


@pytest.fixture(scope="module")
def network():
    """A network, its variables, images and its logits for them."""
    head = models.Projection(hidden=12, dim=6)
    encoder = models.create("resnet8", 5, stem="cifar", width=4, projection=head)
    variables = random_variables.draw(encoder, 8)
    images = random_variables.images(8, count=6)
    return encoder, variables, images, random_variables.logits(encoder, variables, images)


@pytest.fixture(scope="module")
def exports(network, tmp_path_factory):
    directory = tmp_path_factory.mktemp("exports")
    encoder, variables, *_ = network
    for format, described in exporting.FORMATS.items():
        if format != "detectron2" and not described.takes_pictures:
            path = interop.export(format, variables, encoder, METADATA, directory)
            assert path == directory / format
    return directory


def torch_logits(tensors, images):
    reference = torch_reference.create(
        "resnet8", torch_reference.projection_head(16, 12, 6, 5), cifar=True, width=4
    )
    result = reference.load_state_dict(tensors, strict=False)
    assert not result.unexpected_keys
    assert all("num_batches_tracked" in key for key in result.missing_keys)
    with torch.inference_mode():
        return reference(torch.from_numpy(images.transpose(0, 3, 1, 2).copy())).numpy()


def test_safetensors_in_pytorch(network, exports):
    *_, images, logits = network
    with safetensors.safe_open(exports / "safetensors" / "model.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = file.metadata()
    np.testing.assert_allclose(torch_logits(tensors, images), logits, atol=1e-5)
    assert json.loads(header["class_names"]) == list(METADATA.class_names)
    assert json.loads(header["model"])["name"] == "resnet8"


def test_pth_in_pytorch(network, exports):
    *_, images, logits = network
    tensors = torch.load(exports / "pth" / "model.pth", weights_only=True)
    np.testing.assert_allclose(torch_logits(tensors, images), logits, atol=1e-5)


@pytest.mark.parametrize("count", [1, 6])
def test_stablehlo_in_bare_jax_for_any_number_of_images(network, exports, count):
    *_, images, logits = network
    content = (exports / "stablehlo" / "model.stablehlo").read_bytes()
    program = jax.export.deserialize(bytearray(content))
    assert program.platforms == ("cpu", "cuda", "tpu")
    out = program.call(images[:count])
    np.testing.assert_allclose(out["logits"], logits[:count], atol=1e-5)
    assert out["embedding"].shape == (count, 6)


@pytest.mark.parametrize("count", [1, 6])
def test_onnx_in_onnxruntime_for_any_number_of_images(network, exports, count):
    *_, images, logits = network
    path = exports / "onnx" / "model.onnx"
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    out, embedding = session.run(["logits", "embedding"], {"images": images[:count]})
    np.testing.assert_allclose(out, logits[:count], atol=1e-5)
    assert embedding.shape == (count, 6)
    properties = {p.key: json.loads(p.value) for p in onnx.load(path).metadata_props}
    assert properties["image_size"] == 8


def test_orbax_and_safetensors_come_back_as_they_were(network, exports):
    encoder, variables, *_ = network
    zeros = jax.tree.map(np.zeros_like, variables)
    for format in ("orbax", "safetensors", "pth"):
        loaded, report = interop.load_initial(exports / format, encoder, zeros)
        jax.tree.map(np.testing.assert_array_equal, loaded, variables)
        assert report.complete
    with pytest.raises(UserError, match="export to stablehlo, which weights cannot be taken from"):
        interop.load_initial(exports / "stablehlo", encoder, zeros)


def test_every_export_describes_itself_and_opens_by_that_alone(network, exports):
    encoder, _, images, logits = network
    assert len(list(exports.iterdir())) == 5
    for directory in exports.iterdir():
        description = json.loads((directory / "export.json").read_text())
        assert description["format"] == directory.name
        assert models.ModelSpec.from_dict(description["model"]) == encoder.spec
        assert description["class_names"] == list(METADATA.class_names)
        assert description["versions"].keys() >= {"cone_jax", "jax", "flax"}
        opened = interop.open_export(directory)
        assert opened.metadata == METADATA
        np.testing.assert_allclose(opened.logits(images), logits, atol=1e-5)


@pytest.mark.parametrize("damage", [lambda a: a * 1.01, lambda a: a * np.nan])
def test_an_export_with_other_logits_is_refused_and_leaves_the_earlier_one(
    network, tmp_path, monkeypatch, damage
):
    encoder, variables, *_ = network
    right = exporting.FORMATS["safetensors"]

    def write(bundle, path):
        wrong = {**bundle.variables, "params": {**bundle.variables["params"]}}
        wrong["params"]["classifier"] = jax.tree.map(damage, wrong["params"]["classifier"])
        right.write(dataclasses.replace(bundle, variables=wrong), path)

    (tmp_path / "safetensors").mkdir()
    (tmp_path / "safetensors" / "earlier").touch()
    wrong = dataclasses.replace(right, write=write)
    monkeypatch.setitem(exporting.FORMATS, "safetensors", wrong)
    with pytest.raises(interop.ExportFailed, match="gives other logits than the network"):
        interop.export("safetensors", variables, encoder, METADATA, tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["safetensors", "earlier"]


def test_an_earlier_export_is_replaced(network, tmp_path):
    encoder, variables, *_ = network
    for step in (1, 2):
        metadata = dataclasses.replace(METADATA, origin={"step": step})
        path = interop.export("safetensors", variables, encoder, metadata, tmp_path)
        assert interop.open_export(path).metadata.origin == {"step": step}
    assert [path.name for path in tmp_path.iterdir()] == ["safetensors"]


def test_bfloat16_networks_are_exported_in_float32(network, tmp_path):
    _, variables, images, logits = network
    head = models.Projection(hidden=12, dim=6)
    half = models.create("resnet8", 5, stem="cifar", width=4, projection=head, dtype="bfloat16")
    path = interop.export("safetensors", variables, half, METADATA, tmp_path)
    np.testing.assert_allclose(interop.open_export(path).logits(images), logits, atol=1e-5)


def test_mistakes_are_named(network, tmp_path, monkeypatch):
    encoder, variables, *_ = network
    with pytest.raises(UserError, match=r"--format \('onx'\) is unknown; did you mean 'onnx'"):
        interop.export("onx", variables, encoder, METADATA, tmp_path)
    with pytest.raises(UserError, match="is not an export"):
        interop.open_export(tmp_path)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UserError, match="pip install onnx onnxruntime"):
        interop.export("onnx", variables, encoder, METADATA, tmp_path)
    assert list(tmp_path.iterdir()) == []
