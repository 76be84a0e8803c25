"""Reading: what kinds there are, and that nothing in a file is ever executed."""

import argparse
import io
import os
import pickle
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import torch

from cone_jax import interop, models
from cone_jax.errors import UserError
from cone_jax.interop import files, state_dict
from cone_jax.workdir.checkpoints import Checkpoints
from tests.models import random_variables


@pytest.fixture(scope="module")
def network():
    encoder = models.create("resnet8", 5, stem="cifar", width=4, projection=None)
    return encoder, random_variables.draw(encoder, 8)


def test_a_run_is_read_at_its_latest_or_a_chosen_checkpoint(network, tmp_path):
    encoder, variables = network
    later = jax.tree.map(lambda value: value + 1, variables)
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        for step, values in ((3, variables), (7, later)):
            state = jax.tree.map(jnp.asarray, {**values, "opt_state": {"count": np.zeros(3)}})
            checkpoints.save(step, state, {}, {})
    zeros = jax.tree.map(np.zeros_like, variables)
    loaded, report = interop.load_initial(tmp_path, encoder, zeros)
    jax.tree.map(np.testing.assert_array_equal, loaded, later)
    assert report.complete
    loaded, _ = interop.load_initial(tmp_path / "checkpoints" / "3", encoder, zeros)
    jax.tree.map(np.testing.assert_array_equal, loaded, variables)


class Payload:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("save", [torch.save, lambda x, p: p.write_bytes(pickle.dumps(x))])
def test_code_in_a_file_is_not_executed(network, tmp_path, save):
    path = tmp_path / "evil.pth"
    save({"conv1.weight": Payload(tmp_path / "executed")}, path)
    with pytest.raises(UserError, match=r"without executing code.*safetensors") as caught:
        interop.load_initial(path, *network)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("kept", [0, 30, 500])
@pytest.mark.parametrize("archive", [True, False])
def test_a_file_that_is_cut_off_is_called_broken_not_dangerous(tmp_path, kept, archive):
    whole = io.BytesIO()
    torch.save({"w": torch.zeros(99)}, whole, _use_new_zipfile_serialization=archive)
    path = tmp_path / "cut.pth"
    path.write_bytes(whole.getvalue()[:kept])
    with pytest.raises(UserError, match=r"cut.pth is .*truncated.*; fetch it again") as caught:
        files.read_weights(path)
    assert "executing" not in str(caught.value)


def test_half_precision_tensors_become_float32(network, tmp_path):
    encoder, variables = network
    tensors = state_dict.to_state_dict(encoder, variables)
    low = {name: value.astype(ml_dtypes.bfloat16) for name, value in tensors.items()}
    safetensors.numpy.save_file(low, tmp_path / "low.safetensors")
    torch.save({n: torch.from_numpy(v).bfloat16() for n, v in tensors.items()}, tmp_path / "low.pt")
    for name in ("low.safetensors", "low.pt"):
        loaded, _ = interop.load_initial(tmp_path / name, encoder, variables)
        for one, exact in zip(jax.tree.leaves(loaded), jax.tree.leaves(variables), strict=True):
            assert one.dtype == np.float32
            np.testing.assert_allclose(one, exact, rtol=2**-8)


@pytest.mark.parametrize("wrapper", ["state_dict", "model"])
def test_wrapped_state_dicts_are_unwrapped(network, tmp_path, wrapper):
    encoder, variables = network
    files.write_torch(tmp_path / "plain.pth", state_dict.to_state_dict(encoder, variables))
    content = torch.load(tmp_path / "plain.pth", weights_only=True)
    torch.save({"epoch": 3, wrapper: {"state_dict": content}}, tmp_path / "wrapped.pth")
    assert files.read_torch(tmp_path / "wrapped.pth").keys() == content.keys()


