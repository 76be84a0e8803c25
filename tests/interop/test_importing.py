"""Weights of other programs find their places, and every name is accounted for."""

import dataclasses

import jax
import numpy as np
import pytest
import safetensors.numpy
import torch

from cone_jax import interop, models
from cone_jax.errors import UserError
from cone_jax.interop import importing, layouts, state_dict
from tests.models import random_variables, torch_reference

HEAD = models.Projection(hidden=12, dim=6)


def small(classes=5, width=4, **options):
    options = {"projection": HEAD, "stem": "cifar"} | options
    encoder = models.create("resnet8", classes, width=width, **options)
    return encoder, random_variables.draw(encoder, 8)


class Released(torch.nn.Module):
    """The released program's modules: two encoders and a bank."""

    def __init__(self):
        super().__init__()
        self.encoder_q, self.encoder_k = Encoder(), Encoder()
        self.register_buffer("queue", torch.zeros(6, 8))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))
        self.register_buffer("queue_label_prob", torch.zeros(5, 8))
        self.register_buffer("queue_label", torch.zeros(8, dtype=torch.long))


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch_reference.create("resnet8", torch.nn.Identity(), cifar=True, width=4)
        self.head = torch.nn.Module()
        *layers, self.fc = torch_reference.projection_head(16, 12, 6, 5)
        self.head.head = torch.nn.Sequential(*layers)

    def forward(self, x):
        return self.fc(self.head.head(self.net(x)))


@pytest.fixture(scope="module")
def released():
    torch.manual_seed(0)
    model = Released().eval()
    for name, tensor in model.state_dict().items():
        if name.endswith(("running_mean", "running_var")):
            tensor.uniform_(0.5, 1.5)
    return model


def check_logits(released, encoder, variables):
    images = random_variables.images(8)
    with torch.inference_mode():
        expected = released.encoder_q(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()))
    ours = random_variables.logits(encoder, variables, images)
    np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_released_checkpoint_gives_the_query_networks_logits(released, tmp_path):
    path = tmp_path / "cone.pth"
    tensors = {f"module.{name}": value for name, value in released.state_dict().items()}
    torch.save({"model": tensors, "optimizer": {"state": {}}, "epoch": 100}, path)
    encoder, variables = small()
    loaded, report = interop.load_initial(path, encoder, variables)
    assert report.layout == "cone"
    assert report.complete
    assert {name.split(".")[1] for name in report.ignored} == {
        "encoder_q", "encoder_k", "queue", "queue_ptr", "queue_label", "queue_label_prob"
    }  # fmt: skip
    assert all(
        name.endswith("num_batches_tracked") for name in report.ignored if "encoder_q" in name
    )
    check_logits(released, encoder, loaded)


def test_the_query_network_is_taken_whatever_the_order_of_names(released, tmp_path):
    path = tmp_path / "cone.safetensors"  # sorts its names: encoder_k comes first
    safetensors.numpy.save_file({k: v.numpy() for k, v in released.state_dict().items()}, path)
    encoder, variables = small()
    loaded, _ = interop.load_initial(path, encoder, variables)
    check_logits(released, encoder, loaded)


def save(tmp_path, tensors):
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(tensors, path)
    return path


@pytest.mark.parametrize("prefix", ["", "module.", "backbone.model."])
def test_prefixes_are_found_out(tmp_path, prefix):
    encoder, variables = small()
    tensors = state_dict.to_state_dict(encoder, variables)
    path = save(tmp_path, {prefix + name: value for name, value in tensors.items()})
    loaded, report = interop.load_initial(path, encoder, jax.tree.map(np.zeros_like, variables))
    jax.tree.map(np.testing.assert_array_equal, loaded, variables)
    assert len(report.mapped) == len(tensors)


def test_another_number_of_classes_starts_the_classifier_anew_and_says_so(tmp_path):
    encoder, variables = small(classes=5)
    path = save(tmp_path, state_dict.to_state_dict(encoder, variables))
    other, fresh = small(classes=3)
    loaded, report = interop.load_initial(path, other, fresh)
    assert report.reinitialised == ("params/classifier/bias", "params/classifier/kernel")
    assert "2 reinitialised" in report.summary()
    for leaf in ("kernel", "bias"):
        np.testing.assert_array_equal(
            loaded["params"]["classifier"][leaf], fresh["params"]["classifier"][leaf]
        )
    jax.tree.map(
        np.testing.assert_array_equal, loaded["params"]["backbone"], variables["params"]["backbone"]
    )


