"""MixUp and CutMix against NumPy, their distributions, and independence of the devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from cone_jax.data import on_device
from cone_jax.errors import UserError

ROWS, HEIGHT, WIDTH = 6, 9, 7
IMAGES = np.random.default_rng(0).normal(size=(ROWS, HEIGHT, WIDTH, 3)).astype(np.float32)
LABELS = np.array([4, 0, 2, 2, 1, 3], np.int32)


def mixed(function: object, seed: int, **options: float) -> on_device.Mixed:
    return function(jax.random.key(seed), jnp.asarray(IMAGES), jnp.asarray(LABELS), **options)


def weights(mixup_alpha: float, cutmix_alpha: float) -> np.ndarray:
    """The weights of 4,000 batches."""

    @jax.jit
    @jax.vmap
    def weight(key: jax.Array) -> jax.Array:
        images, labels = jnp.zeros((1, 32, 32, 1)), jnp.zeros(1, jnp.int32)
        options = {"mixup_alpha": mixup_alpha, "cutmix_alpha": cutmix_alpha}
        return on_device.mix(key, images, labels, **options).weight[0]

    return np.asarray(weight(jax.random.split(jax.random.key(1), 4000)))


@pytest.mark.parametrize("seed", range(3))
def test_mixup_is_the_weighted_sum_with_the_opposite_row(seed: int) -> None:
    result = mixed(on_device.mixup, seed, alpha=0.8)
    assert result.weight.shape == (ROWS,)
    assert np.ptp(result.weight) == 0
    w = float(result.weight[0])
    assert 0 <= w <= 1
    np.testing.assert_allclose(
        result.images, w * IMAGES + (1 - w) * IMAGES[::-1], rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(result.labels_a, LABELS)
    np.testing.assert_array_equal(result.labels_b, [3, 1, 2, 2, 0, 4])


def test_cutmix_pastes_a_box_whose_share_is_the_weight() -> None:
    inside = 0
    for seed in range(40):
        result = mixed(on_device.cutmix, seed)
        pasted = np.all(np.asarray(result.images) != IMAGES, axis=(0, 3))
        rows, columns = np.flatnonzero(pasted.any(1)), np.flatnonzero(pasted.any(0))
        expected = IMAGES.copy()
        if pasted.any():
            box = np.s_[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
            expected[box] = IMAGES[::-1][box]
            if rows[0] > 0 and rows[-1] < HEIGHT - 1:
                inside += 1
                assert len(rows) % 2 == 0  # twice a whole half side
        np.testing.assert_array_equal(result.images, expected)
        share = 1 - len(rows) * len(columns) / (HEIGHT * WIDTH)
        np.testing.assert_allclose(result.weight, share, rtol=1e-6)
        np.testing.assert_array_equal(result.labels_b, LABELS[::-1])
    assert inside > 3


def test_mixup_weights_have_the_moments_of_a_symmetric_beta() -> None:
    alpha = 0.2
    sample = weights(alpha, 0.0)
    variance = 1 / (4 * (2 * alpha + 1))
    assert abs(sample.mean() - 0.5) < 4.5 * (variance / 4000) ** 0.5
    np.testing.assert_allclose(sample.var(), variance, rtol=0.06)


def test_cutmix_weights_are_those_of_the_published_loop() -> None:
    random, side, reference = np.random.RandomState(0), 32, []
    for _ in range(4000):
        half = int(0.5 * np.sqrt(1 - random.beta(1.0, 1.0)) * side)
        x, y = random.randint(side), random.randint(side)
        wide = min(x + half, side) - max(x - half, 0)
        high = min(y + half, side) - max(y - half, 0)
        reference.append(1 - wide * high / side**2)
    sample = weights(0.0, 1.0)
    for quantile in (0.1, 0.25, 0.5, 0.75, 0.9):
        expected = np.quantile(reference, quantile)
        assert abs(np.quantile(sample, quantile) - expected) < 0.03


def test_the_switch_decides_how_often_which_is_used() -> None:
    @jax.jit
    @jax.vmap
    def is_cutmix(key: jax.Array) -> jax.Array:
        images = jnp.stack([jnp.zeros((4, 4, 1)), jnp.ones((4, 4, 1))])
        result = on_device.mix(key, images, jnp.arange(2), mixup_alpha=50.0, switch=0.3)
        # MixUp at this alpha never leaves a pixel as it was; CutMix leaves or replaces it.
        return jnp.all((result.images == 0) | (result.images == 1))

    found = np.mean(is_cutmix(jax.random.split(jax.random.key(3), 2000)))
    assert abs(found - 0.3) < 4.5 * (0.3 * 0.7 / 2000) ** 0.5


def test_views_are_mixed_alike() -> None:
    views = {"query": jnp.asarray(IMAGES), "key": jnp.asarray(2 * IMAGES)}
    result = on_device.mix(jax.random.key(0), views, jnp.asarray(LABELS))
    np.testing.assert_allclose(result.images["key"], 2 * result.images["query"], rtol=1e-6)
    assert np.abs(result.images["query"] - IMAGES).max() > 0


def test_without_alphas_the_batch_comes_back() -> None:
    result = mixed(on_device.mix, 0, mixup_alpha=0.0, cutmix_alpha=0.0)
    np.testing.assert_array_equal(result.images, IMAGES)
    np.testing.assert_array_equal(result.weight, np.ones(ROWS))


def test_half_precision_images_stay_half_precision() -> None:
    result = on_device.mix(
        jax.random.key(0), jnp.asarray(IMAGES, jnp.bfloat16), jnp.asarray(LABELS)
    )
    assert result.images.dtype == jnp.bfloat16
    assert result.weight.dtype == jnp.float32


def test_integers_and_impossible_settings_are_refused() -> None:
    with pytest.raises(TypeError, match="only normalised images can be mixed, not uint8"):
        on_device.mixup(
            jax.random.key(0), jnp.zeros((2, 4, 4, 3), jnp.uint8), jnp.arange(2), alpha=1.0
        )
    for options in ({"mixup_alpha": -0.1}, {"cutmix_alpha": -1.0}, {"switch": 1.5}):
        with pytest.raises(UserError, match="must be at least 0"):
            mixed(on_device.mix, 0, **options)


@pytest.mark.parametrize(
    "function", [functools.partial(on_device.mixup, alpha=0.8), on_device.cutmix]
)
def test_a_batch_sharded_over_devices_is_mixed_as_on_one(function: object) -> None:
    count = jax.device_count()
    assert count > 1, "the tests run on several CPU devices"
    mesh = jax.make_mesh((count,), ("data",), axis_types=(AxisType.Auto,))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    images = np.random.default_rng(0).normal(size=(2 * count, 8, 8, 3)).astype(np.float32)
    labels = np.arange(2 * count, dtype=np.int32)
    key = jax.random.key(5)
    alone = function(key, jnp.asarray(images), jnp.asarray(labels))
    shared = jax.jit(function, out_shardings=rows)(
        key, jax.device_put(images, rows), jax.device_put(labels, rows)
    )
    assert shared.images.sharding.is_equivalent_to(rows, 4)
    for one, other in zip(jax.tree.leaves(alone), jax.tree.leaves(shared), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
