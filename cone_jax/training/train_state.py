"""The two halves of training: what is fixed by the config, and the state that changes.

A `Learner` is built once per stage and handed over. A `TrainState` is one pytree; it knows the
learner whose functions it is used with.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, cast

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh
from ml_collections import ConfigDict

from cone_jax import distributed, memory_bank, models, momentum, objectives
from cone_jax.memory_bank import MemoryBank
from cone_jax.models import EncoderOutput
from cone_jax.settings import Mixing, Settings
from cone_jax.training import optimizers
from cone_jax.training.optimizers import Averaging

Tree = Any

# What `model.sharding` splits: everything that is as large as the parameters.
SPLIT_FIELDS = ("params", "opt_state", "ema_params", "averaged")

# Where the bank's matrices need a layout of their own. A TPU stores them by columns unless the
# width is a multiple of 128, but rows are read and written: it would transpose the whole bank twice
# in every step. A copy in memory only; checkpoints do not know of it.
BANK_LAYOUTS = {"tpu": Layout((0, 1))}


@dataclasses.dataclass(frozen=True)
class Learner:
    """Everything about a training step that is not in the state.

    A compiled step belongs to a learner. Learners are equal when they are made from the same
    settings, so a run that is opened again does not compile again.
    """

    settings: Settings  # of the stage
    objective: objectives.Objective
    num_classes: int
    steps_per_epoch: int
    mesh: Mesh
    first_step: int = 0  # of the stage, in the whole run
    class_prior: tuple[float, ...] | None = None  # share of each class in the training set
    platform: str | None = None  # whose forms of operations the network takes; None: the mesh's

    def __post_init__(self) -> None:
        # Builds every part now: a model or an optimiser that cannot be built is named at once.
        _ = self.encoder, self.optimizer, self.key_momentum, self.averaging, self.mixing

    @functools.cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, each.name) for each in dataclasses.fields(self)))

    def __hash__(self) -> int:
        # Asked for in every call of a compiled step.
        return self._hash

    @property
    def total_steps(self) -> int:
        """The length of the stage in steps."""
        epochs = self.settings.epochs
        return self.settings.steps or max(round(epochs * self.steps_per_epoch), 1)

    @property
    def sharded(self) -> bool:
        """Whether each device keeps a part of the parameters, and of what is as large as they."""
        return self.settings.model.sharding == "sharded" and self.mesh.size > 1

    @property
    def mean(self) -> tuple[float, ...]:
        return self.settings.data.mean

    @property
    def std(self) -> tuple[float, ...]:
        return self.settings.data.std

    @functools.cached_property
    def mixing(self) -> Mixing | None:
        """MixUp and CutMix; None when both are off."""
        return self.settings.mixing if self.settings.mixing.on else None

    @functools.cached_property
    def encoder(self) -> models.Encoder:
        """The network that is trained: the encoder, or the method's own."""
        platform = self.platform or distributed.platform(self.mesh)
        model, classes = self.settings.model, self.num_classes
        network = self.objective.network(model, classes, platform)
        return cast(models.Encoder, network or models.from_settings(model, classes, platform))

    @functools.cached_property
    def learning_rate(self) -> optax.Schedule:
        """A function of the steps since `first_step`, as all schedules here."""
        return optimizers.scheduled_rate(
            self.settings.schedule,
            optimizers.peak_learning_rate(self.settings.optimizer, self.settings.batch_size),
            total_steps=self.total_steps,
            steps_per_epoch=self.steps_per_epoch,
        )

    @functools.cached_property
    def optimizer(self) -> optax.GradientTransformation:
        optimizer = optimizers.create(
            self.settings.optimizer, self.learning_rate, self.steps_per_epoch
        )
        if not self.objective.needs.constants:
            return optimizer
        return optimizers.sparing(optimizer, self.objective.is_constant)

    @functools.cached_property
    def key_momentum(self) -> optax.Schedule:
        """The momentum network's, a function of the steps since `first_step`."""
        ema = self.settings.ema
        return momentum.schedule(ema.schedule, ema.momentum, self.total_steps)

    @functools.cached_property
    def averaging(self) -> Averaging | None:
        return Averaging.create(
            self.settings.average,
            batch_size=self.settings.batch_size,
            epochs=self.total_steps / self.steps_per_epoch,
            copy_steps=self.settings.schedule.warmup(self.steps_per_epoch),
        )


def build_learner(config: ConfigDict, **others: Any) -> Learner:
    """The learner for the config of a stage; `others` are the further fields of `Learner`."""
    return Learner(Settings.read(config), objectives.chosen(config.objective), **others)


