"""The probes as evaluators of a run, by the names a config uses."""

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from cone_jax.errors import UserError
from cone_jax.evaluation import registry
from cone_jax.evaluation.probes import extract
from cone_jax.training.run import Run


def test_names_follow_the_settings():
    specs = ("knn", "knn(200, space='embedding')", "knn(k=5, network='key')", "linear(l2=0.1)")
    prefixes = [evaluator.prefix for evaluator in registry.parse(specs)]
    assert prefixes == ["knn20", "knn200_embedding", "knn5_key", "linear"]
    assert "knn20/top1" in registry.parse(("knn",))[0].declared()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("knn(k=0)", "k must be a whole number of at least 1"),
        ("knn(temperature=0)", "temperature must be a positive number"),
        ("knn(space='logits')", "space must be one of features, embedding"),
        ("linear(l2=-1)", "l2 must be a number of at least 0"),
        ("linear(k=3)", "unexpected keyword"),
    ],
)
def test_settings_that_cannot_work_are_refused(spec, message):
    with pytest.raises(UserError, match=message):
        registry.parse((spec,))


def test_they_score_the_test_split_by_the_training_split(separable_config):
    separable_config.evaluation.evaluators = ("knn(7)", "linear(space='embedding', l2=0.1)")
    separable_config.checkpoint.best_metric = "knn7/top1"
    run = Run.open(separable_config)
    network = run.init_state().variables
    train, test = (
        extract(run.learner, network, run.eval_stream(source, print))
        for source in (run.dataset.train, run.dataset.test)
    )
    assert (len(train.labels), len(test.labels)) == (64, 32)
    by_votes, by_line = (
        evaluator.named(evaluator.evaluate(run, network, print)) for evaluator in run.evaluators
    )
    theirs = KNeighborsClassifier(
        7, metric="cosine", algorithm="brute", weights=lambda distance: np.exp(-distance / 0.07)
    ).fit(train.features, train.labels)
    assert by_votes["knn7/top1"] == pytest.approx(theirs.score(test.features, test.labels))
    assert by_line.keys() == {f"linear_embedding/{m}" for m in ("top1", "top5", "mean_per_class")}
    assert by_line["linear_embedding/top1"] > 0.5


def test_a_method_without_a_classifier_is_probed_from_its_first_stage(separable_config):
    separable_config.objective.name = "supcon"
    separable_config.data.views = 2
    separable_config.evaluation.evaluators = ("classification", "knn(7)")
    run = Run.open(separable_config)
    assert [[e.prefix for e in stage.evaluators] for stage in run.stages] == [
        ["knn7"],
        ["test", "knn7"],
    ]