def test_a_plain_classifier_for_a_model_with_head_is_refused_unless_told(tmp_path):
    plain, variables = small(projection=None)
    path = save(tmp_path, state_dict.to_state_dict(plain, variables))
    encoder, fresh = small()
    with pytest.raises(interop.IncompleteImport, match=r"missing \(.*init_strict") as caught:
        interop.load_initial(path, encoder, fresh)
    report = caught.value.report
    assert "\n" not in str(caught.value)
    assert len(report.unexpected) == 2  # fc.weight, fc.bias
    loaded, report = interop.load_initial(path, encoder, fresh, strict=False)
    jax.tree.map(
        np.testing.assert_array_equal, loaded["params"]["backbone"], variables["params"]["backbone"]
    )
    jax.tree.map(
        np.testing.assert_array_equal, loaded["params"]["projection"], fresh["params"]["projection"]
    )


def test_every_name_is_accounted_for(tmp_path):
    encoder, variables = small(width=6, classes=4)
    tensors = state_dict.to_state_dict(encoder, variables)
    del tensors["layer2.0.conv1.weight"]
    tensors["surplus"] = np.zeros(2, np.float32)
    tensors["bn1.num_batches_tracked"] = np.zeros((), np.int64)
    path = save(tmp_path, tensors)
    other, fresh = small()  # another width and number of classes
    with pytest.raises(interop.IncompleteImport) as caught:
        interop.load_initial(path, other, fresh, strict=False)
    report = caught.value.report
    theirs = [name for _, name in report.mapped] + [*report.unexpected, *report.ignored]
    ours = [name for name, _ in report.mapped] + [*report.reinitialised, *report.missing]
    ours += [name.partition(" ")[0] for name in report.mismatched]
    paths = ["/".join(path) for path in layouts.names(other, fresh, "torchvision")]
    used = set(tensors) - set(theirs)
    assert sorted(ours) == sorted(paths)
    assert len(theirs) == len(set(theirs))
    # What is neither mapped nor left over is what did not fit.
    assert len(used) == len(report.mismatched) + len(report.reinitialised)
    assert report.missing == ("params/backbone/layer2_0/conv1/kernel",)
    assert report.unexpected == ("surplus",)
    assert any("(3, 3, 3, 6), not (3, 3, 3, 4)" in line for line in report.mismatched)
    lines = report.table().splitlines()
    assert len(lines) == 1 + len(ours) + len(report.unexpected) + len(report.ignored)
    assert sum(line.startswith("missing") for line in lines) == 1


def test_a_file_of_another_network_is_named_as_such(tmp_path):
    path = save(tmp_path, {"encoder.layer.0.weight": np.zeros(3, np.float32)})
    with pytest.raises(UserError, match=r"no tensor of resnet8; its first names are encoder.layer"):
        interop.load_initial(path, *small())


def test_the_authors_shufflenet_is_recognised():
    reference = torch_reference.create(
        "shufflenet_v2", torch.nn.Linear(1024, 5, bias=False), channel_order="authors"
    )
    tensors = {f"module.{name}": value.numpy() for name, value in reference.state_dict().items()}
    encoder = models.create("shufflenet_v2", 5, projection=None)
    shapes = models.abstract_variables(encoder, 64)
    with pytest.raises(UserError, match=r"looks like shufflenet_v2 with .*channel_order 'authors'"):
        importing.from_tensors(tensors, encoder, shapes, source="release")


def test_positions_of_another_resolution_are_interpolated(tmp_path):
    source = models.create("deit_tiny", 4, projection=None, image_size=48)
    variables = random_variables.draw(source, 48)
    path = save(tmp_path, state_dict.to_state_dict(source, variables))
    target = models.create("deit_tiny", 4, projection=None, image_size=80)
    loaded, report = interop.load_initial(path, target, random_variables.draw(target, 80))
    assert report.resized == ("params/backbone/position",)
    old = torch.from_numpy(variables["params"]["backbone"]["position"])
    grid = old[:, 1:].reshape(1, 3, 3, 192).permute(0, 3, 1, 2)
    grid = torch.nn.functional.interpolate(grid, (5, 5), mode="bicubic")
    expected = torch.cat((old[:, :1], grid.flatten(2).transpose(1, 2)), 1)
    np.testing.assert_allclose(loaded["params"]["backbone"]["position"], expected, atol=1e-5)


# Names that timm 1.0 gives these parameters.
TIMM = {
    "regnetx_400mf": {
        "params/backbone/stem_conv/kernel": "stem.conv.weight",
        "params/backbone/stage1_0/conv1/kernel": "s1.b1.conv1.conv.weight",
        "batch_stats/backbone/stage4_11/bn3/var": "s4.b12.conv3.bn.running_var",
        "params/backbone/stage2_0/downsample_bn/scale": "s2.b1.downsample.bn.weight",
        "params/classifier/bias": "head.fc.bias",
    },
    "mobilenet_v2": {
        "params/backbone/stem_bn/bias": "bn1.bias",
        "params/backbone/block1/project_conv/kernel": "blocks.0.0.conv_pw.weight",
        "params/backbone/block2/expand_conv/kernel": "blocks.1.0.conv_pw.weight",
        "batch_stats/backbone/block5/project_bn/mean": "blocks.2.1.bn3.running_mean",
        "params/backbone/block17/project_conv/kernel": "blocks.6.0.conv_pwl.weight",
        "params/backbone/last_conv/kernel": "conv_head.weight",
        "params/classifier/kernel": "classifier.weight",
    },
    "deit_tiny": {
        "params/backbone/class_token": "cls_token",
        "params/backbone/block11/attention_out/kernel": "blocks.11.attn.proj.weight",
        "params/backbone/norm/scale": "norm.weight",
        "params/classifier/kernel": "head.weight",
    },
}


