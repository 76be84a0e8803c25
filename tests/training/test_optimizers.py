"""Optimisers against PyTorch's."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from cone_jax import config as config_lib
from cone_jax.errors import UserError
from cone_jax.training import optimizers


def run_ours(settings, start, gradients, rate):
    optimizer = optimizers.create(settings, optax.constant_schedule(rate))
    params = {name: jnp.asarray(value) for name, value in start.items()}
    state = optimizer.init(params)
    for gradient in gradients:
        updates, state = optimizer.update(
            {name: jnp.asarray(value) for name, value in gradient.items()}, state, params
        )
        params = optax.apply_updates(params, updates)
    return params


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("scope", ["all", "exclude_1d"])
@pytest.mark.parametrize("clip_norm", [0.0, 0.5])
def test_sgd_equals_torch(nesterov, scope, clip_norm):
    rng = np.random.default_rng(0)
    start = {"kernel": rng.normal(size=(3, 2)), "bias": rng.normal(size=2)}
    start = {name: value.astype(np.float32) for name, value in start.items()}
    gradients = [
        {name: rng.normal(size=value.shape).astype(np.float32) for name, value in start.items()}
        for _ in range(5)
    ]
    settings = config_lib.default().optimizer
    settings.nesterov, settings.decay_scope, settings.clip_norm = nesterov, scope, clip_norm
    settings.weight_decay = 0.1
    ours = run_ours(settings, start, gradients, rate=0.3)

    params = {name: torch.nn.Parameter(torch.tensor(value)) for name, value in start.items()}
    groups = [
        {"params": [params["kernel"]], "weight_decay": 0.1},
        {"params": [params["bias"]], "weight_decay": 0.1 if scope == "all" else 0.0},
    ]
    theirs = torch.optim.SGD(groups, lr=0.3, momentum=0.9, nesterov=nesterov)
    for gradient in gradients:
        for name, value in gradient.items():
            params[name].grad = torch.tensor(value)
        if clip_norm:
            torch.nn.utils.clip_grad_norm_(params.values(), clip_norm)
        theirs.step()
    for name, value in params.items():
        np.testing.assert_allclose(ours[name], value.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_rate_scales_with_the_batch_unless_told_not_to():
    settings = config_lib.default().optimizer
    assert optimizers.peak_learning_rate(settings, 1024) == pytest.approx(0.4)
    settings.reference_batch = 0
    assert optimizers.peak_learning_rate(settings, 1024) == pytest.approx(0.1)


def test_unknown_optimiser_is_named_with_its_nearest():
    settings = config_lib.default().optimizer
    settings.name = "sgdd"
    with pytest.raises(UserError, match=r"optimizer.name \('sgdd'\).*did you mean 'sgd'"):
        optimizers.create(settings, optax.constant_schedule(0.1))
