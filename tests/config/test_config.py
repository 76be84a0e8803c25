"""Presets, limits and the round trip of a config through its run's directory."""

import dataclasses
from unittest import mock

import pytest

from cone_jax import config as config_lib
from cone_jax import settings, workdir
from cone_jax.config import get_field
from cone_jax.errors import UserError
from cone_jax.objectives.cross_entropy import CrossEntropy
from cone_jax.objectives.objective import OBJECTIVES


def test_defaults_are_valid_and_as_released():
    config = config_lib.default()
    config_lib.validate(config)
    cone = config.objective.cone
    published = {
        "sup_weight": 0.7,
        "dc_weight": 0.4,
        "sup_temperature": 0.1,
        "dc_temperature": 0.07,
        "neighbours": 512,
    }
    assert {name: cone[name] for name in published} == published
    assert (config.bank.size, config.ema.momentum) == (65536, 0.996)
    assert not config.bank.exclude_self


def test_presets_set_every_point_of_disagreement_and_can_be_undone():
    official, paper = config_lib.default(), config_lib.default()
    config_lib.apply_preset(paper, "paper")
    expected = {
        "model.classifier": ("linear", "cosine"),
        "model.classifier_bias": (True, False),
        "objective.cone.min_positive_prob": (1e-8, 0.0),
        "objective.cone.conf_mask_eps": (1e-8, 0.0),
        "objective.cone.start_epochs": (1, 0),
        "ema.order": ("before_forward", "after_update"),
        "ema.schedule": ("official_auto", "cosine_to_one"),
        "schedule.unit": ("epoch", "step"),
        "schedule.floor": (1e-3, 0.0),
    }
    for field, values in expected.items():
        assert (get_field(official, field), get_field(paper, field)) == values
    config_lib.apply_preset(paper, "official")
    assert paper == official


def test_unknown_preset_names_the_nearest():
    with pytest.raises(UserError, match="did you mean 'paper'"):
        config_lib.apply_preset(config_lib.default(), "papers")


def test_config_survives_the_workdir(tmp_path, tiny_config):
    workdir.claim(tmp_path, tiny_config)
    loaded = workdir.load_config(tmp_path)
    assert loaded.to_dict() == tiny_config.to_dict()
    assert isinstance(loaded.data.mean, tuple)
    workdir.claim(tmp_path, loaded)


def test_before_the_first_checkpoint_the_config_may_change(tmp_path, tiny_config):
    workdir.claim(tmp_path, tiny_config)
    tiny_config.seed = 5
    workdir.claim(tmp_path, tiny_config)
    assert workdir.load_config(tmp_path).seed == 5
    (tmp_path / "checkpoints" / "10").mkdir(parents=True)
    tiny_config.seed = 6
    with pytest.raises(UserError, match=r"seed = 5.*says 6"):
        workdir.claim(tmp_path, tiny_config)


def test_fields_that_change_nothing_computed_may_change(tmp_path, tiny_config):
    workdir.claim(tmp_path, tiny_config)
    (tmp_path / "checkpoints" / "10").mkdir(parents=True)
    tiny_config.data.threads = 9
    tiny_config.checkpoint.keep = 7
    workdir.claim(tmp_path, tiny_config)


@dataclasses.dataclass(frozen=True)
class Passing(CrossEntropy, path="objective.passing"):
    """A method of a distribution that is not installed for ever."""

    strength: float = settings.field(1.0, "of something")


def test_a_run_outlives_methods_that_it_did_not_use(tmp_path):
    with mock.patch.dict(OBJECTIVES, passing=Passing):
        config = config_lib.default()
        for name in ("cone", "passing"):
            config.objective.name = name
            workdir.claim(tmp_path / name, config)
            assert workdir.load_config(tmp_path / name).objective.passing.strength == 1.0
    assert "passing" not in workdir.load_config(tmp_path / "cone").objective
    (tmp_path / "cone" / "checkpoints" / "10").mkdir(parents=True)
    workdir.claim(tmp_path / "cone", config_lib.default())
    with pytest.raises(UserError, match=r"objective\.passing is not a field"):
        workdir.load_config(tmp_path / "passing")


def test_unreadable_config_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config\.json cannot be read"):
        workdir.load_config(tmp_path)
