"""Networks that others publish weights for, against timm's and torchvision's own code.

Their weights give us their logits. What we export of them is theirs bit for bit, so that the way
back holds, too.
"""

import dataclasses

import numpy as np
import pytest
import torch
from torch.utils import flop_counter

from cone_jax import models
from cone_jax.interop import importing, layouts, state_dict
from cone_jax.models import deit
from tests.models import random_variables, timm_oracle, torch_reference
from tests.models.test_torch_parity import load, torch_logits

# parameters of a network with 1000 classes, multiply-accumulates at 224 px
PUBLISHED = {
    "deit_small": (22_050_664, 4_598_882_304),
    "deit_base": (86_567_656, 17_563_828_224),
    "vit_b_16": (86_567_656, 17_563_828_224),
    "vit_b_32": (88_224_232, 4_409_186_304),
    "convnext_tiny": (28_589_128, 4_455_531_264),
    "convnext_small": (50_223_688, 8_683_712_256),
    "efficientnet_b0": (5_288_548, 385_814_752),
    "resnet26": (15_995_176, 2_342_256_640),
}
HEAD = models.Projection(hidden=32, dim=8)


def tensors_of(reference):
    return {name: value.numpy() for name, value in reference.state_dict().items()}


def check(encoder, reference, size, layout):
    """Weights of the reference in our network; returns our variables."""
    shapes = models.abstract_variables(encoder, size)
    tensors = tensors_of(reference)
    variables, report = importing.from_tensors(tensors, encoder, shapes, source="theirs")
    assert report.complete
    assert report.layout == layout
    assert all("num_batches_tracked" in name for name in report.ignored)
    images = random_variables.images(size)
    ours, theirs = (
        random_variables.logits(encoder, variables, images),
        torch_logits(reference, images),
    )
    assert np.std(ours[0] - ours[1]) > 1e-3  # the logits depend on the images
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    return variables


@pytest.mark.parametrize("name", PUBLISHED)
def test_timms_weights_give_timms_logits_and_come_back_bit_for_bit(name):
    size = {"image_size": 64} if name in deit.VARIANTS else {}
    reference = timm_oracle.from_timm(name, **({"img_size": 64} if size else {}))
    encoder = models.create(name, 7, projection=None, **size)
    # ResNets have one name in both libraries, and the convolutions' networks torchvision's first.
    variables = check(encoder, reference, 64, "torchvision" if name == "resnet26" else "timm")
    come_back(encoder, variables, reference, "timm" if name != "resnet26" else "torchvision")


def come_back(encoder, variables, reference, layout):
    exported = state_dict.to_state_dict(encoder, variables, layout)
    theirs = {k: v for k, v in tensors_of(reference).items() if "num_batches" not in k}
    assert exported.keys() == theirs.keys()
    assert all(np.array_equal(exported[key], theirs[key]) for key in theirs)


@pytest.mark.parametrize("name", ["convnext_tiny", "efficientnet_b0"])
def test_torchvisions_weights_give_its_logits_and_come_back_bit_for_bit(name):
    reference = timm_oracle.from_torchvision(name)
    encoder = models.create(name, 7, projection=None)
    variables = check(encoder, reference, 64, "torchvision")
    assert layouts.available(encoder)[0] == "torchvision"
    come_back(encoder, variables, reference, "torchvision")


@pytest.mark.parametrize(("name", "width"), [("convnext_tiny", 768), ("efficientnet_b0", 1280)])
def test_convolutional_networks_with_the_cifar_stem_and_the_methods_head(name, width):
    head = torch_reference.projection_head(width, 32, 8, 7)
    reference = timm_oracle.from_timm(name, head=head)
    if name == "efficientnet_b0":
        for conv in (reference.conv_stem, reference.blocks[1][0].conv_dw):
            conv.stride = (1, 1)
    else:
        reference.stem[0] = torch.nn.Conv2d(3, 96, 3, 1, 1)
    encoder = models.create(name, 7, stem="cifar", projection=HEAD)
    variables = check(encoder, reference, 32, "timm")
    come_back(encoder, variables, reference, "timm")


@pytest.fixture
def shallow(monkeypatch):
    """Two blocks: what the other tests compare does not depend on how many there are."""
    for name, variant in deit.VARIANTS.items():
        monkeypatch.setitem(deit.VARIANTS, name, dataclasses.replace(variant, depth=2))


