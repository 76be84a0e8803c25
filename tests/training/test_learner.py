"""The learner: built once per stage, and equal to another one of the same settings."""

import dataclasses

import jax
import numpy as np
import pytest

from cone_jax import distributed, training
from cone_jax.errors import UserError
from cone_jax.training import train_state
from cone_jax.training.run import Run


def test_a_run_that_is_opened_again_does_not_compile_again(separable_config):
    results, compiled = [], []
    for _ in range(2):
        run = Run.open(separable_config)
        batch = next(run.train_stream(0, print))
        state, _ = training.train_step(run.init_state(), batch)
        results.append(jax.device_get(state.params))
        compiled.append(training.train_step._cache_size())
    assert compiled[0] == compiled[1]
    jax.tree.map(np.testing.assert_array_equal, *results)


def test_learners_differ_where_anything_about_them_does(quick_config):
    lengths = {"num_classes": 10, "steps_per_epoch": 5, "mesh": distributed.make_mesh()}
    learner = train_state.build_learner(quick_config, **lengths)
    assert learner == train_state.build_learner(quick_config, **lengths)
    assert hash(learner) == hash(train_state.build_learner(quick_config, **lengths))
    others = [
        dataclasses.replace(learner, first_step=1),
        dataclasses.replace(learner, mesh=distributed.make_mesh(jax.devices()[:1])),
        train_state.build_learner(quick_config, **{**lengths, "num_classes": 11}),
    ]
    quick_config.objective.cone.sup_weight = 0.1
    others.append(train_state.build_learner(quick_config, **lengths))
    quick_config.optimizer.weight_decay = 0.5
    others.append(train_state.build_learner(quick_config, **lengths))
    assert len({learner, *others}) == 1 + len(others)


def test_the_run_hands_its_learner_to_the_state(quick_config):
    run = Run.open(quick_config)
    assert run.abstract_state().learner is run.learner
    assert (run.first_step, run.last_step) == (0, quick_config.steps)
    alone = run.on_local_devices()
    assert alone.learner.settings is run.learner.settings


@pytest.mark.parametrize(("section", "name"), [("model", "resnet81"), ("optimizer", "sgdd")])
def test_what_cannot_be_built_is_named_when_the_run_is_opened(quick_config, section, name):
    quick_config[section].name = name
    with pytest.raises(UserError, match=rf"{section}.name \('{name}'\)"):
        Run.open(quick_config)
