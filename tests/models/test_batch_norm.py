"""BatchNorm against PyTorch, Flax and float64, on one device and on eight."""

import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cone_jax import distributed
from cone_jax.errors import UserError
from cone_jax.models.layers import BatchNorm, Layers

pytestmark = pytest.mark.optimised

both_forms = pytest.mark.parametrize("for_cpu", [False, True])


def draw(shape, seed=0, offset=0.5):
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=shape) * 2 + offset).astype(np.float32)
    dy = rng.normal(size=shape).astype(np.float32)
    scale, bias, mean = (rng.normal(size=shape[-1]).astype(np.float32) for _ in range(3))
    var = rng.uniform(0.5, 2, shape[-1]).astype(np.float32)
    variables = {
        "params": {"scale": scale, "bias": bias},
        "batch_stats": {"mean": mean, "var": var},
    }
    return x, dy, variables


@functools.partial(jax.jit, static_argnums=0)
def gradients(module, variables, x, dy):
    """Output, new statistics, and gradients of x, scale and bias for the cotangent `dy`."""

    def run(params, x):
        y, updated = module.apply({**variables, "params": params}, x, mutable=["batch_stats"])
        return y, updated["batch_stats"]

    y, vjp, statistics = jax.vjp(run, variables["params"], x, has_aux=True)
    d_params, dx = vjp(jnp.asarray(dy, y.dtype))
    return y, statistics, dx, d_params["scale"], d_params["bias"]


def float64_gradients(x, dy, scale, bias):
    """By the textbook, from the derivative of each step."""
    x, dy, scale, bias = (np.asarray(a, np.float64) for a in (x, dy, scale, bias))
    axes = tuple(range(x.ndim - 1))
    n = x.size // x.shape[-1]
    mean, var = x.mean(axes), x.var(axes)
    hat = (x - mean) / np.sqrt(var + 1e-5)
    d_hat = dy * scale
    d_var = (d_hat * (x - mean)).sum(axes) * -0.5 * (var + 1e-5) ** -1.5
    d_mean = -d_hat.sum(axes) / np.sqrt(var + 1e-5)
    dx = d_hat / np.sqrt(var + 1e-5) + d_var * 2 * (x - mean) / n + d_mean / n
    return hat * scale + bias, dx, (dy * hat).sum(axes), dy.sum(axes)


@both_forms
@pytest.mark.parametrize("shape", [(4, 5, 3, 6), (16, 7)])
def test_training_equals_pytorch_statistics_included(shape, for_cpu):
    x, dy, variables = draw(shape)
    parameters, statistics = variables["params"], variables["batch_stats"]
    kind = torch.nn.BatchNorm2d if len(shape) == 4 else torch.nn.BatchNorm1d
    reference = kind(shape[-1], momentum=0.3)
    tensors = {
        "weight": parameters["scale"], "bias": parameters["bias"],
        "running_mean": statistics["mean"], "running_var": statistics["var"],
    }  # fmt: skip
    reference.load_state_dict({k: torch.tensor(v) for k, v in tensors.items()}, strict=False)
    first = torch.tensor(np.moveaxis(x, -1, 1), requires_grad=True)
    y = reference(first)
    y.backward(torch.tensor(np.moveaxis(dy, -1, 1)))
    ours = gradients(BatchNorm(train=True, momentum=0.7, for_cpu=for_cpu), variables, x, dy)
    expected = (
        np.moveaxis(y.detach().numpy(), 1, -1),
        {"mean": reference.running_mean.numpy(), "var": reference.running_var.numpy()},
        np.moveaxis(first.grad.numpy(), 1, -1),
        reference.weight.grad.numpy(),
        reference.bias.grad.numpy(),
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), ours, expected)


