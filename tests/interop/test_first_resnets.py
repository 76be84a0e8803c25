"""ResNets of Caffe, Keras and Detectron2: their names are read, and their stride is not guessed."""

import copy
import re

import numpy as np
import pytest
import safetensors.numpy
import torch
from torch.nn import BatchNorm2d

from cone_jax import models
from cone_jax.config import load_recipe
from cone_jax.errors import UserError
from cone_jax.interop import files, first_resnets, importing, state_dict
from cone_jax.sweeps import tables
from cone_jax.training import named_network, pretrained
from tests.models import random_variables, torch_reference

pytestmark = pytest.mark.optimised

WIDTH, CLASSES = 16, 7


@pytest.fixture(scope="module")
def reference():
    """In PyTorch, the stride in the first 1x1 convolution; of RGB pictures."""
    network = torch_reference.create("resnet50", torch.nn.Linear(WIDTH * 32, CLASSES), width=WIDTH)
    for stage in (network.layer2, network.layer3, network.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    encoder = models.create("resnet50", CLASSES, projection=None, width=WIDTH)
    drawn = state_dict.to_state_dict(encoder, random_variables.draw(encoder, 64))
    network.load_state_dict({k: torch.from_numpy(v) for k, v in drawn.items()}, strict=False)
    return network.eval()


def tensors_of(network, *, folded=False):
    """As torchvision names them; `folded`: norms that only scale and shift."""
    tensors = {k: v.numpy().copy() for k, v in network.state_dict().items() if "num_b" not in k}
    if not folded:
        return tensors
    for name in [name for name in tensors if name.endswith("running_var")]:
        norm = name.removesuffix(".running_var")
        factor = tensors[f"{norm}.weight"] / np.sqrt(tensors[name] + 1e-5)
        tensors[f"{norm}.bias"] -= tensors[f"{norm}.running_mean"] * factor
        tensors[f"{norm}.weight"] = factor
        tensors[name] = np.ones_like(factor)
        tensors[f"{norm}.running_mean"] = np.zeros_like(factor)
    return tensors


def parts(name):
    """stage, block, layer (0: the shortcut), whether it is a norm, leaf; stage 0 is the stem."""
    if match := re.fullmatch(r"(conv|bn)1\.(\w+)", name):
        return 0, 0, 1, match[1] == "bn", match[2]
    match = re.fullmatch(r"layer(\d)\.(\d+)\.(conv|bn|downsample\.)(\d)\.(\w+)", name)
    stage, block, kind, number, leaf = match.groups()
    if kind == "downsample.":
        return int(stage), int(block), 0, number == "1", leaf
    return int(stage), int(block), int(number), kind == "bn", leaf


KERAS = {
    "weight": "gamma",
    "bias": "beta",
    "running_mean": "moving_mean",
    "running_var": "moving_variance",
}


def bgr(name, value):
    return value[:, ::-1] if name == "conv1.weight" else value


def as_keras(network, name_layer):
    """Kernels [height, width, in, out], BGR, and a bias before every norm."""
    made, rng = {}, np.random.default_rng(0)
    for name, value in tensors_of(network).items():
        if name.startswith("fc."):
            leaf = "kernel" if value.ndim == 2 else "bias"
            made[f"{name_layer(None)}/{leaf}"] = value.T
            continue
        stage, block, layer, is_norm, leaf = parts(name)
        place = name_layer((stage, block, layer, is_norm))
        if is_norm:
            made[f"{place}/{KERAS[leaf]}"] = value
        else:
            made[f"{place}/kernel"] = bgr(name, value).transpose(2, 3, 1, 0)
            made[f"{place}/bias"] = rng.normal(size=len(value)).astype(np.float32)
    for name in [name for name in made if name.endswith("moving_mean")]:
        norm = name.removesuffix("/moving_mean")
        convolution = norm[:-2] + "conv" if norm.endswith("_bn") else norm.replace("bn", "res", 1)
        convolution = {"bn_conv1": "conv1"}.get(norm, convolution)
        made[name] = made[name] + made[f"{convolution}/bias"]
    return made


def keras_layer(place):
    if place is None:
        return "predictions"
    stage, block, layer, is_norm = place
    kind = "bn" if is_norm else "conv"
    return f"conv{stage + 1}_block{block + 1}_{layer}_{kind}" if stage else f"conv1_{kind}"


def caffe_layer(place):
    if place is None:
        return "fc1000"
    stage, block, layer, is_norm = place
    if not stage:
        return "bn_conv1" if is_norm else "conv1"
    branch = f"2{'abc'[layer - 1]}" if layer else "1"
    return f"{'bn' if is_norm else 'res'}{stage + 1}{'abcdef'[block]}_branch{branch}"


def as_caffe2(network):
    made = {}
    for name, value in tensors_of(network, folded=True).items():
        if name.startswith("fc."):
            made["fc1000_w" if value.ndim == 2 else "fc1000_b"] = value
            continue
        stage, block, layer, is_norm, leaf = parts(name)
        branch = f"2{'abc'[layer - 1]}" if layer else "1"
        place = f"res{stage + 1}_{block}_branch{branch}" if stage else "conv1"
        if is_norm and leaf in ("weight", "bias"):
            norm = place if stage else "res_conv1"
            made[f"{norm}_bn_{'s' if leaf == 'weight' else 'b'}"] = value
        elif not is_norm:
            made[f"{place}_w"] = bgr(name, value)
    return made


def as_detectron2(network, prefix="", *, of_caffe=True):
    made = {}
    for name, value in tensors_of(network, folded=of_caffe).items():
        if name.startswith("fc."):
            made[f"{prefix}linear.{name[3:]}"] = value
            continue
        stage, block, layer, is_norm, leaf = parts(name)
        place = f"res{stage + 1}.{block}." if stage else "stem."
        place += f"conv{layer}" if layer else "shortcut"
        made[f"{prefix}{place}{'.norm' * is_norm}.{leaf}"] = bgr(name, value) if of_caffe else value
    return made


FORMS = {
    "Keras": lambda network: as_keras(network, keras_layer),
    "Caffe": lambda network: as_keras(network, caffe_layer),
    "Caffe2": as_caffe2,
    "Detectron2": as_detectron2,
}


def expected_logits(network, images):
    with torch.no_grad():
        return network(torch.from_numpy(images.transpose(0, 3, 1, 2).copy())).numpy()


@pytest.mark.parametrize("form", FORMS)
def test_weights_under_their_own_names_give_pytorchs_logits(reference, tmp_path, form):
    path = tmp_path / "resnet50.safetensors"
    files.write_safetensors(path, FORMS[form](reference), {})
    lines = []
    network = named_network.open_network(str(path), lines.append)
    assert dict(network.encoder.spec.options) == {"stride_in_1x1": True, "width": WIDTH}
    assert "the stride is in the 1x1 convolutions" in lines[-1]
    images = random_variables.images(64)
    if form == "Keras":
        reference = copy.deepcopy(reference)
        for norm in (each for each in reference.modules() if isinstance(each, BatchNorm2d)):
            norm.eps = 1.001e-5
    found = random_variables.logits(network.encoder, network.variables, images)
    np.testing.assert_allclose(found, expected_logits(reference, images), rtol=0, atol=1e-4)
    # Pixels from 0 to 255, less a mean of that size.
    assert network.metadata.std == (1 / 255,) * 3
    assert 0.4 < network.metadata.mean[2] < network.metadata.mean[0] < 0.5


def test_training_takes_over_what_the_names_say_unless_it_is_set(reference, tmp_path):
    path = tmp_path / "keras.safetensors"
    files.write_safetensors(path, FORMS["Keras"](reference), {})
    config, said = load_recipe("folder", "resnet50"), []
    config.init_from = str(path)
    adopted = pretrained.adopt_input(config, "folder:resnet50", tmp_path / "run", said.append)
    assert adopted.model.options.stride_in_1x1 is True
    assert tuple(adopted.data.std) == (1 / 255,) * 3
    assert any("model.options.stride_in_1x1 = True, as" in line for line in said)
    config.model.options.stride_in_1x1 = False
    adopted = pretrained.adopt_input(config, "folder:resnet50", tmp_path / "run", said.append)
    assert adopted.model.options.stride_in_1x1 is False


def test_the_runs_of_a_sweep_take_it_over_too(reference, tmp_path, main, monkeypatch):
    path = tmp_path / "keras.safetensors"
    files.write_safetensors(path, FORMS["Keras"](reference), {})
    begun = []
    monkeypatch.setattr(tables, "fill", lambda definition, runs, *_, **__: begun.extend(runs) or [])
    flags = [f"--config.init_from={path}", "--config.data.path=photos", "--config.data.holdout=0"]
    workdir = f"--workdir={tmp_path / 'folds'}"
    assert main(["sweep", "--sweep=folds:2", "--config=folder:resnet50", *flags, workdir]) == 0
    assert [run.config.model.options.stride_in_1x1 for run in begun] == [True, True]


def load(tensors, **options):
    encoder = models.create("resnet50", CLASSES, projection=None, width=WIDTH, **options)
    empty = models.abstract_variables(encoder, 64)
    return importing.from_tensors(tensors, encoder, empty, source="x.pth", strict=False)


def test_names_that_do_not_say_where_the_stride_is_ask_for_it(reference):
    detector = as_detectron2(reference, "backbone.bottom_up.", of_caffe=False)
    detector["roi_heads.mask_head.predictor.weight"] = np.zeros((2, 2), np.float32)
    with pytest.raises(
        UserError, match=r"has Detectron2's names, whose stride may be in .* True or"
    ):
        load(detector)
    for stride in (True, False):
        _, report = load(detector, stride_in_1x1=stride)
        assert not report.misfits
        assert report.missing == ("params/classifier/bias", "params/classifier/kernel")
    with pytest.raises(UserError, match=r"has Keras's names, whose stride is in .* to True"):
        load(FORMS["Keras"](reference))


def photographs(count, size, seed=0):
    """Pictures whose spectrum falls like that of photographs, divided by their deviation."""
    rng = np.random.default_rng(seed)
    rows, columns = np.fft.fftfreq(size)[:, None], np.fft.fftfreq(size)
    falloff = 1 / np.maximum(np.hypot(rows, columns), 1 / size)
    pink = np.fft.ifft2(np.fft.fft2(rng.normal(size=(count, 1, size, size))) * falloff).real
    tint = np.fft.ifft2(np.fft.fft2(rng.normal(size=(count, 3, size, size))) * falloff).real
    pictures = pink / pink.std() + 0.3 * tint / tint.std()
    return torch.from_numpy((pictures / pictures.std()).astype(np.float32))


def test_a_first_layer_for_pixels_from_0_to_255_is_noticed(reference, tmp_path):
    """Its norm has the statistics of what comes out of it; they are measured here."""
    tensors = tensors_of(reference)
    kernel = torch.from_numpy(tensors["conv1.weight"])
    for scale, is_noticed in ((1.0, False), (0.25, False), (58.0, True)):
        out = torch.nn.functional.conv2d(scale * photographs(8, 96), kernel, stride=2)
        tensors["bn1.running_var"] = out.var((0, 2, 3)).numpy()
        found = first_resnets.translate(tensors)
        assert (found is not None) == is_noticed, scale
    with pytest.raises(UserError, match=r"x.pth\) has torchvision's names and a first layer for p"):
        load(tensors)
    assert load(tensors, stride_in_1x1=False)[1].complete
    path = tmp_path / "converted.safetensors"
    safetensors.numpy.save_file(tensors, path)
    with pytest.raises(UserError, match="a first layer for pixels from 0 to 255"):
        named_network.open_network(str(path), print)
    network = named_network.open_network(str(path), print, {"stride_in_1x1": True})
    assert network.metadata.std == (1 / 255,) * 3


@pytest.mark.parametrize(("suffix", "program"), [(".h5", "Keras"), (".caffemodel", "Caffe")])
def test_files_of_other_programs_are_told_for_what_they_are(tmp_path, suffix, program):
    path = tmp_path / f"resnet50{suffix}"
    path.write_bytes(b"\x89HDF")
    with pytest.raises(UserError, match=rf"is a file of {program}; save its arrays as safetensors"):
        files.read_weights(path)
