"""One step of training: a pure function of state and batch, compiled once, state donated.

It reads from top to bottom: `_train_step` takes the step; `_pass_batch` is the way of the batch to
loss, gradient and keys, whole or in parts; `_remember` and `_keep_if` decide what the step leaves
behind. An update is made completely or not at all: `optax.apply_if_finite` protects parameters and
optimiser, but one bad batch would spoil BatchNorm's statistics, the momentum network, the average
and thousands of steps' keys in the bank for good, so the choice is made once, for all of them.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from cone_jax import distributed, losses, memory_bank, momentum
from cone_jax.data import on_device
from cone_jax.memory_bank import MemoryBank
from cone_jax.models import EncoderOutput
from cone_jax.objectives import Activation, ClassCentres, Metrics, MixedLabels, Needs, StepInputs
from cone_jax.training import optimizers
from cone_jax.training.train_state import (
    BANK_LAYOUTS,
    Learner,
    TrainState,
    Tree,
    placements,
    shardings,
    trainable,
    weight_shardings,
)

Batch = dict[str, jax.Array]


class NetworkInputs(NamedTuple):
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


class BatchResult(NamedTuple):
    """What a batch leaves behind."""

    gradients: Tree
    metrics: Metrics
    state: TrainState  # with new BatchNorm statistics and, if the bank comes first, a new bank
    keys: dict[str, jax.Array]  # to be enqueued after the update; empty: there is no bank


def _train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
    """Takes one step.

    `batch` holds ``image`` uint8 [B, H, W, 3] (or [B, 2, H, W, 3], two views), ``label`` [B] and
    ``id`` [B]. The given state is consumed (donated).

    The order is that of the method: average, key, query, loss against the bank as it was,
    optimiser, enqueue.
    """
    learner, needs, before = state.learner, state.learner.objective.needs, state
    settings, step = learner.settings, state.step - learner.first_step
    rng = jax.random.fold_in(jax.random.wrap_key_data(state.rng), state.step)
    m = learner.key_momentum(step)
    if needs.key and settings.ema.order == "before_forward":
        state = state.replace(ema_params=momentum.update(state.ema_params, state.params, m))

    take = _pass_in_parts if settings.accumulate > 1 else _pass_batch
    passed = take(_gathered(state) if learner.sharded else state, batch, rng)
    if learner.sharded:
        passed = _scattered(passed, state)
    state = passed.state
    trained = trainable(learner, state.params)
    updates, opt_state = learner.optimizer.update(passed.gradients, state.opt_state, trained)
    params = {**state.params, **optax.apply_updates(trained, updates)}
    metrics = {
        **passed.metrics,
        "learning_rate": jnp.asarray(learner.learning_rate(step), jnp.float32),
        "gradient_norm": optax.tree.norm(passed.gradients),
    }
    if needs.key:
        metrics["ema_momentum"] = m
        if settings.ema.order == "after_update":
            state = state.replace(ema_params=momentum.update(state.ema_params, params, m))
    state = state.replace(step=state.step + 1, params=params, opt_state=opt_state)
    if learner.averaging:
        averaged = learner.averaging.update(state.averaged, state.variables, step + 1)
        state = state.replace(averaged=averaged)

    finite = jnp.isfinite(metrics["gradient_norm"])
    if settings.nonfinite.policy == "skip":
        finite = optimizers.all_finite((state.replace(bank=None), metrics, passed.keys))
    if needs.bank:
        state = state.replace(bank=_remember(before, passed, finite))
    if settings.nonfinite.policy == "skip":
        state, metrics = _keep_if(finite, before, state, metrics)
    # Without this the compiler is free to leave parts of the state split over devices.
    placed = jax.lax.with_sharding_constraint(state, shardings(state))
    return placed, jax.lax.with_sharding_constraint(metrics, distributed.replicated(learner.mesh))


def _gathered(state: TrainState) -> TrainState:
    """The state with whole networks on every device, which is how they meet the batch.

    Left to itself the compiler may split a layer's arithmetic as its weights are split, and send
    activations instead, which are larger.
    """
    whole = distributed.replicated(state.learner.mesh)
    networks = {"params": state.params, "ema_params": state.ema_params}
    return state.replace(**jax.lax.with_sharding_constraint(networks, whole))


def _scattered(passed: BatchResult, before: TrainState) -> BatchResult:
    """The result with networks and gradients in parts again, which is how they are updated."""
    places = weight_shardings(before.learner.mesh, passed.gradients)
    return passed._replace(
        gradients=jax.lax.with_sharding_constraint(passed.gradients, places),
        state=passed.state.replace(params=before.params, ema_params=before.ema_params),
    )


def _pass_in_parts(state: TrainState, batch: Batch, rng: jax.Array) -> BatchResult:
    """The batch in `accumulate` parts, one after another, for the memory of one.

    Gradients and metrics are averaged; BatchNorm sees a part at a time; all parts see the bank
    as it was, and their keys are remembered together.
    """
    count = state.learner.settings.accumulate

    def parts(x: jax.Array) -> jax.Array:
        # Part p has the rows p, p + count, ...: as many from each device as from the others.
        return x.reshape(-1, count, *x.shape[1:]).swapaxes(0, 1)

    def add(
        carry: tuple[Tree, Tree, Tree], part: tuple[jax.Array, Batch]
    ) -> tuple[tuple[Tree, Tree, Tree], tuple[Metrics, dict[str, jax.Array]]]:
        batch_stats, ema_batch_stats, gradients = carry
        within = state.replace(batch_stats=batch_stats, ema_batch_stats=ema_batch_stats)
        index, rows = part
        passed = _pass_batch(within, rows, jax.random.fold_in(rng, index))
        total = jax.tree.map(jnp.add, gradients, passed.gradients)
        after = passed.state
        return (after.batch_stats, after.ema_batch_stats, total), (passed.metrics, passed.keys)

    nothing = jax.tree.map(jnp.zeros_like, trainable(state.learner, state.params))
    (batch_stats, ema_batch_stats, total), (metrics, keys) = jax.lax.scan(
        add,
        (state.batch_stats, state.ema_batch_stats, nothing),
        (jnp.arange(count), jax.tree.map(parts, batch)),
    )
    return BatchResult(
        gradients=jax.tree.map(lambda x: x / count, total),
        metrics=jax.tree.map(lambda x: jnp.mean(x, axis=0), metrics),
        state=state.replace(batch_stats=batch_stats, ema_batch_stats=ema_batch_stats),
        # Back into the order of the batch.
        keys=jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:]), keys),
    )


def _pass_batch(state: TrainState, batch: Batch, rng: jax.Array) -> BatchResult:
    """Key, query, loss against the bank, gradient. The parameters stay as they are."""
    learner, needs = state.learner, state.learner.objective.needs
    if needs.labels == "objects":
        images = on_device.normalise_images(batch["image"], learner.mean, learner.std)
        compute = learner.objective.batch_gradients
        gradients, metrics, stats = compute(learner.encoder, state.variables, images, batch, rng)
        return BatchResult(gradients, metrics, state.replace(batch_stats=stats), {})
    rngs = jax.random.split(rng, 3)
    rows = _arrange(learner, batch, rngs[0])
    key: EncoderOutput | None = None
    keys: dict[str, jax.Array] = {}
    if needs.key:
        key, ema_batch_stats = _forward(learner, state.key_variables, rows.key_images, rngs[1])
        if distributed.platform(learner.mesh) == "tpu" and distributed.slices(learner.mesh) == 1:
            # The query's pass begins when the key's is over. Left to itself the compiler takes the
            # layers of both by turns, and less of either stays in the fast memory. Taking turns, it
            # sends the statistics of both in one transfer, which counts for more between slices.
            done, images = jax.lax.optimization_barrier(((key, ema_batch_stats), rows.query_images))
            (key, ema_batch_stats), rows = done, rows._replace(query_images=images)
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
    return BatchResult(gradients, metrics, state.replace(batch_stats=batch_stats), keys)


def _arrange(learner: Learner, batch: Batch, rng: jax.Array) -> NetworkInputs:
    """Normalises, mixes, and lays out the views as rows where the objective wants that."""
    images = on_device.normalise_images(batch["image"], learner.mean, learner.std)
    views = (images[:, 0], images[:, 1]) if images.ndim == 5 else (images,)
    labels, ids, mixed = batch["label"], batch["id"], None
    if learner.mixing:
        result = on_device.mix(
            rng,
            views,
            labels,
            mixup_alpha=learner.mixing.mixup_alpha,
            cutmix_alpha=learner.mixing.cutmix_alpha,
            switch=learner.mixing.switch,
        )
        views, mixed = result.images, MixedLabels(result.labels_b, result.weight)
    if learner.objective.needs.views != "rows":
        return NetworkInputs(views[0], views[-1], labels, ids, mixed)
    # Views next to each other: rows stay on the device that has their sample.
    pairs = jnp.stack(views, axis=1)
    rows = pairs.reshape(-1, *pairs.shape[2:])
    labels, ids, mixed = jax.tree.map(lambda x: jnp.repeat(x, 2, axis=0), (labels, ids, mixed))
    return NetworkInputs(rows, rows, labels, ids, mixed)


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
    rows: NetworkInputs,
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
        exclude_ids=rows.ids if learner.settings.bank.exclude_self else None,
        mixed=rows.mixed,
        class_centres=centres,
        layers={name: layers[name] for name in needs.layers} if needs.layers else None,
        class_prior=jnp.asarray(learner.class_prior) if needs.class_prior else None,
    )


def _to_remember(
    output: EncoderOutput, rows: NetworkInputs, needs: Needs, bank: MemoryBank
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


def _remember(before: TrainState, passed: BatchResult, finite: jax.Array) -> MemoryBank:
    """The bank with the keys of this batch, unless something about them is not finite.

    That is known when the gradient is, for which the bank has been read to the end. So its rows
    can be overwritten in place; were they free to change earlier, XLA would copy it first.
    """
    assert before.bank is not None and passed.state.bank is not None
    learner = before.learner
    if learner.objective.needs.bank_first and learner.settings.nonfinite.policy != "skip":
        return passed.state.bank
    return memory_bank.enqueue(before.bank, **passed.keys, when=finite)


def _keep_if(
    finite: jax.Array, before: TrainState, after: TrainState, metrics: Metrics
) -> tuple[TrainState, Metrics]:
    """The state `after` a step if `finite`, otherwise that `before`. The bank is `after`'s.

    The step is counted either way, so that data and random numbers go on; the optimiser's own
    counts, and with them the learning rate, stay where they were. The metrics get ``skipped``,
    0 or 1, and the learning rate really used.

    Costs a second copy of everything but the bank while the step runs.
    """
    kept = jax.tree.map(
        lambda new, old: jnp.where(finite, new, old),
        after.replace(bank=None),
        before.replace(bank=None),
    )
    made = optimizers.updates_made(before.opt_state)
    rate = jnp.asarray(before.learner.learning_rate(made), jnp.float32)
    skipped = jnp.logical_not(finite).astype(jnp.float32)
    kept = kept.replace(step=after.step, bank=after.bank)
    return kept, {**metrics, "learning_rate": rate, "skipped": skipped}


class TrainStep:
    """`_train_step`, compiled once per learner and shapes of its arguments, the state donated.

    The results have the layouts of the arguments; otherwise the bank could not stay in place.
    """

    def __init__(self) -> None:
        self._anywhere = jax.jit(_train_step, donate_argnames="state")
        self._laid_out: dict[Learner, Any] = {}

    def __call__(self, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        return self._for(state)(state, batch)

    def trace(self, state: TrainState, batch: Batch) -> jax.stages.Traced:
        """As that of a function under `jax.jit`."""
        return self._for(state).trace(state, batch)

    def lower(self, state: TrainState, batch: Mapping[str, Any]) -> jax.stages.Lowered:
        """As that of a function under `jax.jit`."""
        return self._for(state).lower(state, batch)

    def _for(self, state: TrainState) -> Any:
        learner = state.learner
        if state.bank is None or distributed.platform(learner.mesh) not in BANK_LAYOUTS:
            return self._anywhere
        if learner not in self._laid_out:
            self._laid_out[learner] = jax.jit(
                _train_step,
                donate_argnames="state",
                out_shardings=(placements(state), distributed.replicated(learner.mesh)),
            )
        return self._laid_out[learner]

    def _cache_size(self) -> int:
        return sum(step._cache_size() for step in (self._anywhere, *self._laid_out.values()))


train_step = TrainStep()