@both_forms
@pytest.mark.parametrize("shape", [(4, 5, 3, 6), (16, 7)])
def test_training_equals_flax_but_for_the_biased_running_variance(shape, for_cpu):
    x, dy, variables = draw(shape)
    stock = nn.BatchNorm(use_running_average=False, momentum=0.9, epsilon=1e-5)
    mine = BatchNorm(train=True, for_cpu=for_cpu)
    ours, theirs = (gradients(m, variables, x, dy) for m in (mine, stock))
    n = x.size // x.shape[-1]
    old = 0.9 * variables["batch_stats"]["var"]
    theirs[1]["var"] = old + (theirs[1]["var"] - old) * n / (n - 1)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), ours, theirs)


@settings(deadline=None, max_examples=25)
@given(st.sampled_from([(8, 3), (6, 2, 1, 3)]), st.floats(-1000, 1000), st.integers(0, 99))
def test_values_far_from_zero_are_as_exact_once_the_running_mean_is_there(shape, offset, seed):
    x, dy, variables = draw(shape, seed, offset)
    variables["batch_stats"]["mean"] += np.float32(offset)
    exact = float64_gradients(x, dy, variables["params"]["scale"], variables["params"]["bias"])
    y, _, *gradient = gradients(BatchNorm(train=True), variables, x, dy)
    for one, truth in zip((y, *gradient), exact, strict=True):
        # The inputs have 24 bits: 6e-5 of absolute resolution at 1000.
        np.testing.assert_allclose(one, truth, atol=2e-3 * (1 + np.abs(truth).max()))


@settings(deadline=None, max_examples=25)
@given(st.sampled_from([(8, 3), (6, 2, 1, 3)]), st.floats(-1000, 1000), st.integers(0, 99))
def test_on_a_cpu_values_far_from_zero_are_as_exact_in_the_first_step(shape, offset, seed):
    x, dy, variables = draw(shape, seed, offset)
    x[..., 0] -= np.float32(offset)  # one channel near 0 among others far from it
    exact = float64_gradients(x, dy, variables["params"]["scale"], variables["params"]["bias"])
    y, _, *gradient = gradients(BatchNorm(train=True, for_cpu=True), variables, x, dy)
    for one, truth in zip((y, *gradient), exact, strict=True):
        np.testing.assert_allclose(one, truth, atol=2e-3 * (1 + np.abs(truth).max()))


@pytest.mark.parametrize("offset", [0, 5, 15, 19, 25, 100])
def test_on_a_cpu_gradients_are_as_close_to_float64_as_those_of_flax(offset):
    x, dy, variables = draw((64, 16, 16, 16), 1, offset)
    exact = float64_gradients(x, dy, variables["params"]["scale"], variables["params"]["bias"])
    stock = nn.BatchNorm(use_running_average=False, epsilon=1e-5)
    worst = []
    for module in (BatchNorm(train=True, for_cpu=True), stock):
        y, _, *gradient = gradients(module, variables, x, dy)
        pairs = zip((y, *gradient), exact, strict=True)
        worst.append(max(np.abs(a - b).max() / np.abs(b).max() for a, b in pairs))
    assert worst[0] < max(2 * worst[1], 5e-7)
    assert worst[0] < 2e-5


def test_on_a_cpu_one_activation_is_written_besides_the_results():
    module = Layers(train=True, platform="cpu").batch_norm()
    x, dy, variables = draw((16, 16, 16, 32))

    def run(variables, x, dy):
        def network(params, x):
            y, updated = module.apply({**variables, "params": params}, x, mutable=["batch_stats"])
            return nn.relu(y), updated

        y, vjp, updated = jax.vjp(network, variables["params"], x, has_aux=True)
        return y, vjp(dy), updated

    program = jax.jit(run).lower(variables, x, dy).compile().as_text()
    always_run = program[program.index("\nENTRY") :]
    written = re.findall(r" = f32\[(?:1,)?16,16,16,32\]\S* fusion\(", always_run)
    # y, dx, and the cotangent behind ReLU. Sums of what is no array in memory write two more.
    assert len(written) == 3


def test_evaluation_uses_the_running_statistics_and_leaves_them():
    x, _, variables = draw((4, 6))
    y = BatchNorm(train=False).apply(variables, x)
    mean, var = variables["batch_stats"]["mean"], variables["batch_stats"]["var"]
    expected = (x - mean) / np.sqrt(var + 1e-5) * variables["params"]["scale"]
    np.testing.assert_allclose(y, expected + variables["params"]["bias"], atol=1e-5)


