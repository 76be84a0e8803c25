"""How good features are: nearest neighbours, linear classifiers, a few examples per class."""

from cone_jax.evaluation.probes.extraction import Features, extract
from cone_jax.evaluation.probes.few_shot import few_shot_scores
from cone_jax.evaluation.probes.knn import knn_scores
from cone_jax.evaluation.probes.linear import linear_scores

__all__ = ["Features", "extract", "few_shot_scores", "knn_scores", "linear_scores"]
