"""Features as files: everything by its name, and wrong names refused before the work."""

import importlib.util

import numpy as np
import pytest
from pyarrow import parquet

from cone_jax.errors import UserError
from cone_jax.evaluation.probes import Features, feature_files


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
    feature_files.write(path, splits, ("owl", "tit"))
    with np.load(path) as stored:
        assert stored["class_names"].tolist() == ["owl", "tit"]
        for split, rows in splits.items():
            for name, column in rows._asdict().items():
                np.testing.assert_array_equal(stored[f"{split}_{name}"], column)
    assert [file.name for file in path.parent.iterdir()] == ["features.npz"]


def test_parquet_has_a_row_for_each_example(splits, tmp_path):
    path = tmp_path / "features.parquet"
    feature_files.write(path, splits, ("owl", "tit"))
    table = parquet.read_table(path).to_pydict()
    assert table["split"] == ["train"] * 5 + ["test"] * 3
    assert table["id"] == [0, 1, 2, 3, 4, 0, 1, 2]
    assert table["class"] == ["owl", "tit", "owl", "tit", "owl", "owl", "tit", "owl"]
    np.testing.assert_array_equal(table["features"][:5], splits["train"].features)
    np.testing.assert_array_equal(table["embedding"][5:], splits["test"].embedding)


def test_files_that_cannot_be_written_are_refused_first(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"features\.csv\) must end in \.npz or \.parquet"):
        feature_files.check_path(tmp_path / "features.csv")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install pyarrow"):
        feature_files.check_path(tmp_path / "features.parquet")
