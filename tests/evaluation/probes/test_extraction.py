"""Features of a split: each example once and in order, on any number of devices; their files."""

import importlib.util

import jax
import numpy as np
import pytest
from pyarrow import parquet

from cone_jax import models, sharding
from cone_jax.data import transforms
from cone_jax.data.pipeline import EvalBatches
from cone_jax.data.sources.array import ArraySource
from cone_jax.errors import UserError
from cone_jax.evaluation.probes import Features, extract, extraction
from tests.models import random_variables

MEAN = STD = (0.5, 0.5, 0.5)


@pytest.fixture(scope="module")
def network():
    head = models.Projection(dim=6, hidden=8)
    encoder = models.create("resnet8", 3, stem="cifar", projection=head, width=4)
    return encoder, random_variables.draw(encoder, 8)


@pytest.mark.parametrize(("batch_size", "devices"), [(16, 1), (8, 8)])
def test_every_example_once_and_in_order(network, batch_size, devices):
    encoder, variables = network
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (21, 8, 8, 3)).astype(np.uint8)
    labels = rng.integers(0, 3, 21)
    mesh = sharding.make_mesh(jax.devices()[:devices])
    batches = EvalBatches(ArraySource(images, labels, "abc"), transforms.parse(()), batch_size)
    found = extract(
        encoder,
        jax.device_put(variables, sharding.replicated(mesh)),
        (batches[i] for i in range(len(batches))),
        mean=MEAN,
        std=STD,
        mesh=mesh,
    )
    pixels = (images.astype(np.float32) / 255 - 0.5) / 0.5
    expected = encoder.apply(variables, pixels, train=False)
    np.testing.assert_allclose(found.features, expected.features, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.embedding, expected.embedding, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found.labels, labels)
    np.testing.assert_array_equal(found.ids, np.arange(21))


@pytest.fixture
def splits():
    rng = np.random.default_rng(0)
    return {
        name: Features(
            rng.normal(size=(n, 4)).astype(np.float32),
            rng.normal(size=(n, 2)).astype(np.float32),
            np.arange(n, dtype=np.int32) % 2,
            np.arange(n, dtype=np.int32),
        )
        for name, n in (("train", 5), ("test", 3))
    }


def test_npz_holds_everything_by_name(splits, tmp_path):
    path = tmp_path / "new" / "features.npz"
    extraction.export(path, splits, ("owl", "tit"))
    with np.load(path) as stored:
        assert stored["class_names"].tolist() == ["owl", "tit"]
        for split, rows in splits.items():
            for name, column in rows._asdict().items():
                np.testing.assert_array_equal(stored[f"{split}_{name}"], column)
    assert [file.name for file in path.parent.iterdir()] == ["features.npz"]


def test_parquet_has_a_row_for_each_example(splits, tmp_path):
    path = tmp_path / "features.parquet"
    extraction.export(path, splits, ("owl", "tit"))
    table = parquet.read_table(path).to_pydict()
    assert table["split"] == ["train"] * 5 + ["test"] * 3
    assert table["id"] == [0, 1, 2, 3, 4, 0, 1, 2]
    assert table["class"] == ["owl", "tit", "owl", "tit", "owl", "owl", "tit", "owl"]
    np.testing.assert_array_equal(table["features"][:5], splits["train"].features)
    np.testing.assert_array_equal(table["embedding"][5:], splits["test"].embedding)


def test_files_that_cannot_be_written_are_refused_first(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"features\.csv\) must end in \.npz or \.parquet"):
        extraction.check_path(tmp_path / "features.csv")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install pyarrow"):
        extraction.check_path(tmp_path / "features.parquet")
