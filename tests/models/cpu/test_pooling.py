"""The max-pool for CPUs against XLA's own and against PyTorch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cone_jax.models.cpu import pooling
from cone_jax.models.layers import Layers

pytestmark = pytest.mark.optimised


def values_and_gradient(pool, x):
    y, vjp = jax.vjp(pool, x)
    cotangent = jnp.cos(jnp.arange(y.size, dtype=jnp.float32)).reshape(y.shape)
    return y, vjp(cotangent.astype(y.dtype))[0]


@settings(deadline=None, max_examples=15)  # most of them are a compilation
@given(
    height=st.integers(1, 7),
    width=st.integers(1, 7),
    seed=st.integers(0, 2**16),
    ties=st.booleans(),
)
def test_values_and_gradient_are_those_of_xla(height, width, seed, ties):
    x = np.random.default_rng(seed).normal(size=(2, height, width, 3)).astype(np.float32)
    x = np.round(x).clip(0) if ties else x  # as after a ReLU: most values are equal
    ours = values_and_gradient(pooling.max_pool, x)
    for found, expected in zip(ours, values_and_gradient(Layers().max_pool, x), strict=True):
        # Four windows meet in a corner; their sum may be taken in another order.
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", [(6, 8), (7, 5)])
def test_gradient_is_that_of_pytorch(size):
    x = np.random.default_rng(0).normal(size=(2, *size, 4)).astype(np.float32)
    y, gradient = values_and_gradient(pooling.max_pool, x)
    there = torch.tensor(x.transpose(0, 3, 1, 2), requires_grad=True)
    pooled = torch.nn.functional.max_pool2d(there, 3, 2, 1)
    cotangent = np.cos(np.arange(y.size, dtype=np.float32)).reshape(y.shape)
    pooled.backward(torch.tensor(cotangent.transpose(0, 3, 1, 2)))
    np.testing.assert_array_equal(y.transpose(0, 3, 1, 2), pooled.detach().numpy())
    np.testing.assert_allclose(gradient.transpose(0, 3, 1, 2), there.grad.numpy(), atol=1e-6)


def test_half_precision_keeps_its_type():
    x = jnp.ones((1, 4, 4, 2), jnp.bfloat16)
    y, gradient = values_and_gradient(pooling.max_pool, x)
    assert y.dtype == gradient.dtype == jnp.bfloat16
