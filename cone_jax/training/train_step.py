"""One step of training: a pure function of state and batch, compiled once, state donated."""

import jax
import jax.numpy as jnp
import optax

from cone_jax import memory_bank, momentum, sharding
from cone_jax.memory_bank import MemoryBank
from cone_jax.objectives import Metrics
from cone_jax.training import atomic_update, batch_pass
from cone_jax.training.batch_pass import Batch, Passed
from cone_jax.training.train_state import TrainState, Tree, shardings, trainable


def _train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
    """Takes one step.

    `batch` holds ``image`` uint8 [B, H, W, 3] (or [B, 2, H, W, 3], two views), ``label`` [B] and
    ``id`` [B]. The given state is consumed (donated).

    The order is that of the method: average, key, query, loss against the bank as it was,
    optimiser, enqueue.
    """
    learner, needs, before = state.learner, state.learner.objective.needs, state
    step = state.step - learner.first_step
    rng = jax.random.fold_in(jax.random.wrap_key_data(state.rng), state.step)
    m = learner.key_momentum(step)
    if needs.key and not learner.key_after_update:
        state = state.replace(ema_params=momentum.update(state.ema_params, state.params, m))

    run = _in_parts if learner.accumulate > 1 else batch_pass.run
    passed = run(state, batch, rng)
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
        if learner.key_after_update:
            state = state.replace(ema_params=momentum.update(state.ema_params, params, m))
    state = state.replace(step=state.step + 1, params=params, opt_state=opt_state)
    if learner.averaging:
        averaged = learner.averaging.update(state.averaged, state.variables, step + 1)
        state = state.replace(averaged=averaged)

    finite = jnp.isfinite(metrics["gradient_norm"])
    if learner.skip_nonfinite:
        finite = atomic_update.all_finite((state.replace(bank=None), metrics, passed.keys))
    if needs.bank:
        state = state.replace(bank=_remember(before, passed, finite))
    if learner.skip_nonfinite:
        state, metrics = atomic_update.keep_if(finite, before, state, metrics)
    # Without this the compiler is free to leave parts of the state split over devices.
    placed = jax.lax.with_sharding_constraint(state, shardings(state))
    return placed, jax.lax.with_sharding_constraint(metrics, sharding.replicated(learner.mesh))


def _remember(before: TrainState, passed: Passed, finite: jax.Array) -> MemoryBank:
    """The bank with the keys of this batch, unless something about them is not finite.

    That is known when the gradient is, for which the bank has been read to the end. So its rows
    can be overwritten in place; were they free to change earlier, XLA would copy it first.
    """
    assert before.bank is not None and passed.state.bank is not None
    if before.learner.objective.needs.bank_first and not before.learner.skip_nonfinite:
        return passed.state.bank
    return memory_bank.enqueue(before.bank, **passed.keys, when=finite)


def _in_parts(state: TrainState, batch: Batch, rng: jax.Array) -> Passed:
    """The batch in `accumulate` parts, one after another, for the memory of one.

    Gradients and metrics are averaged; BatchNorm sees a part at a time; all parts see the bank
    as it was, and their keys are remembered together.
    """
    count = state.learner.accumulate

    def parts(x: jax.Array) -> jax.Array:
        # Part p has the rows p, p + count, ...: as many from each device as from the others.
        return x.reshape(-1, count, *x.shape[1:]).swapaxes(0, 1)

    def add(
        carry: tuple[Tree, Tree, Tree], part: tuple[jax.Array, Batch]
    ) -> tuple[tuple[Tree, Tree, Tree], tuple[Metrics, dict[str, jax.Array]]]:
        batch_stats, ema_batch_stats, gradients = carry
        within = state.replace(batch_stats=batch_stats, ema_batch_stats=ema_batch_stats)
        index, rows = part
        passed = batch_pass.run(within, rows, jax.random.fold_in(rng, index))
        total = jax.tree.map(jnp.add, gradients, passed.gradients)
        after = passed.state
        return (after.batch_stats, after.ema_batch_stats, total), (passed.metrics, passed.keys)

    nothing = jax.tree.map(jnp.zeros_like, trainable(state.learner, state.params))
    (batch_stats, ema_batch_stats, total), (metrics, keys) = jax.lax.scan(
        add,
        (state.batch_stats, state.ema_batch_stats, nothing),
        (jnp.arange(count), jax.tree.map(parts, batch)),
    )
    return Passed(
        gradients=jax.tree.map(lambda x: x / count, total),
        metrics=jax.tree.map(lambda x: jnp.mean(x, axis=0), metrics),
        state=state.replace(batch_stats=batch_stats, ema_batch_stats=ema_batch_stats),
        # Back into the order of the batch.
        keys=jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:]), keys),
    )


train_step = jax.jit(_train_step, donate_argnames="state")
