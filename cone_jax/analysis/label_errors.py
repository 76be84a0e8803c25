"""Finds wrong labels: neighbours and an out-of-sample prediction testify about each.

A network that has trained on a picture has learned its label, right or wrong. So each picture is
judged by a network that has not: the test pictures by the run's own, each fold of the training
pictures by one that was trained on the other folds (`fold_configs`). That network's training
pictures, every one once and as test pictures, form a memory bank, where a picture has its
neighbours. Two witnesses speak for or against a class, both out of sample: the classifier
itself, and what the classifiers of the neighbours' own folds say about the neighbours. Their given
labels have no vote: some of them are wrong, too.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from cone_jax import losses, memory_bank
from cone_jax.console import Report
from cone_jax.data.sources import Source, splits
from cone_jax.evaluation import inference
from cone_jax.evaluation.registry import Variables
from cone_jax.models import EncoderOutput
from cone_jax.training.run import Run

NEIGHBOURS = 20  # that vote
TEMPERATURE = 0.1  # of their similarities, as in the contrastive term
# Of the neighbours in the verdict: chosen on seed 100 of `benchmarks/study_label_errors.py`, sets
# imagewoof_frozen and cifar100_frozen. From 0.4 to 0.75 little changes.
NEIGHBOURS_SHARE = 0.5
_BLOCK = 512  # queries at a time

_neighbours = jax.jit(memory_bank.neighbours, static_argnums=2)


class Evidence(NamedTuple):
    """The evidence about the labels of n pictures. C classes, k neighbours."""

    records: np.ndarray  # [n], of the split in question
    labels: np.ndarray  # [n], as given
    probabilities: np.ndarray  # [n, C], of a classifier that has not seen the picture
    neighbours: np.ndarray  # [n, k], training records, most similar first; -1: there is none
    neighbour_labels: np.ndarray  # [n, k], as given
    similarity: np.ndarray  # [n, k]; 0 where there is no neighbour


class Suspicion(NamedTuple):
    """How much the evidence contradicts each of n labels."""

    scores: np.ndarray  # [n], from 0, nothing, to 1, everything
    proposed: np.ndarray  # [n], the class other than the label that most speaks for
    classifier: np.ndarray  # [n], what it gives the label, and the proposed class
    classifier_proposed: np.ndarray
    neighbours: np.ndarray  # [n], the same of the neighbours
    neighbours_proposed: np.ndarray
    doubted: np.ndarray  # [n], whether both together give the proposed class more than the label


def fold_configs(config: ConfigDict, count: int) -> list[ConfigDict]:
    """The configs of `count` runs like `config`, each of which leaves out one fold of train.

    They need no evaluation during training, and no best checkpoint.
    """
    configs = []
    for fold in range(count):
        one = config.copy_and_resolve_references()
        with one.unlocked():
            one.data.folds, one.data.fold = count, fold
            one.evaluation.evaluators = ("classification",)
            one.evaluation.every_epochs = 0.0
            one.checkpoint.best_metric = ""
            one.wandb_project = ""
            one.derive, one.budget = (), ""  # the run's own values, not new ones for fewer pictures
        configs.append(one)
    return configs


def examine(run: Run, variables: Variables, report: Report, *, own: bool = False) -> Evidence:
    """The evidence of a network of `run` and its training pictures about the run's test split.

    With `own`, about its training split: a picture is then not its own neighbour, but the network
    has seen its label.
    """
    train = _look(run, variables, run.dataset.train, report)
    asked = train if own else _look(run, variables, run.dataset.test, report)
    count = len(train["label"])
    bank = memory_bank.init(count, train["embedding"].shape[-1], num_classes=0)
    columns = {name: jnp.asarray(train[name]) for name in ("embedding", "label", "id")}
    bank = memory_bank.enqueue(bank, columns["embedding"], columns["label"], None, columns["id"])
    near = _nearest(bank, asked, min(NEIGHBOURS, count), own)
    logits = asked["logits"].astype(np.float64)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return Evidence(
        records=asked["id"],
        labels=asked["label"],
        probabilities=weights / weights.sum(axis=-1, keepdims=True),
        neighbours=np.where(near.valid, train["id"][near.rows], memory_bank.NO_ID),
        neighbour_labels=np.asarray(near.labels),
        similarity=np.asarray(near.similarity),
    )


def _look(run: Run, variables: Variables, source: Source, report: Report) -> inference.Rows:
    """The network's outputs for each readable picture; the others cannot be judged."""
    stream = run.eval_stream(source, report, readable_only=True)
    return inference.infer(run.learner, variables, stream, _said)


