"""Resolutions, initialisations and training options of the architectures."""

import functools

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cone_jax import models
from cone_jax.errors import UserError
from tests.models import random_variables

SMALL_HEAD = models.Projection(hidden=16, dim=8)
# The last block before pooling, by architecture.
LAST_BLOCK = {
    "resnet18": "layer4_1",
    "regnetx_400mf": "stage4_11",
    "mobilenet_v2": "block17",
    "shufflenet_v2": "stage4_3",
    "efficientnet_b0": "stage7_0",
    "convnext_tiny": "stage4_2",
}


@pytest.mark.parametrize(
    ("name", "stem", "size", "expected"),
    [
        *((name, stem, size, last) for name in LAST_BLOCK for stem, size, last in
          (("imagenet", 224, 7), ("cifar", 32, 4))),
        ("resnet18", "imagenet", 176, 6),
    ],
)  # fmt: skip
def test_resolution_before_pooling(name, stem, size, expected):
    encoder = models.create(name, 10, stem=stem)
    images = jax.ShapeDtypeStruct((1, size, size, 3), jnp.float32)
    _, state = jax.eval_shape(
        lambda x: encoder.init_with_output(
            jax.random.key(0), x, train=False, capture_intermediates=True
        ),
        images,
    )
    block = state["intermediates"]["backbone"][LAST_BLOCK[name]]
    assert block["__call__"][0].shape[1] == expected


@functools.lru_cache
def initial(name, projection=None):
    """The initial parameters that are looked at below, by path; only those are compiled."""
    encoder = models.create(name, 100, projection=projection)
    wanted = {path for network, path, _ in (*NORMALS, *CONSTANTS) if network == name}
    wanted |= {f"{path}/{leaf}" for network, _, path, _ in UNIFORMS for leaf in ("kernel", "bias")
               if network == name}  # fmt: skip

    @jax.jit
    def init():
        variables = encoder.init(jax.random.key(0), jnp.zeros((1, 64, 64, 3)), train=False)
        flat = flax.traverse_util.flatten_dict(variables["params"], sep="/")
        return {path: flat[path] for path in wanted & flat.keys()}

    return jax.device_get(init())


# name, path, standard deviation of a normal distribution
NORMALS = [
    ("resnet18", "backbone/layer3_0/conv2/kernel", np.sqrt(2 / (9 * 256))),
    ("regnetx_400mf", "backbone/stage4_1/conv2/kernel", np.sqrt(2 / (9 * 400))),
    ("regnetx_400mf", "classifier/kernel", 0.01),
    ("mobilenet_v2", "backbone/block16/depthwise_conv/kernel", np.sqrt(2 / (9 * 960))),
    ("mobilenet_v2", "classifier/kernel", 0.01),
    ("shufflenet_v2", "backbone/stem_conv/kernel", 0.01),
    ("shufflenet_v2", "backbone/stage4_0/right_in_conv/kernel", 1 / 232),
    ("shufflenet_v2", "backbone/stage4_0/right_depthwise_conv/kernel", 1.0),
    ("shufflenet_v2", "classifier/kernel", 0.01),
    ("deit_tiny", "backbone/block3/qkv/kernel", 0.02),
    ("deit_tiny", "backbone/position", 0.02),
    ("deit_tiny", "classifier/kernel", 0.02),
    ("efficientnet_b0", "backbone/stage7_0/project_conv/kernel", np.sqrt(2 / 320)),
    ("convnext_tiny", "backbone/stage4_1/mlp_in/kernel", 0.02),
    ("convnext_tiny", "classifier/kernel", 0.02),
]


@pytest.mark.parametrize(("name", "path", "std"), NORMALS)
def test_kernels_start_from_the_published_normal_distribution(name, path, std):
    values = initial(name)[path]
    assert np.std(values) == pytest.approx(std, rel=0.06)
    assert np.mean(values) == pytest.approx(0, abs=std / 5)
    # A uniform or truncated distribution has no such tail (values[values > 2.5 std]).
    assert np.abs(values).max() > 2.5 * std


# name, projection head, layer, inputs
UNIFORMS = [
    ("resnet18", None, "classifier", 512),
    ("resnet18", SMALL_HEAD, "projection/linear1", 512),
    ("mobilenet_v2", SMALL_HEAD, "classifier", 8),
    ("deit_tiny", None, "backbone/patch_embedding", 768),
]


@pytest.mark.parametrize(("name", "projection", "path", "fan_in"), UNIFORMS)
@pytest.mark.parametrize("leaf", ["kernel", "bias"])
def test_other_layers_start_from_pytorchs_uniform_distribution(
    name, projection, path, fan_in, leaf
):
    values = initial(name, projection)[f"{path}/{leaf}"]
    bound = 1 / np.sqrt(fan_in)
    assert 0.8 * bound < np.abs(values).max() <= bound
    assert np.std(values) == pytest.approx(bound / np.sqrt(3), rel=0.25)


