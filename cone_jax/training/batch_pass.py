"""A batch on its way through the networks: to the loss, its gradient, and the keys to remember."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cone_jax import losses, memory_bank
from cone_jax.data import mixing
from cone_jax.data.normalisation import normalise_images
from cone_jax.memory_bank import MemoryBank
from cone_jax.models import EncoderOutput
from cone_jax.objectives import Activation, ClassCentres, Metrics, MixedLabels, Needs, StepInputs
from cone_jax.training.learner import Learner
from cone_jax.training.train_state import TrainState, Tree, trainable

Batch = dict[str, jax.Array]


class Rows(NamedTuple):
    """A batch as the objective wants it: R rows, one or two of each sample."""

    query_images: jax.Array  # [R, H, W, 3] normalised
    key_images: jax.Array
    labels: jax.Array  # [R]
    ids: jax.Array  # [R]
    mixed: MixedLabels | None

    @property
    def main_labels(self) -> jax.Array:
        """The label that each image has most of."""
        if self.mixed is None:
            return self.labels
        return jnp.where(self.mixed.weight >= 0.5, self.labels, self.mixed.labels)


class Passed(NamedTuple):
    """What a batch leaves behind."""

    gradients: Tree
    metrics: Metrics
    state: TrainState  # with new BatchNorm statistics and, if the bank comes first, a new bank
    keys: dict[str, jax.Array]  # to be enqueued after the update; empty: there is no bank


def run(state: TrainState, batch: Batch, rng: jax.Array) -> Passed:
    """Key, query, loss against the bank, gradient. The parameters stay as they are.

    `batch` holds ``image`` uint8 [B, H, W, 3] (or [B, 2, H, W, 3], two views), ``label`` [B] and
    ``id`` [B].
    """
    learner, needs = state.learner, state.learner.objective.needs
    rngs = jax.random.split(rng, 3)
    rows = _arrange(learner, batch, rngs[0])
    key: EncoderOutput | None = None
    keys: dict[str, jax.Array] = {}
    if needs.key:
        key, ema_batch_stats = _forward(learner, state.key_variables, rows.key_images, rngs[1])
        state = state.replace(ema_batch_stats=ema_batch_stats)
        if needs.bank_first:
            assert state.bank is not None
            first = _to_remember(key, rows, needs, state.bank)
            state = state.replace(bank=memory_bank.enqueue(state.bank, **first))

    def loss_function(trained: Tree) -> tuple[jax.Array, tuple[Metrics, EncoderOutput, Tree]]:
        variables = {"params": {**state.params, **trained}, "batch_stats": state.batch_stats}
        query, batch_stats = _forward(learner, variables, rows.query_images, rngs[2])
        inputs = _step_inputs(state, rows, query, key, variables, rngs[2])
        loss, metrics = learner.objective(inputs)
        return loss, (metrics, query, batch_stats)

    (loss, (metrics, query, batch_stats)), gradients = jax.value_and_grad(
        loss_function, has_aux=True
    )(trainable(learner, state.params))
    metrics = {"loss": loss, **metrics}
    if needs.classifier:
        metrics["top1"] = jnp.mean(jnp.argmax(query.logits, axis=-1) == rows.main_labels)
    if state.bank is not None:
        keys = _to_remember(query if key is None else key, rows, needs, state.bank)
    return Passed(gradients, metrics, state.replace(batch_stats=batch_stats), keys)


def _arrange(learner: Learner, batch: Batch, rng: jax.Array) -> Rows:
    """Normalises, mixes, and lays out the views as rows where the objective wants that."""
    images = normalise_images(batch["image"], learner.mean, learner.std)
    views = (images[:, 0], images[:, 1]) if images.ndim == 5 else (images,)
    labels, ids, mixed = batch["label"], batch["id"], None
    if learner.mixing:
        settings = learner.mixing
        result = mixing.mix(
            rng,
            views,
            labels,
            mixup_alpha=settings.mixup_alpha,
            cutmix_alpha=settings.cutmix_alpha,
            switch=settings.switch,
        )
        views, mixed = result.images, MixedLabels(result.labels_b, result.weight)
    if learner.objective.needs.views != "rows":
        return Rows(views[0], views[-1], labels, ids, mixed)
    # Views next to each other: rows stay on the device that has their sample.
    pairs = jnp.stack(views, axis=1)
    rows = pairs.reshape(-1, *pairs.shape[2:])
    labels, ids, mixed = jax.tree.map(lambda x: jnp.repeat(x, 2, axis=0), (labels, ids, mixed))
    return Rows(rows, rows, labels, ids, mixed)


def _forward(
    learner: Learner, variables: dict[str, Any], images: jax.Array, rng: jax.Array
) -> tuple[EncoderOutput, Tree]:
    """A train-mode pass: BatchNorm uses and records the statistics of this batch.

    A frozen network is used as in evaluation instead.
    """
    train = not learner.objective.needs.frozen
    output, updated = learner.encoder.apply(
        variables, images, train=train, mutable=["batch_stats"], rngs={"dropout": rng}
    )
    return output, updated.get("batch_stats", {})


def _step_inputs(
    state: TrainState,
    rows: Rows,
    query: EncoderOutput,
    key: EncoderOutput | None,
    variables: dict[str, Any],
    rng: jax.Array,
) -> StepInputs:
    """What the objective asks for, and nothing else."""
    learner, needs = state.learner, state.learner.objective.needs
    step = state.step - learner.first_step
    centres = None
    if needs.class_centres:
        classifier = learner.encoder.spec.classifier
        seen = query.embedding if classifier.input == "embedding" else query.features
        centres = ClassCentres(seen, variables["params"]["classifier"]["kernel"])

    def from_features(features: jax.Array) -> jax.Array:
        output, _ = learner.encoder.apply(
            variables,
            features,
            train=True,
            mutable=["batch_stats"],
            rngs={"dropout": rng},
            method="from_features",
        )
        return output.logits

    def from_images(images: jax.Array) -> jax.Array:
        return _forward(learner, variables, images, rng)[0].logits

    def classify_key(embedding: jax.Array) -> jax.Array:
        return jax.nn.softmax(learner.encoder.classify(state.key_variables, embedding))

    layers = {
        "images": Activation(rows.query_images, from_images),
        "features": Activation(query.features, from_features),
    }
    return StepInputs(
        query=query,
        labels=rows.labels,
        epoch=step // learner.steps_per_epoch,
        step=step,
        key=key,
        bank=state.bank,
        classify_key=classify_key if needs.bank_probs else None,
        exclude_ids=rows.ids if learner.exclude_self else None,
        mixed=rows.mixed,
        class_centres=centres,
        layers={name: layers[name] for name in needs.layers} if needs.layers else None,
        class_prior=jnp.asarray(learner.class_prior) if needs.class_prior else None,
    )


def _to_remember(
    output: EncoderOutput, rows: Rows, needs: Needs, bank: MemoryBank
) -> dict[str, jax.Array]:
    """What goes to the bank: all keys, or of the query's rows the first views."""
    keys = {
        "features": losses.normalise(output.embedding),
        "labels": rows.main_labels,
        "probs": jax.nn.softmax(output.logits),
        "ids": rows.ids,
    }
    if bank.norms is not None:
        keys["norms"] = jnp.linalg.norm(output.embedding, axis=-1)
    stride = 2 if needs.views == "rows" and not needs.key else 1
    return jax.tree.map(lambda x: jax.lax.stop_gradient(x)[::stride], keys)
