"""One step of training: a pure function of state and batch, compiled once, state donated."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from cone_jax import losses, memory_bank, momentum, sharding
from cone_jax.data.normalisation import normalise_images
from cone_jax.memory_bank import MemoryBank
from cone_jax.models import Encoder, EncoderOutput
from cone_jax.objectives import Metrics, StepInputs
from cone_jax.training.train_state import TrainState

Batch = dict[str, jax.Array]


def _train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
    """Takes one step.

    `batch` holds ``image`` uint8 [B, H, W, 3] (or [B, 2, H, W, 3]: the query's view and the
    key's), ``label`` [B] and ``id`` [B]. The given state is consumed (donated).

    The order is that of the method: average, key, query, loss against the bank as it was,
    optimiser, enqueue.
    """
    learner = state.learner
    images = normalise_images(batch["image"], learner.mean, learner.std)
    query_images, key_images = (images[:, 0], images[:, 1]) if images.ndim == 5 else (images,) * 2
    query_rng, key_rng = jax.random.split(
        jax.random.fold_in(jax.random.wrap_key_data(state.rng), state.step)
    )
    m = learner.key_momentum(state.step)
    key = None
    if learner.objective.needs.key:
        if not learner.key_after_update:
            state = state.replace(ema_params=momentum.update(state.ema_params, state.params, m))
        key, ema_batch_stats = _forward(learner.encoder, state.key_variables, key_images, key_rng)
        state = state.replace(ema_batch_stats=ema_batch_stats)

    def loss_function(params: Any) -> tuple[jax.Array, tuple[Metrics, EncoderOutput, Any]]:
        variables = {"params": params, "batch_stats": state.batch_stats}
        query, batch_stats = _forward(learner.encoder, variables, query_images, query_rng)
        loss, metrics = learner.objective(
            StepInputs(
                query=query,
                key=key,
                labels=batch["label"],
                exclude_ids=batch["id"] if learner.exclude_self else None,
                bank=state.bank,
                epoch=state.step // learner.steps_per_epoch,
            )
        )
        return loss, (metrics, query, batch_stats)

    (loss, (metrics, query, batch_stats)), gradients = jax.value_and_grad(
        loss_function, has_aux=True
    )(state.params)
    updates, opt_state = learner.optimizer.update(gradients, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    metrics = {
        "loss": loss,
        **metrics,
        "top1": jnp.mean(jnp.argmax(query.logits, axis=-1) == batch["label"]),
        "learning_rate": jnp.asarray(learner.learning_rate(state.step), jnp.float32),
        "gradient_norm": optax.tree.norm(gradients),
    }
    if learner.objective.needs.key:
        metrics["ema_momentum"] = m
        if learner.key_after_update:
            state = state.replace(ema_params=momentum.update(state.ema_params, params, m))
    if learner.objective.needs.bank:
        state = state.replace(bank=_remember(state.bank, key, batch))
    state = state.replace(
        step=state.step + 1, params=params, batch_stats=batch_stats, opt_state=opt_state
    )
    # Without this the compiler is free to leave parts of the state split over devices.
    return jax.lax.with_sharding_constraint((state, metrics), sharding.replicated(learner.mesh))


def _forward(
    encoder: Encoder, variables: dict[str, Any], images: jax.Array, rng: jax.Array
) -> tuple[EncoderOutput, Any]:
    """A train-mode pass: BatchNorm uses and records the statistics of this batch."""
    output, updated = encoder.apply(
        variables, images, train=True, mutable=["batch_stats"], rngs={"dropout": rng}
    )
    return output, updated.get("batch_stats", {})


def _remember(bank: MemoryBank | None, key: EncoderOutput | None, batch: Batch) -> MemoryBank:
    assert bank is not None and key is not None
    return memory_bank.enqueue(
        bank,
        losses.normalise(key.embedding),
        batch["label"],
        jax.nn.softmax(key.logits),
        batch["id"],
    )


train_step = jax.jit(_train_step, donate_argnames="state")