def _said(out: EncoderOutput, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    embedding = losses.normalise(out.embedding)
    said = {"logits": out.logits, "embedding": embedding}
    return said | {name: batch[name] for name in ("label", "id")}


def _nearest(
    bank: memory_bank.MemoryBank, asked: inference.Rows, k: int, own: bool
) -> memory_bank.Neighbours:
    """The neighbours of all pictures asked about, on the host."""

    def blocks() -> Iterator[memory_bank.Neighbours]:
        for first in range(0, len(asked["id"]), _BLOCK):
            rows = slice(first, first + _BLOCK)
            hidden = jnp.asarray(asked["id"][rows]) if own else None
            yield jax.device_get(_neighbours(bank, asked["embedding"][rows], k, hidden))

    return jax.tree.map(lambda *parts: np.concatenate(parts), *blocks())


def combine(parts: Sequence[Evidence], source: Source, seed: int) -> Evidence:
    """The evidence about all of train, from that of each fold about its own pictures."""
    fold = splits.folds_of(source, len(parts), seed)
    moved = []
    for number, part in enumerate(parts):
        inside, outside = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        known = part.neighbours != memory_bank.NO_ID
        moved.append(
            part._replace(
                records=inside[part.records],
                neighbours=np.where(known, outside[part.neighbours], memory_bank.NO_ID),
            )
        )
    return Evidence(*(np.concatenate(columns) for columns in zip(*moved, strict=True)))


def suspect(evidence: Evidence, train: Evidence) -> Suspicion:
    """Ranks the labels of `evidence`; `train` is the evidence about all training pictures.

    The score is 1 minus what the two witnesses together give the label: their geometric mean.
    """
    said, rows = votes(evidence, train), np.arange(len(evidence.labels))
    belief = evidence.probabilities ** (1.0 - NEIGHBOURS_SHARE) * said**NEIGHBOURS_SHARE
    others = belief.copy()
    others[rows, evidence.labels] = -1.0
    proposed = others.argmax(axis=-1)
    return Suspicion(
        scores=1.0 - belief[rows, evidence.labels],
        proposed=proposed,
        classifier=evidence.probabilities[rows, evidence.labels],
        classifier_proposed=evidence.probabilities[rows, proposed],
        neighbours=said[rows, evidence.labels],
        neighbours_proposed=said[rows, proposed],
        doubted=belief[rows, proposed] > belief[rows, evidence.labels],
    )


def votes(evidence: Evidence, train: Evidence) -> np.ndarray:
    """[n, C]: the mean out-of-sample prediction of each picture's neighbours in train.

    Each counts by exp(similarity / `TEMPERATURE`). A picture without neighbours gets the
    classifier's own prediction.
    """
    place = np.full(max(train.records.max(), evidence.neighbours.max()) + 1, -1)
    place[train.records] = np.arange(len(train.records))
    rows = np.where(evidence.neighbours >= 0, place[evidence.neighbours], -1)
    known = rows >= 0
    weights = np.exp(evidence.similarity.astype(np.float64) / TEMPERATURE) * known
    total = weights.sum(axis=-1, keepdims=True)
    said = np.einsum("nk,nkc->nc", weights, train.probabilities[rows])
    return np.where(total > 0, said / np.maximum(total, 1e-30), evidence.probabilities)
