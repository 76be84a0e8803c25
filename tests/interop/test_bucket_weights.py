"""Weights and exports in buckets: ``init_from`` and ``--model`` take them as from a disk."""

import io

import jax
import numpy as np
import pytest
import safetensors.numpy
import torch
from PIL import Image
from rich.console import Console

from cone_jax import interop, models, prediction, storage
from cone_jax.config import load_recipe
from cone_jax.errors import UserError
from cone_jax.interop import state_dict
from cone_jax.interop.metadata import ExportMetadata
from cone_jax.modes import MODES, command_line
from cone_jax.training import named_network, pretrained
from tests import bucket_servers
from tests.models import random_variables

SIZE = 32
CLASSES = ("ant", "bee", "cat")
DESCRIBED = ExportMetadata(
    class_names=CLASSES,
    image_size=SIZE,
    mean=(0.4, 0.5, 0.6),
    std=(0.2, 0.3, 0.25),
    transforms=(f"resize({SIZE})", f"centre_crop({SIZE})"),
    origin={"step": 7},
)


@pytest.fixture(scope="module", params=("gcs", "s3"))
def bucket(request):
    """The URL of a bucket with weights and exports of a network with CoNe's head, and both."""
    head = models.Projection(dim=8, hidden=8)
    encoder = models.create("resnet8", len(CLASSES), projection=head, width=16)
    variables = random_variables.draw(encoder, SIZE)
    with (
        bucket_servers.running(request.param) as port,
        bucket_servers.reached(request.param, port) as url,
    ):
        yield url, encoder, variables


@pytest.fixture(scope="module")
def exports(bucket):
    url, encoder, variables = bucket
    folder = storage.path(f"{url}/exports")
    for format in ("safetensors", "pth", "orbax", "stablehlo", "onnx", "onnx_pixels"):
        interop.export(format, variables, encoder, DESCRIBED, folder)
    plain = state_dict.to_state_dict(encoder, variables)
    (storage.path(f"{url}/plain.safetensors")).write_bytes(safetensors.numpy.save(plain))
    tensors = {name: torch.from_numpy(value.copy()) for name, value in plain.items()}
    content = io.BytesIO()
    torch.save({"model": {name: 0 * t for name, t in tensors.items()}, "ema": tensors}, content)
    (storage.path(f"{url}/both.pth")).write_bytes(content.getvalue())
    return str(folder)


def same(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_training_starts_from_files_and_exports_in_a_bucket(bucket, exports):
    url, encoder, variables = bucket
    zeros = jax.tree.map(np.zeros_like, variables)
    places = [f"{exports}/{format}" for format in ("safetensors", "pth", "orbax")]
    for place in (*places, f"{url}/plain.safetensors", f"{url}/both.pth#ema"):
        found, report = interop.load_initial(place, encoder, zeros)
        assert report.complete, place
        same(found, variables)


def test_what_an_export_in_a_bucket_was_made_with_is_taken_over(bucket, exports, tmp_path):
    config = load_recipe("folder", "resnet50")
    config.init_from = f"{exports}/safetensors"
    adopted = pretrained.adopt(config, "folder:resnet50", "latest")
    assert (adopted.model.name, adopted.data.mean) == ("resnet8", DESCRIBED.mean)
    said = []
    adopted = pretrained.adopt_input(config, "folder:resnet50", tmp_path, said.append)
    assert (adopted.model.name, adopted.model.options.width) == ("resnet50", 16)
    assert said == [f"model.options.width = 16, as {exports}/safetensors needs it"]
    config.init_from = f"{bucket[0]}/plain.safetensors"
    assert pretrained.adopt(config, "folder:resnet50", "latest").data.mean == config.data.mean


def call(*argv):
    output = io.StringIO()
    arguments = command_line.parse(argv, {name: mode.help for name, mode in MODES.items()})
    MODES[arguments.mode].run(arguments, Console(file=output, width=250))
    return output.getvalue()


def test_exports_and_files_in_a_bucket_are_networks_to_use(bucket, exports, tmp_path):
    picture = tmp_path / "picture.png"
    pixels = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), np.uint8)
    Image.fromarray(pixels).save(picture)
    images = (np.float32(pixels / 255) - DESCRIBED.mean)[None] / DESCRIBED.std
    logits = random_variables.logits(*bucket[1:], images.astype(np.float32))[0]
    expected = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    best = f"{picture}: {CLASSES[expected.argmax()]} {expected.max():.1%}"
    output = f"--output={tmp_path / 'p.csv'}"
    for flag in (
        f"--model={exports}/safetensors",
        f"--model={exports}/pth",
        f"--model={exports}/orbax",
        f"--workdir={exports}/safetensors",
        f"--workdir={exports}/stablehlo",
        f"--workdir={exports}/onnx",
        f"--workdir={exports}/onnx_pixels",
    ):
        printed = call("predict", flag, f"--images={picture}", output)
        assert best in printed, flag
        assert "assumed" not in printed
    with pytest.raises(UserError, match="is an export to stablehlo, which weights cannot be"):
        named_network.open_network(f"{exports}/stablehlo", print)


def test_pictures_in_a_bucket_are_predicted_like_those_on_a_disk(bucket, exports, tmp_path):
    there, here = storage.path(f"{bucket[0]}/pictures"), tmp_path / "pictures"
    here.mkdir()
    pixels = np.random.default_rng(1).integers(0, 256, (2, SIZE, SIZE, 3), np.uint8)
    for name, each in zip(("a tit.png", "öwl.png"), pixels, strict=True):
        Image.fromarray(each).save(here / name)
        (there / "of birds" / name).write_bytes((here / name).read_bytes())
    (here / "damaged.png").write_bytes(b"nothing")
    (there / "damaged.png").write_bytes(b"nothing")
    rows = {}
    for folder in (there, here):
        output = tmp_path / "p.csv"
        call("predict", f"--model={exports}/pth", f"--images={folder}", f"--output={output}")
        lines = output.read_text().splitlines()[1:]
        rows[folder] = {line.partition(",")[0]: line.partition(",")[2] for line in lines}
    found = {path.rpartition("/")[2]: row for path, row in rows[there].items()}
    assert found == {path.rpartition("/")[2]: row for path, row in rows[here].items()}
    assert f"{there}/of birds/a tit.png" in rows[there]
    assert found["damaged.png"].startswith(",,,")
    (result,) = prediction.open_model(f"{exports}/orbax")([f"{there}/of birds/öwl.png"])
    assert found["öwl.png"].startswith(f"{result.classes[0]},{result.probabilities[0]}"[:10])


@pytest.mark.parametrize("name", ["absent.safetensors", "exports", "both.pth"])
def test_what_is_wrong_in_a_bucket_is_told_in_one_line(bucket, exports, name):
    said = {
        "absent.safetensors": "does not exist; give a file that does",
        "exports": "is neither the directory of a run nor an export",
        "both.pth": r"holds 2 networks \(model, ema\); say which, such as both.pth#ema",
    }
    with pytest.raises(UserError, match=said[name]) as error:
        named_network.open_network(f"{bucket[0]}/{name}", print)
    assert f"{bucket[0]}/{name}" in str(error.value)
    assert "\n" not in str(error.value)
