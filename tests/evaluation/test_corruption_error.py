"""mCE by hand, and the benchmark's own anchor: AlexNet scores 100."""

import math

import pytest

from cone_jax.errors import UserError
from cone_jax.evaluation import corruption_error
from cone_jax.evaluation.corruption_error import ALEXNET, CorruptionErrors, normalise
from cone_jax.evaluation.corruptions import CORRUPTIONS


def test_alexnet_scores_exactly_100():
    # Severities around the published mean, as those of AlexNet itself are.
    spread = (-0.0625, -0.03125, 0.0, 0.03125, 0.0625)
    own = CorruptionErrors(
        ALEXNET.clean,
        {name: tuple(ALEXNET.mean(name) + s for s in spread) for name in ALEXNET.corrupted},
    )
    assert normalise(ALEXNET, ALEXNET).mce == 100.0
    assert normalise(ALEXNET, ALEXNET).relative_mce == 100.0
    assert normalise(own, ALEXNET).mce == pytest.approx(100.0, abs=1e-9)


def test_the_table_is_the_published_one():
    assert list(ALEXNET.corrupted) == list(CORRUPTIONS)
    # The mean of AlexNet's fifteen errors, and its extremes.
    assert ALEXNET.overall() == pytest.approx(0.7889930667, abs=1e-9)
    assert ALEXNET.mean("impulse_noise") == 0.92264
    assert ALEXNET.mean("brightness") == 0.564592


def test_mce_by_hand():
    own = CorruptionErrors(0.1, {"fog": (0.2, 0.4), "snow": (0.5, 0.7)})
    baseline = CorruptionErrors(0.2, {"snow": (0.8,), "fog": (0.6,)})
    result = normalise(own, baseline)
    assert result.ce == pytest.approx({"fog": 50.0, "snow": 75.0})
    assert result.mce == pytest.approx(62.5)
    assert result.relative_ce == pytest.approx({"fog": 100 * 0.2 / 0.4, "snow": 100 * 0.5 / 0.6})
    assert own.overall() == pytest.approx(0.45)


def test_a_baseline_that_cannot_be_one():
    own = CorruptionErrors(0.1, {"fog": (0.2,)})
    with pytest.raises(UserError, match="no errors under fog"):
        normalise(own, CorruptionErrors(0.1, {"snow": (0.2,)}))
    with pytest.raises(UserError, match="no error under fog"):
        normalise(own, CorruptionErrors(0.0, {"fog": (0.0,)}))
    harmless = normalise(own, CorruptionErrors(0.3, {"fog": (0.3,)}))
    assert math.isnan(harmless.relative_mce)


def test_errors_survive_their_file(tmp_path):
    errors = CorruptionErrors(0.125, {"fog": (0.25, 0.1), "snow": (1 / 3, 0.5)})
    lines = [",".join(map(str, row)) for row in (corruption_error.ERRORS_HEADER, *errors.rows())]
    path = tmp_path / "errors.csv"
    path.write_text("\n".join(lines))
    assert corruption_error.read(path) == errors
    path.write_text("corruption,severity\nfog,1\n")
    with pytest.raises(UserError, match=r"errors.csv\) cannot be read; make it with"):
        corruption_error.read(path)
    with pytest.raises(UserError, match="cannot be read"):
        corruption_error.read(tmp_path / "nothing.csv")
