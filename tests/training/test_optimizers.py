"""Optimisers against PyTorch's."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax.traverse_util import flatten_dict

from cone_jax import models
from cone_jax.config.run_config import load_recipe
from cone_jax.errors import UserError
from cone_jax.interop import layouts
from cone_jax.settings import Model, Optimizer
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
    settings = Optimizer(
        nesterov=nesterov, decay_scope=scope, clip_norm=clip_norm, weight_decay=0.1
    )
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
    assert optimizers.peak_learning_rate(Optimizer(), 1024) == pytest.approx(0.4)
    unscaled = Optimizer(reference_batch=0)
    assert optimizers.peak_learning_rate(unscaled, 1024) == pytest.approx(0.1)


def test_unknown_optimiser_is_named_with_its_nearest():
    with pytest.raises(UserError, match=r"optimizer.name \('sgdd'\).*did you mean 'sgd'"):
        optimizers.create(Optimizer(name="sgdd"), optax.constant_schedule(0.1))


def random_problem(steps=4):
    """Start values and gradients of a kernel and a bias."""
    rng = np.random.default_rng(1)
    shapes = {"kernel": (3, 2), "bias": (2,)}
    start = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    gradients = [
        {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
        for _ in range(steps)
    ]
    return start, gradients


def follow(rule, start, gradients, decayed):
    """Applies `rule(x, g, memory, step, is_decayed)` to each parameter on its own."""
    result = {}
    for name, x in start.items():
        x, memory = x.astype(np.float64), {}
        for step, gradient in enumerate(gradients, start=1):
            x = rule(x, gradient[name].astype(np.float64), memory, step, name in decayed)
        result[name] = x
    return result


def random_updates(rate, **fields):
    """A random problem, and where the optimiser with these settings takes it."""
    start, gradients = random_problem()
    return start, gradients, run_ours(Optimizer(**fields), start, gradients, rate=rate)


def assert_close(ours, theirs):
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=2e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("scope", ["all", "exclude_1d"])
def test_adamw_equals_torch(scope):
    fields = {"name": "adamw", "decay_scope": scope, "weight_decay": 0.05}
    start, gradients, ours = random_updates(0.1, **fields)
    params = {name: torch.nn.Parameter(torch.tensor(value)) for name, value in start.items()}
    groups = [
        {"params": [params["kernel"]], "weight_decay": 0.05},
        {"params": [params["bias"]], "weight_decay": 0.05 if scope == "all" else 0.0},
    ]
    theirs = torch.optim.AdamW(groups, lr=0.1)
    for gradient in gradients:
        for name, value in gradient.items():
            params[name].grad = torch.tensor(value)
        theirs.step()
    assert_close(ours, {name: value.detach().numpy() for name, value in params.items()})


def test_rmsprop_is_tensorflows():
    """mean <- 0.9 mean + 0.1 g^2 from 1; velocity <- 0.9 velocity + rate g / sqrt(mean + 1)."""
    fields = {"name": "rmsprop", "epsilon": 1.0, "weight_decay": 0.01}
    start, gradients, ours = random_updates(0.2, **fields)

    def rule(x, g, memory, step, is_decayed):
        g = g + 0.01 * x
        memory["mean"] = 0.9 * memory.get("mean", np.ones_like(x)) + 0.1 * g**2
        memory["velocity"] = 0.9 * memory.get("velocity", 0) + 0.2 * g / np.sqrt(
            memory["mean"] + 1.0
        )
        return x - memory["velocity"]

    assert_close(ours, follow(rule, start, gradients, decayed=start))


@pytest.mark.parametrize("scope", ["all", "exclude_1d"])
def test_lars_scales_each_layer_and_leaves_the_excluded_alone(scope):
    fields = {"name": "lars", "decay_scope": scope, "weight_decay": 0.1}
    start, gradients, ours = random_updates(2.0, **fields)

    def rule(x, g, memory, step, is_decayed):
        if is_decayed:
            g = g + 0.1 * x
            g = g * 1e-3 * np.linalg.norm(x) / np.linalg.norm(g)
        memory["velocity"] = 0.9 * memory.get("velocity", 0) + 2.0 * g
        return x - memory["velocity"]

    decayed = start if scope == "all" else {"kernel"}
    assert_close(ours, follow(rule, start, gradients, decayed))


@pytest.mark.parametrize("scope", ["all", "exclude_1d"])
def test_lamb_rescales_adams_step_to_the_layers_length(scope):
    fields = {"name": "lamb", "decay_scope": scope, "weight_decay": 0.02, "epsilon": 1e-6}
    start, gradients, ours = random_updates(0.3, **fields)

    def rule(x, g, memory, step, is_decayed):
        memory["m"] = 0.9 * memory.get("m", 0) + 0.1 * g
        memory["v"] = 0.999 * memory.get("v", 0) + 0.001 * g**2
        mean, square = memory["m"] / (1 - 0.9**step), memory["v"] / (1 - 0.999**step)
        update = mean / (np.sqrt(square) + 1e-6)
        if is_decayed:
            update = update + 0.02 * x
            update = update * np.linalg.norm(x) / np.linalg.norm(update)
        return x - 0.3 * update

    decayed = start if scope == "all" else {"kernel"}
    assert_close(ours, follow(rule, start, gradients, decayed))


@pytest.mark.parametrize(
    ("options", "last_layers"),
    [
        ("deit_tiny", {"head.0.weight", "head.3.weight", "head.4.weight"}),
        ("deit_original", {"head.0.weight", "head.3.weight", "head.4.weight"}),
        ("deit_tiny,cross_entropy", {"head.weight"}),
    ],
)
def test_deit_decays_neither_biases_norms_class_token_nor_positions(options, last_layers):
    config = load_recipe("configs/imagenet_light.py", options)
    encoder = models.from_settings(Model.read(config.model), num_classes=10)
    variables = models.abstract_variables(encoder, 224)
    mask = optimizers.decay_mask(config.optimizer.decay_scope)(variables["params"])
    names = layouts.names(encoder, variables, "timm")
    flat = flatten_dict({"params": mask})
    layers = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    assert {names[path] for path, is_decayed in flat.items() if is_decayed} == {
        "patch_embed.proj.weight",
        *(f"blocks.{block}.{layer}.weight" for block in range(12) for layer in layers),
        *last_layers,
    }
    spared = {names[path] for path, is_decayed in flat.items() if not is_decayed}
    assert {"cls_token", "pos_embed", "norm.weight", "patch_embed.proj.bias"} < spared


@pytest.mark.parametrize("name", models.names())
def test_scope_exclude_1d_decays_what_multiplies_activations(name):
    variables = models.abstract_variables(models.create(name, 10), 224)
    mask = flatten_dict(optimizers.decay_mask("exclude_1d")(variables["params"]))
    by_axes = {path: leaf.ndim > 1 for path, leaf in flatten_dict(variables["params"]).items()}
    tokens = {("backbone", "class_token"), ("backbone", "position")} & by_axes.keys()
    assert mask == by_axes | dict.fromkeys(tokens, False)
    assert optimizers.decay_mask("all") is None
