"""Reading: what kinds there are, and that nothing in a file is ever executed."""

import os
import pickle
import sys

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


def test_without_pytorch_the_cure_is_named(network, tmp_path, monkeypatch):
    (tmp_path / "model.pth").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match=r"pip install torch .*safetensors"):
        interop.load_initial(tmp_path / "model.pth", *network)