@pytest.mark.parametrize("name", TIMM)
def test_timm_names(name):
    encoder = models.create(name, 10, projection=None)
    names = layouts.names(encoder, models.abstract_variables(encoder, 224), "timm")
    assert len(set(names.values())) == len(names)
    joined = {"/".join(path): theirs for path, theirs in names.items()}
    assert {ours: joined[ours] for ours in TIMM[name]} == TIMM[name]


def test_classifier_beside_the_head_and_unit_norm_have_places_of_their_own():
    spec = {"projection": HEAD, "stem": "cifar", "width": 4}
    on_features = models.create(
        "resnet8", 5, classifier=models.Classifier(input="features"), **spec
    )
    cosine = models.create("resnet8", 5, classifier=models.Classifier(kind="cosine"), **spec)
    spec["projection"] = dataclasses.replace(HEAD, normalise_input=True, output_batch_norm=True)
    every = models.create("resnet8", 5, predictor=models.Projection(dim=6, hidden=8), **spec)
    for encoder, expected in (
        (
            every,
            {
                "fc.1.weight",
                "fc.4.weight",
                "fc.6.weight",
                "predictor.0.weight",
                "predictor.3.weight",
            },
        ),
        (on_features, {"fc.weight", "projection.0.weight", "projection.3.weight"}),
        (cosine, {"fc.0.weight", "fc.3.weight", "fc.5.weight"}),
    ):
        names = layouts.names(encoder, models.abstract_variables(encoder, 8), "torchvision")
        outside = {n for path, n in names.items() if path[1] != "backbone" and path[-1] == "kernel"}
        assert outside == expected


@pytest.mark.parametrize(("theirs", "ours"), [("resnet14", "resnet8"), ("resnet8", "resnet14")])
def test_a_backbone_that_does_not_fit_is_refused_whatever_the_flag(tmp_path, theirs, ours):
    source = models.create(theirs, 5, stem="cifar", projection=None)
    path = save(tmp_path, state_dict.to_state_dict(source, random_variables.draw(source, 8)))
    target = models.create(ours, 5, stem="cifar", projection=HEAD)
    fresh = random_variables.draw(target, 8)
    with pytest.raises(interop.IncompleteImport) as caught:
        interop.load_initial(path, target, fresh, strict=False)
    message = str(caught.value)
    assert f"does not fit the backbone of {ours}" in message
    assert f"it looks like {theirs} with model.stem 'cifar'" in message
    assert "\n" not in message


@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2", "regnetx_400mf", "deit_tiny"])
def test_a_file_is_recognised_by_its_backbone(name):
    encoder = models.create(name, 7)  # with a head, which does not matter
    shapes = models.abstract_variables(encoder, 224)
    names = layouts.names(encoder, shapes, layouts.available(encoder)[0])
    flat = jax.tree_util.tree_leaves(shapes)
    assert len(flat) == len(names)
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes)
    found = importing.recognise(state_dict.to_state_dict(encoder, zeros))
    assert (found.name, found.stem, found.projection) == (name, "imagenet", None)


@pytest.mark.parametrize("layout", ["timm", "cone_jax"])
@pytest.mark.parametrize("distilled", [False, True])
def test_the_pictures_that_positions_were_learned_for_are_recognised(distilled, layout):
    wanted = {"image_size": 96, **({"distilled": True} if distilled else {})}
    encoder = models.create("deit_tiny", 7, projection=None, **wanted)
    shapes = models.abstract_variables(encoder, 96)
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes)
    found = importing.recognise(state_dict.to_state_dict(encoder, zeros, layout))
    assert dict(found.options) == wanted


def test_the_width_of_a_resnet_and_the_number_of_classes_are_recognised():
    encoder, variables = small(classes=7, projection=None)
    found = importing.recognise(state_dict.to_state_dict(encoder, variables))
    assert (found.name, found.stem, found.num_classes) == ("resnet8", "cifar", 7)
    assert dict(found.options) == {"width": 4}
    assert importing.recognise({"encoder.layer.0.weight": np.zeros(3, np.float32)}) is None


def test_shortcuts_without_parameters_are_named(tmp_path):
    encoder, variables = small(projection=None)
    tensors = state_dict.to_state_dict(encoder, variables)
    path = save(tmp_path, {n: v for n, v in tensors.items() if "downsample" not in n})
    with pytest.raises(UserError, match=r"shortcuts without parameters \(option A"):
        interop.load_initial(path, encoder, variables, strict=False)