CONSTANTS = [
    ("resnet18", "backbone/layer4_1/bn2/scale", 1.0),  # no zero-gamma
    ("resnet18", "backbone/layer4_1/bn2/bias", 0.0),
    ("shufflenet_v2", "backbone/last_bn/bias", 1e-4),
    ("mobilenet_v2", "classifier/bias", 0.0),
    ("deit_tiny", "backbone/block0/mlp_in/bias", 0.0),
    ("convnext_tiny", "backbone/stage3_8/layer_scale", 1e-6),
]


@pytest.mark.parametrize(("name", "path", "expected"), CONSTANTS)
def test_constants(name, path, expected):
    np.testing.assert_array_equal(initial(name)[path], np.float32(expected))


def test_rematerialisation_changes_neither_values_nor_gradients():
    def gradient(remat):
        encoder = models.create("resnet8", 5, stem="cifar", projection=None, remat=remat)
        variables = random_variables.draw(encoder, 8)
        images = random_variables.images(8)

        def loss(params):
            variables_now = {**variables, "params": params}
            out, _ = encoder.apply(variables_now, images, train=True, mutable=["batch_stats"])
            return jnp.sum(out.logits**2)

        return jax.jit(jax.grad(loss))(variables["params"])

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4),
        gradient(True),
        gradient(False),
    )


@pytest.mark.parametrize(
    ("name", "remat"), [("resnet18", False), *((name, True) for name in (*LAST_BLOCK, "deit_tiny"))]
)
def test_rematerialisation_is_done_only_where_asked(name, remat):
    encoder = models.create(name, 5, stem="cifar", projection=None, remat=remat)
    images = jax.ShapeDtypeStruct((2, 32, 32, 3), jnp.float32)
    run = jax.make_jaxpr(lambda x: encoder.init(jax.random.key(0), x, train=False))
    assert ("remat" in str(run(images))) == remat


def test_dropout_zeroes_its_share_of_features_and_scales_the_rest():
    plain = models.create("resnet8", 5, stem="cifar", projection=None)
    encoder = models.create("resnet8", 5, stem="cifar", projection=None, dropout=0.25)
    variables = random_variables.draw(encoder, 8)
    images = random_variables.images(8, count=64)

    @functools.partial(jax.jit, static_argnums=(0, 1))
    def run(encoder, train):
        rngs = {"dropout": jax.random.key(0)}
        out, _ = encoder.apply(variables, images, train=train, mutable=["batch_stats"], rngs=rngs)
        return out.features

    features, dropped = np.asarray(run(plain, True)), np.asarray(run(encoder, True))
    kept = dropped != 0
    np.testing.assert_allclose(dropped[kept], features[kept] / 0.75, rtol=1e-5)
    share = 1 - kept[features != 0].mean()
    assert share == pytest.approx(0.25, abs=0.03)
    np.testing.assert_array_equal(run(encoder, False), run(plain, False))


def test_stochastic_depth_drops_the_branch_of_whole_samples():
    encoder = models.create("resnet8", 5, stem="cifar", projection=None, stochastic_depth=0.5)
    variables = random_variables.draw(encoder, 8)
    images = random_variables.images(8, count=32)
    run = functools.partial(
        encoder.apply,
        train=True,
        rngs={"dropout": jax.random.key(0)},
        capture_intermediates=lambda module, _: module.name in ("Dropout_0", "bn2"),
        mutable=["batch_stats", "intermediates"],
    )
    _, state = jax.jit(run)(variables, images)
    blocks = state["intermediates"]["backbone"]
    shares = []
    for block in ("layer1_0", "layer2_0", "layer3_0"):
        before = np.asarray(blocks[block]["bn2"]["__call__"][0])
        after = np.asarray(blocks[block]["Dropout_0"]["__call__"][0])
        dropped = np.all(after == 0, axis=(1, 2, 3))
        shares.append(dropped.mean())
        survival = 1 - {"layer1_0": 0.0, "layer2_0": 0.25, "layer3_0": 0.5}[block]
        np.testing.assert_allclose(after[~dropped], before[~dropped] / survival, rtol=1e-5)
    assert shares[0] == 0
    assert 0 < shares[1] < shares[2] < 0.75


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("regnetx_400mf", {"stochastic_depth": 0.5}),
        ("mobilenet_v2", {"stochastic_depth": 0.5, "dropout": 0.0}),
        ("mobilenet_v2", {}),  # its published dropout
        ("shufflenet_v2", {"dropout": 0.5}),
        ("efficientnet_b0", {}),  # its published dropout
        ("efficientnet_b0", {"stochastic_depth": 0.5, "dropout": 0.0}),
        ("convnext_tiny", {"stochastic_depth": 0.5}),
        ("convnext_tiny", {"dropout": 0.5}),
        ("deit_tiny", {"stochastic_depth": 0.5}),
        ("deit_tiny", {"dropout": 0.5}),
    ],
)
def test_options_that_draw_need_an_rng_in_train_mode_only(name, options):
    encoder = models.create(name, 5, stem="cifar", projection=None, **options)
    variables = models.abstract_variables(encoder, 32)  # in evaluation mode, without such an rng
    images = jax.ShapeDtypeStruct((2, 32, 32, 3), jnp.float32)
    train = functools.partial(encoder.apply, train=True, mutable=["batch_stats"])
    with pytest.raises(flax.errors.InvalidRngError, match="dropout"):
        jax.eval_shape(train, variables, images)


