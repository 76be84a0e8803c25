"""Everything that training changes, in one pytree."""

import functools
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from cone_jax import memory_bank, sharding
from cone_jax.memory_bank import MemoryBank
from cone_jax.models import EncoderOutput
from cone_jax.training import learner as learners
from cone_jax.training.learner import Learner

Tree = Any


class TrainState(flax.struct.PyTreeNode):
    """The state between two steps; replicated over all devices, unless the bank is split.

    The fields of the momentum network and the bank are None for an objective that has no use
    for them, `averaged` unless the config asks for it. `learner` is not data: it holds the
    functions that the state is used with.
    """

    step: jax.Array  # steps taken so far
    params: Tree
    batch_stats: Tree
    opt_state: Tree
    ema_params: Tree | None
    ema_batch_stats: Tree | None
    bank: MemoryBank | None
    averaged: Tree | None  # params and batch_stats of the averaged model
    rng: jax.Array  # key data; step t uses fold_in(rng, t)
    learner: Learner = flax.struct.field(pytree_node=False)

    @property
    def variables(self) -> dict[str, Tree]:
        """The query network, as `encoder.apply` takes it."""
        return {"params": self.params, "batch_stats": self.batch_stats}

    @property
    def key_variables(self) -> dict[str, Tree]:
        """The momentum network."""
        return {"params": self.ema_params, "batch_stats": self.ema_batch_stats}

    @property
    def evaluated(self) -> dict[str, Tree]:
        """The network that is evaluated and deployed: the averaged one where there is one."""
        return self.variables if self.averaged is None else self.averaged

    def network(self, name: str) -> dict[str, Tree]:
        """The network of that name in `evaluator.NETWORKS`."""
        if name == "averaged":
            assert self.averaged is not None
            return self.averaged
        networks = {
            "evaluated": self.evaluated,
            "query": self.variables,
            "key": self.key_variables,
        }
        return networks[name]

    def with_weights(self, variables: dict[str, Tree]) -> "TrainState":
        """The state with the network, its momentum copy and its average replaced.

        Each gets buffers of its own: a donated buffer must not be in the state twice.
        """

        def placed(collection: Tree) -> Tree:
            replicated = sharding.replicated(self.learner.mesh)
            return jax.device_put(jax.tree.map(np.array, collection), replicated)

        params, batch_stats = variables["params"], variables.get("batch_stats", {})
        has_key, has_average = self.ema_params is not None, self.averaged is not None
        return self.replace(
            params=placed(params),
            batch_stats=placed(batch_stats),
            ema_params=placed(params) if has_key else None,
            ema_batch_stats=placed(batch_stats) if has_key else None,
            averaged=placed({"params": params, "batch_stats": batch_stats})
            if has_average
            else None,
        )


def init_state(
    config: ConfigDict,
    rng: jax.Array,
    *,
    num_classes: int,
    steps_per_epoch: int,
    mesh: Mesh | None = None,
    first_step: int = 0,
    class_prior: tuple[float, ...] | None = None,
) -> TrainState:
    """The state before the first step, replicated over `mesh` (default: all devices).

    A later stage of a run begins at `first_step`. `class_prior`, the share of each class in the
    training set, is for objectives that need it.

    >>> from cone_jax import config as config_lib
    >>> config = config_lib.default()
    >>> config.model.update({"name": "resnet8", "stem": "cifar", "head_hidden": 16})
    >>> config.bank.size = 512
    >>> state = init_state(config, jax.random.key(0), num_classes=10, steps_per_epoch=5)
    >>> int(state.step), state.bank.features.shape, state.bank.probs.shape
    (0, (512, 256), (512, 10))
    """
    learner = learners.build(
        config,
        num_classes=num_classes,
        steps_per_epoch=steps_per_epoch,
        mesh=sharding.make_mesh() if mesh is None else mesh,
        first_step=first_step,
        class_prior=class_prior,
    )
    return create_state(learner, rng)


def create_state(learner: Learner, rng: jax.Array) -> TrainState:
    """The state before the first step of the learner's stage, on its mesh."""
    return _creator(sharding.platform(learner.mesh))(rng, learner=learner)


def abstract_state(learner: Learner) -> TrainState:
    """Shapes, dtypes and shardings of the state, without computing anything."""
    shapes = jax.eval_shape(functools.partial(_create, learner=learner), jax.random.key(0))
    return jax.tree.map(
        lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
        shapes,
        shardings(shapes),
    )


def shardings(state: TrainState) -> TrainState:
    """Where each array of the state is: on every device, but for the rows of a split bank."""
    mesh = state.learner.mesh
    places = jax.tree.map(lambda _: sharding.replicated(mesh), state)
    if state.bank is None:
        return places
    return places.replace(bank=memory_bank.shardings(state.bank, mesh))


def trainable(learner: Learner, params: Tree) -> Tree:
    """The parameters that get gradients: all, or the classifier's where the rest is frozen."""
    return {"classifier": params["classifier"]} if learner.objective.needs.frozen else params


@functools.cache
def _creator(platform: str) -> Callable[..., TrainState]:
    """`_create_placed`, compiled once for each learner.

    On a CPU without optimisation: LLVM takes ten seconds over the random numbers of a small
    network otherwise, and they are drawn once.
    """
    return jax.jit(
        _create_placed,
        static_argnames="learner",
        compiler_options={"xla_backend_optimization_level": 0} if platform == "cpu" else None,
    )


def _create_placed(rng: jax.Array, *, learner: Learner) -> TrainState:
    state = _create(rng, learner=learner)
    return jax.lax.with_sharding_constraint(state, shardings(state))


def _create(rng: jax.Array, *, learner: Learner) -> TrainState:
    size, needs = learner.settings.data.image_size, learner.objective.needs
    params_rng, bank_rng, step_rng = jax.random.split(rng, 3)
    images = jnp.zeros((1, size, size, 3), jnp.float32)
    output, variables = learner.encoder.init_with_output(params_rng, images, train=False)
    params, batch_stats = variables["params"], variables.get("batch_stats", {})
    return TrainState(
        step=jnp.asarray(learner.first_step, jnp.int32),
        params=params,
        batch_stats=batch_stats,
        opt_state=learner.optimizer.init(trainable(learner, params)),
        ema_params=params if needs.key else None,
        ema_batch_stats=batch_stats if needs.key else None,
        bank=_init_bank(learner, bank_rng, output) if needs.bank else None,
        averaged={"params": params, "batch_stats": batch_stats} if learner.averaging else None,
        rng=jax.random.key_data(step_rng),
        learner=learner,
    )


def _init_bank(learner: Learner, rng: jax.Array, output: EncoderOutput) -> MemoryBank:
    settings, needs = learner.settings.bank, learner.objective.needs
    stored = needs.bank_probs and settings.probs == "stored"
    bank = memory_bank.init(
        settings.size,
        dim=output.embedding.shape[-1],
        num_classes=output.logits.shape[-1] if stored else 0,
        dtype=jnp.dtype(settings.probs_dtype),
        mesh=learner.mesh,
        split=settings.sharding == "sharded",
        keep_norms=needs.bank_probs and not stored,
        recall_target=settings.recall_target,
    )
    return memory_bank.init_official(rng, bank) if settings.init == "official" else bank
