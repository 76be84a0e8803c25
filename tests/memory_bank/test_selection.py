"""Selection in two stages is `jax.lax.top_k`, bit for bit, places and ties included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cone_jax.memory_bank import lookup

pytestmark = pytest.mark.optimised

two_stages = jax.jit(lookup._top_k_in_blocks, static_argnums=(1, 2))


@settings(deadline=None, max_examples=25)
@given(
    columns=st.sampled_from([64, 257]),
    k=st.sampled_from([1, 8]),
    block=st.sampled_from([2, 7]),
    levels=st.sampled_from([1, 3, 10**6]),
    seed=st.integers(0, 2**31),
)
def test_two_stages_choose_as_one_does(columns, k, block, levels, seed):
    """Few levels: many equal values. One: all are equal."""
    values = np.random.default_rng(seed).integers(0, levels, (3, columns)).astype(np.float32)
    top, rows = two_stages(jnp.asarray(values), k, block)
    order = np.argsort(-values, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(rows, order)
    np.testing.assert_array_equal(top, np.take_along_axis(values, order, axis=1))


def test_masked_columns_come_last_and_padding_never():
    lowest = np.finfo(np.float32).min
    values = jnp.full((1, 33), lowest).at[0, 31].set(-0.5)
    top, rows = lookup._top_k_in_blocks(values, 4, 8)
    assert rows.tolist() == [[31, 0, 1, 2]]
    assert top[0, 0] == -0.5


@pytest.mark.parametrize(("columns", "k"), [(100, 100), (8192, 16), (9001, 5), (8192, 8192)])
def test_any_width_and_k(columns, k):
    values = jax.random.normal(jax.random.key(0), (2, columns))
    for actual, expected in zip(lookup.top_k(values, k), jax.lax.top_k(values, k), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_wide_rows_take_two_stages_and_narrow_ones_one():
    def selections(columns):
        values = jax.ShapeDtypeStruct((2, columns), jnp.float32)
        jaxpr = jax.make_jaxpr(lambda x: lookup.top_k(x, 8))(values)
        return str(jaxpr).count("top_k[")

    assert (selections(4096), selections(65536)) == (1, 2)


def test_approximate_selection_is_asked_for():
    values = jax.random.normal(jax.random.key(0), (2, 64))
    jaxpr = jax.make_jaxpr(lambda x: lookup.top_k(x, 8, recall_target=0.9))(values)
    assert "approx_top_k" in str(jaxpr)
    top, rows = lookup.top_k(values, 8, recall_target=0.9)
    np.testing.assert_array_equal(top, jnp.take_along_axis(values, rows, axis=1))