def test_bn_options_reach_backbone_and_head():
    def moved(images, **options):
        """By how much the running means have moved, in the first norm of either part."""
        encoder = models.create("resnet8", 5, stem="cifar", projection=SMALL_HEAD, **options)
        variables = random_variables.draw(encoder, 8)
        step = functools.partial(encoder.apply, train=True, mutable=["batch_stats"])
        new, old = (
            jax.jit(step)(variables, images)[1]["batch_stats"],
            variables["batch_stats"],
        )
        return [new[part]["bn1"]["mean"] - old[part]["bn1"]["mean"] for part in new]

    images = random_variables.images(8, count=4)
    for fast, slow in zip(moved(images, bn_momentum=0.5), moved(images), strict=True):
        np.testing.assert_allclose(fast, 5 * slow, atol=1e-5)
    with pytest.raises(UserError, match=r"bn_groups \(2\) must divide the batch \(3\)"):
        moved(images[:3], bn_groups=2)


def test_frozen_norms_of_the_backbone_train_as_they_evaluate():
    """Statistics stay, scale and bias have gradients, and the head's own norms are not frozen."""
    encoder = models.create("resnet8", 5, stem="cifar", projection=SMALL_HEAD, bn_frozen=True)
    variables = random_variables.draw(encoder, 8)
    images = random_variables.images(8, count=4)

    def run(params, train):
        return encoder.apply(
            {**variables, "params": params}, images, train=train, mutable=["batch_stats"]
        )

    (trained, after), (tested, _) = run(variables["params"], True), run(variables["params"], False)
    np.testing.assert_array_equal(trained.features, tested.features)
    assert not np.allclose(trained.embedding, tested.embedding)
    before, after = variables["batch_stats"], after["batch_stats"]
    same = jax.tree.map(np.array_equal, after, before)
    assert all(jax.tree.leaves(same["backbone"]))
    assert not any(jax.tree.leaves(same["projection"]))
    slopes = jax.grad(lambda params: run(params, True)[0].features.sum())(variables["params"])
    assert np.abs(slopes["backbone"]["bn1"]["scale"]).max() > 0


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("regnetx_400mf", {"last_width": 392}, r"last_width \(392\) must be 400 or 384"),
        ("deit_tiny", {"image_size": 100}, r"image_size \(100\) must be a multiple of the patch"),
        ("resnet18", {"dropout": 1.0}, r"dropout \(1.0\) must be in \[0, 1\)"),
        ("shufflenet_v2", {"stochastic_depth": 0.1}, r"do not fit shufflenet_v2"),
        ("shufflenet_v2", {"channel_order": "timm"}, r"\('timm'\) must be 'torchvision' or"),
        ("resnet18", {"distilled": True}, r"do not fit resnet18"),
    ],
)
def test_options_that_cannot_work_are_refused(name, options, message):
    with pytest.raises(UserError, match=message):
        models.create(name, 10, **options)


def test_deit_refuses_pictures_that_do_not_divide_into_patches():
    encoder = models.create("deit_tiny", 10)
    with pytest.raises(UserError, match=r"100x100\) must be a multiple of the patch \(16\)"):
        models.abstract_variables(encoder, 100)


def test_bfloat16_stays_close_to_float32_in_the_transformer():
    options = {"stem": "cifar", "projection": SMALL_HEAD}
    full = models.create("deit_tiny", 10, **options)
    half = models.create("deit_tiny", 10, dtype=jnp.bfloat16, **options)
    variables = random_variables.draw(full, 32)
    images = random_variables.images(32)
    exact, low = (
        jax.jit(functools.partial(encoder.apply, train=False))(variables, images)
        for encoder in (full, half)
    )
    assert low.features.dtype == low.logits.dtype == jnp.float32
    error = np.abs(low.features - exact.features).max() / np.abs(exact.features).max()
    assert 1e-5 < error < 0.1