class TrainState(flax.struct.PyTreeNode):
    """The state between two steps; replicated over all devices, but for what the config splits.

    The fields of the momentum network and the bank are None for an objective that has no use
    for them, `averaged` unless the config asks for it. `learner` is not data: it holds the
    functions that the state is used with.

    >>> from cone_jax import config as config_lib
    >>> config, mesh = config_lib.load_recipe("digits"), distributed.make_mesh()
    >>> learner = build_learner(config, num_classes=10, steps_per_epoch=11, mesh=mesh)
    >>> state = abstract_state(learner)
    >>> sorted(state.variables), state.bank.probs.shape == (config.bank.size, 10)
    (['batch_stats', 'params'], True)
    """

    step: jax.Array  # steps taken so far
    params: Tree  # parameters of the query network
    batch_stats: Tree  # BatchNorm's running statistics
    opt_state: Tree  # state of the optimiser
    ema_params: Tree | None  # parameters of the momentum network
    ema_batch_stats: Tree | None  # the momentum network's running statistics
    bank: MemoryBank | None  # recent keys
    averaged: Tree | None  # params and batch_stats of the averaged model
    rng: jax.Array  # key data; step t uses fold_in(rng, t)
    learner: Learner = flax.struct.field(pytree_node=False)  # the fixed parts of training

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
        """The network called ``query``, ``key``, ``averaged`` or ``evaluated``."""
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

        mesh, sharded = self.learner.mesh, self.learner.sharded

        def placed(collection: Tree) -> Tree:
            own = jax.tree.map(np.array, collection)
            places = weight_shardings(mesh, own) if sharded else distributed.replicated(mesh)
            return jax.device_put(own, places)

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

    Args:
        config: the stage's config.
        rng: draws the parameters, and everything random in training.
        num_classes: C.
        steps_per_epoch: converts the epochs of schedules to steps.
        mesh: the devices; None: all of them.
        first_step: where the stage begins in the whole run.
        class_prior: the share of each class in the training set, for objectives that need it.

    Returns:
        A state to give to `train_step`.

    >>> from cone_jax import config as config_lib
    >>> config = config_lib.default()
    >>> config.model.update({"name": "resnet8", "stem": "cifar", "head_hidden": 16})
    >>> config.bank.size = 512
    >>> state = init_state(config, jax.random.key(0), num_classes=10, steps_per_epoch=5)
    >>> int(state.step), state.bank.features.shape, state.bank.probs.shape
    (0, (512, 256), (512, 10))
    """
    learner = build_learner(
        config,
        num_classes=num_classes,
        steps_per_epoch=steps_per_epoch,
        mesh=distributed.make_mesh() if mesh is None else mesh,
        first_step=first_step,
        class_prior=class_prior,
    )
    return create_state(learner, rng)


def create_state(learner: Learner, rng: jax.Array) -> TrainState:
    """The state before the first step of the learner's stage, on its mesh.

    Args:
        learner: the fixed parts of training.
        rng: draws the parameters, and everything random in training.

    Returns:
        A state to give to `train_step`.

    >>> from cone_jax import config as config_lib
    >>> config, mesh = config_lib.load_recipe("digits"), distributed.make_mesh()
    >>> learner = build_learner(config, num_classes=10, steps_per_epoch=11, mesh=mesh)
    >>> state = create_state(learner, jax.random.key(0))
    >>> int(state.step), int(state.bank.filled)
    (0, 0)
    """
    return laid_out(_creator(distributed.platform(learner.mesh))(rng, learner=learner))


def abstract_state(learner: Learner) -> TrainState:
    """Shapes, dtypes and shardings of the state, without computing anything.

    Args:
        learner: the fixed parts of training.

    Returns:
        A state that holds a `jax.ShapeDtypeStruct` in place of each array.

    >>> from cone_jax import config as config_lib
    >>> config, mesh = config_lib.load_recipe("digits"), distributed.make_mesh()
    >>> learner = build_learner(config, num_classes=10, steps_per_epoch=11, mesh=mesh)
    >>> abstract_state(learner).params["classifier"]["kernel"].shape[-1]
    10
    """
    shapes = jax.eval_shape(functools.partial(_create, learner=learner), jax.random.key(0))
    return jax.tree.map(
        lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
        shapes,
        placements(shapes),
    )


def shardings(state: TrainState) -> TrainState:
    """Where each array of the state is: on every device, unless the config splits it over them."""
    mesh = state.learner.mesh
    places = jax.tree.map(lambda _: distributed.replicated(mesh), state)
    if state.learner.sharded:
        parts = {name: weight_shardings(mesh, getattr(state, name)) for name in SPLIT_FIELDS}
        places = places.replace(**parts)
    if state.bank is None:
        return places
    return places.replace(bank=memory_bank.shardings(state.bank, mesh))


def weight_shardings(mesh: Mesh, weights: Tree) -> Tree:
    """Where parameters, or what has their shapes, are when they are split over the devices."""
    return jax.tree.map(lambda array: distributed.split_longest(mesh, array.shape), weights)


def placements(state: TrainState) -> TrainState:
    """`shardings`, and the layout of the bank's matrices where the platform asks for one."""
    places = shardings(state)
    layout = BANK_LAYOUTS.get(distributed.platform(state.learner.mesh))
    if state.bank is None or layout is None:
        return places

    def place(column: jax.Array, sharding: Any) -> Any:
        return Format(layout, sharding) if column.ndim == 2 else sharding

    return places.replace(bank=jax.tree.map(place, state.bank, places.bank))


def laid_out(state: TrainState) -> TrainState:
    """The state as its step takes and leaves it: what comes from elsewhere has other layouts."""
    if state.bank is None or distributed.platform(state.learner.mesh) not in BANK_LAYOUTS:
        return state
    return state.replace(bank=jax.device_put(state.bank, placements(state).bank, donate=True))


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
    others = [jnp.full((1, 2), size, jnp.int32) for _ in learner.encoder.inputs]
    output, variables = learner.encoder.init_with_output(params_rng, images, *others, train=False)
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
