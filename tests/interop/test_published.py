"""The table of published weights: its rows, its classes, what only looks like one of them."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest
import torch

from cone_jax import models
from cone_jax.errors import UserError
from cone_jax.interop import importing, published, pushing, state_dict
from cone_jax.interop.metadata import ExportMetadata
from cone_jax.training import named_network
from tests.detection import torchvision_oracle  # noqa: F401 - before timm
from tests.interop import published_rows
from tests.models import random_variables
from tests.models.test_torch_parity import torch_logits

import timm  # isort: skip
import timm.data

ROOT = Path(__file__).parents[2]


def test_the_table_is_what_timm_and_torchvision_say():
    written = (ROOT / "cone_jax/interop/published.csv").read_text()
    assert written == published_rows.text()


def test_the_table_of_the_docs_has_the_best_of_each_network():
    rows = [row for row in published.table().values() if row.top1 and "-nc-" not in row.licence]
    best = {
        (row.network, row.id.partition(":")[0]): row for row in sorted(rows, key=lambda r: r.top1)
    }
    wanted = [
        f"| `{row.network}` | `{row.id}` | {row.pixels} "
        f"| {row.top1:.1f} | {'0.5, 0.5' if row.mean[0] == 0.5 else 'ImageNet'} |"
        for row in best.values()
    ]
    lines = (ROOT / "docs/weights.md").read_text().splitlines()
    shown = [line for line in lines if re.match(r"\| `\w+` \| `\w+:", line)]
    assert sorted(shown) == sorted(wanted)


@pytest.mark.parametrize(
    "name", ["tf_efficientnet_b0", "resnetblur50", "resnetaa50", "efficientnet_blur_b0"]
)
def test_networks_that_only_look_alike_are_refused_by_name(name):
    """By their tensors nobody could tell them: timm's have the same names and shapes."""
    plain = re.sub("tf_|_?blur|aa", "", name)
    with torch.device("meta"):
        both = [timm.create_model(each).state_dict() for each in (name, plain)]
    assert {k: v.shape for k, v in both[0].items()} == {k: v.shape for k, v in both[1].items()}
    published.refuse_lookalike(plain, plain, {"img_size": 256, "drop_path_rate": 0.1})
    encoder = models.create(plain, 5, projection=None)
    for source in (f"{name}.pth", f"models/{name}.ra2_in1k", f"hf://timm/{name}.in1k@main"):
        with pytest.raises(UserError, match=r"which has the names .* is a different one"):
            importing.from_tensors({}, encoder, {}, source=source)


def test_classes_are_those_of_imagenet():
    path = Path(timm.data.__file__).with_name("_info") / "imagenet_synsets.txt"
    assert published.wordnet_ids() == tuple(path.read_text().split())
    weights = published_rows.torchvision.models.ResNet50_Weights.IMAGENET1K_V1
    named = zip(published.class_names(), weights.meta["categories"], strict=True)
    assert all(ours.startswith(theirs) for ours, theirs in named)


def test_networks_are_pushed_under_architectures_that_timm_has():
    assert all(map(timm.is_model, pushing.TIMM_NAMES.values()))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet26", {}),
        ("regnetx_400mf", {}),
        ("regnetx_400mf", {"last_width": 384}),
        ("deit_tiny", {}),
        ("deit_tiny", {"distilled": True}),
        ("vit_b_32", {}),
        ("convnext_tiny", {}),
        ("efficientnet_b0", {}),
    ],
)
def test_what_is_pushed_has_the_names_and_shapes_of_timms_network(name, options):
    encoder = models.create(name, 7, projection=None, **options)
    architecture = pushing.timm_name(encoder.spec)
    shapes = models.abstract_variables(encoder, 224)
    zeros = jax.tree.map(lambda leaf: np.broadcast_to(np.float32(0), leaf.shape), shapes)
    layout = pushing._layout(encoder, architecture)
    ours = state_dict.to_state_dict(encoder, zeros, layout)
    with torch.device("meta"):
        theirs = timm.create_model(architecture, num_classes=7).state_dict()
    wanted = {key: tuple(value.shape) for key, value in theirs.items() if "num_batches" not in key}
    assert {key: value.shape for key, value in ours.items()} == wanted


@pytest.mark.parametrize("learned", [64, 96])
def test_a_transformer_is_pushed_with_positions_for_its_pictures(learned, tmp_path):
    """timm's transformers take pictures of one size; one of another size is read back here, too."""
    encoder = models.create("deit_tiny", 5, projection=None, image_size=learned)
    variables = random_variables.draw(encoder, 96)
    data = ExportMetadata(tuple("abcde"), 96, (0.5,) * 3, (0.5,) * 3, origin={"step": 1})
    pushing.write_folder(tmp_path, "me/deit", encoder, variables, data, pushing.Story())
    theirs = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    images = random_variables.images(96)
    expected = random_variables.logits(encoder, variables, images)
    np.testing.assert_allclose(torch_logits(theirs, images), expected, rtol=1e-4, atol=1e-4)
    said = []
    ours = named_network.open_network(str(tmp_path / "model.safetensors"), said.append)
    assert "assumed: ImageNet's classes, ImageNet's mean and std, 96 of 109 pixels" in said[0]
    found = random_variables.logits(ours.encoder, ours.variables, images)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_licences_of_the_table_are_the_hubs():
    assert {row.licence for row in published.table().values()} <= {"", *pushing.LICENCES}