@pytest.mark.parametrize(("name", "patch"), [("deit_small", 4), ("deit_base", 4), ("vit_b_32", 8)])
def test_transformers_with_small_patches_and_the_methods_head(name, patch, shallow):
    encoder = models.create(name, 7, stem="cifar", projection=HEAD)
    width = deit.VARIANTS[name].width
    head = torch_reference.projection_head(width, 32, 8, 7)
    options = {"patch_size": patch, "img_size": 32, "depth": 2}
    reference = timm_oracle.from_timm(name, head=head, **options)
    variables = check(encoder, reference, 32, "timm")
    load(reference, state_dict.to_state_dict(encoder, variables))


def test_torchvisions_transformer_is_read(shallow):
    reference = timm_oracle.from_torchvision("vit_b_16", image_size=64, patch_size=16, num_layers=2)
    encoder = models.create("vit_b_16", 7, projection=None, image_size=64)
    check(encoder, reference, 64, "torchvision")


class TestDistilled:
    """DeiT's second token: two classifiers of theirs are one of ours."""

    def pair(self, **options):
        reference = timm_oracle.from_timm("deit_small", distilled=True, img_size=64, depth=2)
        encoder = models.create("deit_small", 7, image_size=64, distilled=True, **options)
        return encoder, reference

    def test_both_directions(self, shallow):
        encoder, reference = self.pair(projection=None)
        variables = check(encoder, reference, 64, "timm")
        images = random_variables.images(64)
        expected = torch_logits(reference, images)
        exported = state_dict.to_state_dict(encoder, variables)
        assert not np.array_equal(exported["head.weight"], exported["head_dist.weight"])
        other = timm_oracle.from_timm("deit_small", distilled=True, img_size=64, depth=2)
        torch.nn.init.zeros_(other.norm.weight)
        load(other, exported)
        np.testing.assert_allclose(torch_logits(other, images), expected, rtol=1e-4, atol=1e-4)

    def test_positions_of_another_resolution(self, shallow):
        _, reference = self.pair(projection=None)
        larger = models.create("deit_small", 7, image_size=96, distilled=True, projection=None)
        shapes = models.abstract_variables(larger, 96)
        loaded, report = importing.from_tensors(
            tensors_of(reference), larger, shapes, source="theirs"
        )
        assert report.resized == ("params/backbone/position",)
        old = reference.state_dict()["pos_embed"]
        grid = old[:, 2:].reshape(1, 4, 4, 384).permute(0, 3, 1, 2)
        grid = torch.nn.functional.interpolate(grid, (6, 6), mode="bicubic")
        expected = torch.cat((old[:, :2], grid.flatten(2).transpose(1, 2)), 1)
        np.testing.assert_allclose(loaded["params"]["backbone"]["position"], expected, atol=1e-5)

    def test_a_network_without_the_token_says_what_to_set(self, shallow):
        _, reference = self.pair()
        encoder = models.create("deit_small", 7, image_size=64, projection=None)
        shapes = models.abstract_variables(encoder, 64)
        with pytest.raises(
            importing.IncompleteImport,
            match=r"like deit_small with .*distilled True",
        ):
            importing.from_tensors(tensors_of(reference), encoder, shapes, source="theirs")

    def test_the_methods_head_sees_both_tokens(self, shallow):
        encoder, _ = self.pair(projection=HEAD)
        shapes = models.abstract_variables(encoder, 64)
        assert shapes["params"]["projection"]["linear1"]["kernel"].shape == (2 * 384, 32)
        names = set(layouts.names(encoder, shapes, "timm").values())
        assert {"head.0.weight", "head.4.bias", "dist_token"} < names
        assert not any("head_dist" in name for name in names)

    def test_parameters_are_the_published_integer_but_for_the_second_bias(self):
        encoder = models.create("deit_small", 1000, projection=None, distilled=True)
        assert models.parameters(encoder, 224) == 22_436_432 - 1000


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_are_the_published_integers_and_what_pytorch_counts(name):
    encoder = models.create(name, 1000, projection=None)
    with torch.device("meta"):
        reference = timm_oracle.timm.create_model(timm_oracle.TIMM[name]).eval()
        images = torch.zeros(1, 3, 224, 224)
    with flop_counter.FlopCounterMode(display=False) as counted, torch.inference_mode():
        reference(images)
    theirs = (sum(p.numel() for p in reference.parameters()), counted.get_total_flops() // 2)
    ours = (models.parameters(encoder, 224), models.multiply_accumulates(encoder, 224))
    assert ours == theirs == PUBLISHED[name]
