"""Evaluators as a config names them, and what they must fit."""

import dataclasses
from typing import ClassVar

import pytest

from cone_jax import config as config_lib
from cone_jax.console import Metric
from cone_jax.errors import UserError
from cone_jax.evaluation import registry
from cone_jax.evaluation.registry import Evaluator, Outcome


def config_with(*evaluators, best="test/top1", options="", **changes):
    config = config_lib.apply_options(config_lib.default(), options).unlock()
    config.evaluation.evaluators = evaluators
    config.checkpoint.best_metric = best
    for field, value in changes.items():
        section, _, name = field.partition("__")
        config[section][name] = value
    return config


@pytest.mark.parametrize(
    ("spec", "prefix"),
    [
        ("classification", "test"),
        ("classification(network='key')", "test_key"),
        ("classification('validation')", "validation"),
        ("classification('train[:10%]', name='fit')", "fit"),
        ("classification(data='imagenet_v2/matched-frequency:3.0.0')", "matched_frequency_3_0_0"),
        ("classification(data='~/photos/sketches/')", "sketches"),
        ("robustness(every_epochs=0)", "robustness"),
        ("real", "real"),
    ],
)
def test_metrics_are_called_after_what_they_measure(spec, prefix):
    (evaluator,) = registry.parse((spec,))
    assert evaluator.prefix == prefix
    assert all(name.startswith(f"{prefix}/") for name in evaluator.declared())


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("clasification", r"no evaluator 'clasification'; the closest is classification\(split=''"),
        ("zzz()", "no evaluator 'zzz'; there are classification, knn"),
        ("classification(", r"must read like knn\(k=20"),
        ("classification(network='teacher')", "network must be one of evaluated, query, key"),
        ("classification(every_epochs=-1)", "every_epochs must be a number of at least 0"),
        ("classification(name='a/b')", "name must be a word, not 'a/b'"),
        ("classification(name='..')", "name must be a word"),
        ("classification('train')", "name must be given, since train/"),
        ("classification(among='some')", "among must be all or present"),
        ("classification(top=3)", "unexpected keyword argument 'top'; use classification"),
        ("robustness(corruptions=('rain',))", "not 'rain'"),
        ("robustness(corruptions=())", "must not be empty"),
        ("robustness(baseline='alexnet', corruptions=('fog',))", "all fifteen"),
        ("robustness(parameters='mnist')", "auto, imagenet, cifar"),
    ],
)
def test_mistakes_are_explained_in_one_line(spec, message):
    with pytest.raises(UserError, match=message) as caught:
        config_lib.validate(config_with("classification", spec))
    assert "\n" not in str(caught.value)
    assert spec.split("(")[0] in str(caught.value)


def test_two_evaluators_must_not_share_a_name():
    with pytest.raises(UserError, match="two called 'test'"):
        registry.parse(("classification", "classification(every_epochs=3)"))
    with pytest.raises(UserError, match="must be a list of strings"):
        registry.parse("classification")


@pytest.mark.parametrize(
    ("evaluators", "best", "options"),
    [
        (("classification",), "test/top1", ""),
        (("classification",), "test/ece", ""),
        (("classification", "classification(network='key')"), "test_key/top5", ""),
        (("knn(name='near')",), "near/top1", "supcon"),
        (("robustness(baseline='alexnet')",), "robustness/mce", ""),
        ((), "", ""),
    ],
)
def test_the_best_metric_is_any_that_is_measured(evaluators, best, options):
    config_lib.validate(config_with(*evaluators, best=best, options=options))


@pytest.mark.parametrize(
    ("evaluators", "best", "message"),
    [
        (("classification",), "test/top2", "any of evaluation.evaluators; did you mean"),
        (("classification(network='key')",), "test/top1", "did you mean 'test_key/top1'"),
        (("robustness",), "robustness/mce", "robustness/error"),
        ((), "test/top1", 'set it to ""'),
    ],
)
def test_a_best_metric_that_nothing_measures_is_refused(evaluators, best, message):
    with pytest.raises(UserError, match=message):
        config_lib.validate(config_with(*evaluators, best=best))


def test_a_network_the_method_lacks_is_refused():
    averaged = "classification(network='averaged')"
    with pytest.raises(UserError, match=r"no averaged network to evaluate; set average\.decay"):
        config_lib.validate(config_with("classification", averaged))
    config_lib.validate(config_with("classification", averaged, average__decay=0.99))
    with pytest.raises(UserError, match="cross_entropy has no key network"):
        config_lib.validate(
            config_with("classification", "classification(network='key')", options="cross_entropy")
        )


@pytest.mark.parametrize(
    ("evaluator", "best", "lower"),
    [
        ("classification", "test/top1", False),
        ("classification", "test/loss", True),
        ("classification(network='key')", "test_key/ece", True),
        ("robustness(baseline='alexnet')", "robustness/relative_mce", True),
        ("knn", "knn20/mean_per_class", False),
    ],
)
def test_the_direction_of_a_metric_is_declared_by_its_evaluator(evaluator, best, lower):
    config = config_with(evaluator, best=best)
    assert registry.lower_is_better(config) is lower


def test_an_evaluator_of_somebody_else_declares_its_metrics_the_same_way(monkeypatch):
    @dataclasses.dataclass(frozen=True)
    class Sharpness(Evaluator):
        metrics: ClassVar[tuple[Metric, ...]] = (Metric("curvature", better="lower"),)
        default_name = "sharpness"

        def evaluate(self, run, variables, report):
            return Outcome({"curvature": 1.0})

    monkeypatch.setitem(registry.KINDS, "sharpness", Sharpness)
    config = config_with("sharpness(network='key')", best="sharpness_key/curvature")
    config_lib.validate(config)
    assert registry.lower_is_better(config)
    (name,) = registry.declared_metrics(config)
    assert name == "sharpness_key/curvature"
