"""Evaluators by the kind a config names, and whether they fit the rest of it."""

from collections.abc import Iterable

from ml_collections import ConfigDict

from cone_jax import spec_strings
from cone_jax.console import Metric, find_metric
from cone_jax.errors import UserError, closest
from cone_jax.evaluation.classification import Classification
from cone_jax.evaluation.evaluator import Evaluator
from cone_jax.evaluation.probes.evaluators import Knn, Linear
from cone_jax.evaluation.real_labels import Real
from cone_jax.evaluation.robustness import Robustness
from cone_jax.objectives import Needs
from cone_jax.registry import Registry

_OWN: dict[str, type[Evaluator]] = {
    "classification": Classification,
    "knn": Knn,
    "linear": Linear,
    "robustness": Robustness,
    "real": Real,
}
KINDS = Registry(
    "evaluator",
    "cone_jax.evaluators",
    _OWN,
    form="a subclass of cone_jax.evaluation.evaluator.Evaluator",
    accepts=lambda thing: isinstance(thing, type) and issubclass(thing, Evaluator),
)


def parse(specs: Iterable[str]) -> tuple[Evaluator, ...]:
    """The evaluators that a config's list describes.

    >>> [evaluator.prefix for evaluator in parse(("classification(network='key')",))]
    ['test_key']
    """
    if isinstance(specs, str):
        raise UserError(f"evaluation.evaluators must be a list of strings, not {specs!r}")
    evaluators = tuple(_evaluator(spec) for spec in specs)
    prefixes = [evaluator.prefix for evaluator in evaluators]
    for prefix in prefixes:
        if prefixes.count(prefix) > 1:
            raise UserError(
                f"evaluation.evaluators has two called {prefix!r}; give one another name='...'"
            )
    return evaluators


def declared_metrics(config: ConfigDict) -> dict[str, Metric]:
    """What the evaluators of a config find, by full names."""
    evaluators = parse(config.evaluation.evaluators)
    return {name: metric for each in evaluators for name, metric in each.declared().items()}


def lower_is_better(config: ConfigDict) -> bool:
    """Whether ``checkpoint.best_metric`` is one of which less is better."""
    metric = find_metric(declared_metrics(config), config.checkpoint.best_metric)
    return metric.better == "lower"


def fits(evaluator: Evaluator, needs: Needs, *, averaged: bool) -> bool:
    """Whether a stage has what an evaluator looks at: its classifier, its network."""
    if evaluator.needs_classifier and not needs.classifier:
        return False
    return {"key": needs.key, "averaged": averaged}.get(evaluator.network, True)


def check(config: ConfigDict, stages: Iterable[tuple[Needs, bool]]) -> None:
    """Refuses evaluators no stage can serve, and a best metric that none of them finds.

    `stages` holds, of each, what its objective needs and whether it has an averaged model.
    """
    evaluators = parse(config.evaluation.evaluators)
    stages = tuple(stages)
    for spec, evaluator in zip(config.evaluation.evaluators, evaluators, strict=True):
        if not any(fits(evaluator, needs, averaged=averaged) for needs, averaged in stages):
            cure = "set average.decay" if evaluator.network == "averaged" else "leave network out"
            raise UserError(
                f"evaluation.evaluators ({spec}): {config.objective.name} has no "
                f"{evaluator.network} network to evaluate; {cure}"
            )
    metric = config.checkpoint.best_metric
    known = declared_metrics(config)
    if metric and metric not in known:
        cure = closest(metric, known) if known else 'set it to ""'
        raise UserError(
            f"checkpoint.best_metric ({metric!r}) is found by none of evaluation.evaluators; {cure}"
        )


def _evaluator(spec: str) -> Evaluator:
    return spec_strings.build(
        spec,
        KINDS,
        where=f"evaluation.evaluators ({spec})",
        noun="evaluator",
        example="knn(k=20, every_epochs=5)",
    )