def test_what_cannot_be_read_is_named(network, tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "broken.safetensors").write_bytes(b"\x10\x00")
    torch.save({"epoch": 3}, tmp_path / "empty.pth")
    (tmp_path / "folder").mkdir()
    for name, message in (
        ("absent.pth", "does not exist"),
        ("notes.txt", r"must be a \.safetensors or \.pth file"),
        ("broken.safetensors", "cannot be read as safetensors"),
        ("empty.pth", "holds no state dict"),
        ("folder", "neither the directory of a run nor an export"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            interop.load_initial(tmp_path / name, *network)
        assert name in str(caught.value)


@pytest.mark.parametrize(
    ("given", "names", "part"),
    [
        ("resnet18", "timm:resnet18.a1_in1k or torchvision:resnet18.IMAGENET1K_V1", "resnet18"),
        ("resnet50.A1_in1k", "timm:resnet50.a1_in1k", "resnet50.a1_in1k"),
        ("TIMM:resnet50.a1_in1k", "timm:resnet50.a1_in1k", "resnet50.a1_in1k"),
        ("mobilenetv2_100.safetensors", "timm:mobilenetv2_100.ra_in1k", "mobilenetv2_100"),
        ("efficientnet-b0.pth", "timm:efficientnet_b0.ra4", "efficientnet_b0"),
        ("resnet50d", "", ""),
        ("birds", "", ""),
    ],
)
def test_a_name_where_a_file_should_be_is_answered_with_published_weights(
    network, tmp_path, given, names, part
):
    with pytest.raises(UserError) as caught:
        interop.load_initial(tmp_path / given, *network)
    said = str(caught.value).partition("does not exist; give a file that does")[2]
    assert said.startswith(f", or weights by name such as {names}" if names else "")
    assert said.endswith(f" (all: --mode=weights --model={part})" if part else "")
    assert bool(said) == bool(names)


@pytest.mark.parametrize("given", ["me/birds", "hf:/me/birds", "hf:me/birds"])
def test_a_repository_where_a_file_should_be_is_told_how_to_write_it(given):
    with pytest.raises(UserError, match=r"give a file that does, or .* as hf://me/birds$"):
        files.read_weights(Path(given))
    with pytest.raises(UserError, match=r"give a file that does$"):
        files.read_weights(Path("docs/birds"))  # below a folder that there is


def test_without_pytorch_the_cure_is_named(network, tmp_path, monkeypatch):
    (tmp_path / "model.pth").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match=r"pip install torch .*safetensors"):
        interop.load_initial(tmp_path / "model.pth", *network)


@pytest.mark.parametrize("suffix", [".th", ".ckpt"])
def test_other_names_of_pytorch_files_are_read(network, tmp_path, suffix):
    encoder, variables = network
    path = tmp_path / f"model{suffix}"
    files.write_torch(path, state_dict.to_state_dict(encoder, variables))
    loaded, report = interop.load_initial(path, encoder, variables)
    assert report.complete
    jax.tree.map(np.testing.assert_array_equal, loaded, variables)


@pytest.mark.parametrize("names", [("model", "model_ema"), ("state_dict", "state_dict_ema")])
def test_a_file_with_two_networks_asks_which(network, tmp_path, names):
    encoder, variables = network
    average = jax.tree.map(lambda value: value + 1, variables)
    tensors = [
        {n: torch.from_numpy(v) for n, v in state_dict.to_state_dict(encoder, each).items()}
        for each in (variables, average)
    ]
    path = tmp_path / "checkpoint.pth"
    optimizer = {"state": {0: {"momentum_buffer": torch.zeros(3)}}, "param_groups": [{"lr": 0.1}]}
    # As torchvision's, timm's and DeiT's programs save it; the first one averages in a wrapper.
    if names[0] == "model":
        tensors[1] = {f"module.{n}": value for n, value in tensors[1].items()}
        tensors[1]["n_averaged"] = torch.tensor(7)
    content = dict(zip(names, tensors, strict=True)) | {"optimizer": optimizer, "epoch": 3}
    content["args"] = argparse.Namespace(lr=0.1, data="imagenet")
    torch.save(content, path)
    with pytest.raises(UserError, match=rf"holds 2 networks \({names[0]}, {names[1]}\)"):
        interop.load_initial(path, encoder, variables)
    for name, expected in zip(names, (variables, average), strict=True):
        loaded, _ = interop.load_initial(f"{path}#{name}", encoder, variables)
        jax.tree.map(np.testing.assert_array_equal, loaded, expected)
    with pytest.raises(UserError, match=r"no state dict 'ema'"):
        interop.load_initial(f"{path}#ema", encoder, variables)


def test_files_that_are_not_weights_are_told_for_what_they_are(network, tmp_path):
    encoder, variables = network
    tensors = state_dict.to_state_dict(encoder, variables)
    whole = safetensors.numpy.save(tensors)
    files.write_torch(tmp_path / "whole.pth", tensors)
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 14186200\n"
    cases = {
        "pointer.safetensors": (pointer, "is a Git LFS pointer"),
        "page.safetensors": (b"<!DOCTYPE html><html><body>404</body></html>", "is a web page"),
        "page.pth": (b"\n <html>Not found</html>", "is a web page"),
        "cut.safetensors": (whole[:-7], f"is truncated: {len(whole) - 7} of {len(whole)} bytes"),
        "cut_header.safetensors": (whole[:40], "is truncated: 40 of"),
        "cut.pth": ((tmp_path / "whole.pth").read_bytes()[:-50], "is truncated"),
        "model.pkl": (pickle.dumps({"a": 1}), "is a pickle, which can execute code"),
        "torch.safetensors": ((tmp_path / "whole.pth").read_bytes(), "is a PyTorch file"),
    }
    for name, (content, message) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=message) as caught:
            interop.load_initial(tmp_path / name, encoder, variables)
        assert name in str(caught.value)
        assert "\n" not in str(caught.value)
    (tmp_path / "whole.safetensors").write_bytes(whole)
    assert interop.load_initial(tmp_path / "whole.safetensors", encoder, variables)[1].complete


def test_a_safetensors_file_may_begin_like_a_pickle(tmp_path):
    """Its first byte is the lowest of the header's length."""
    path = tmp_path / "model.safetensors"
    for length in range(1, 300):
        content = safetensors.numpy.save({"x" * length: np.ones(2, np.float32)})
        if content[0] == 0x80:
            break
    assert content[0] == 0x80
    path.write_bytes(content)
    (values,) = files.read_weights(path).tensors.values()
    np.testing.assert_array_equal(values, np.ones(2, np.float32))
