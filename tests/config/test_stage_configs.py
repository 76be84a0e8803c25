"""The configs of the stages of a run."""

import pytest

from cone_jax import config as config_lib


def test_the_linear_stage_has_a_recipe_of_its_own():
    config = config_lib.apply_options(config_lib.default(), "supcon").unlock()
    config.linear_stage.train_transforms = ("random_crop(4)",)
    config.linear_stage.optimizer.learning_rate = 5.0
    config.average.decay = 0.9
    first, second = config_lib.stage_configs(config)
    assert first is config
    assert (first.data.views, second.data.views) == (2, 1)
    assert second.objective.name == "linear"
    assert second.optimizer.learning_rate == 5.0
    assert second.data.train_transforms == ("random_crop(4)",)
    assert second.average.decay == 0.0
    assert config_lib.deployed(config).model.projection is False
    config.linear_stage.train_transforms = ()
    assert config_lib.deployed(config).data.train_transforms == config.data.train_transforms


@pytest.mark.parametrize("options", ["cone", "paco", "cmsf,with_ce", "nnclr,with_ce"])
def test_a_method_that_trains_a_classifier_has_one_stage(options):
    config = config_lib.apply_options(config_lib.default(), options)
    assert config_lib.stage_configs(config) == (config,)