@both_forms
def test_bfloat16_keeps_float32_statistics(for_cpu):
    x, dy, variables = draw((8, 4, 4, 6))
    low, full = (
        gradients(BatchNorm(train=True, dtype=dtype, for_cpu=for_cpu), variables, x, dy)
        for dtype in (jnp.bfloat16, jnp.float32)
    )
    assert low[0].dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(low[1])} == {jnp.dtype("float32")}
    # The statistics of rounded inputs; rounding them as well would cost 0.4 %.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3), low[1], full[1]
    )
    np.testing.assert_allclose(low[2].astype(np.float32), full[2], atol=0.05)


def test_running_statistics_pass_no_gradient():
    x, _, variables = draw((8, 6))

    def statistics(x):
        _, updated = BatchNorm(train=True).apply(variables, x, mutable=["batch_stats"])
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(updated))

    assert not np.any(jax.grad(statistics)(x))


@both_forms
def test_a_single_value_a_channel_is_no_division_by_zero(for_cpu):
    x, dy, variables = draw((1, 6))
    module = BatchNorm(train=True, for_cpu=for_cpu)
    for leaf in jax.tree.leaves(gradients(module, variables, x, dy)):
        assert np.all(np.isfinite(leaf))


@both_forms
@pytest.mark.parametrize("offset", [0.5, 100])
def test_a_batch_split_over_devices_has_global_statistics(offset, for_cpu):
    x, dy, variables = draw((16, 3, 3, 5), offset=offset)
    variables["batch_stats"]["mean"] += np.float32(offset)
    mesh = distributed.make_mesh()
    assert mesh.size == 8
    module = BatchNorm(train=True, for_cpu=for_cpu)
    rows = distributed.to_devices(mesh, {"x": x, "dy": dy})
    replicated = jax.device_put(variables, distributed.replicated(mesh))
    shared = gradients(module, replicated, rows["x"], rows["dy"])
    alone = gradients(module, variables, x, dy)
    assert len(shared[0].sharding.device_set) == 8
    # The mean is known to one part in 2 ** 24.
    atol = 1e-5 + 2e-6 * offset
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=atol), shared, alone)


@both_forms
def test_groups_give_every_device_its_own_statistics(for_cpu):
    x, dy, variables = draw((16, 3, 3, 5))
    mesh = distributed.make_mesh()
    rows = distributed.to_devices(mesh, {"x": x, "dy": dy})
    replicated = jax.device_put(variables, distributed.replicated(mesh))
    y, statistics, dx, d_scale, d_bias = gradients(
        BatchNorm(train=True, groups=8, for_cpu=for_cpu), replicated, rows["x"], rows["dy"]
    )
    alone = BatchNorm(train=True, for_cpu=for_cpu)
    slices = [gradients(alone, variables, x[i : i + 2], dy[i : i + 2]) for i in range(0, 16, 2)]
    parts = list(zip(*slices, strict=True))
    np.testing.assert_allclose(y, np.concatenate(parts[0]), atol=1e-5)
    np.testing.assert_allclose(dx, np.concatenate(parts[2]), atol=1e-5)
    for name in ("mean", "var"):
        mean_over_slices = np.mean([part[name] for part in parts[1]], axis=0)
        np.testing.assert_allclose(statistics[name], mean_over_slices, atol=1e-5)
    np.testing.assert_allclose(d_scale, sum(parts[3]), atol=1e-4)
    np.testing.assert_allclose(d_bias, sum(parts[4]), atol=1e-4)


def test_groups_that_do_not_divide_the_batch_are_refused():
    x, _, variables = draw((16, 5))
    with pytest.raises(UserError, match=r"bn_groups \(3\) must divide the batch \(16\)"):
        BatchNorm(train=True, groups=3).apply(variables, x, mutable=["batch_stats"])
