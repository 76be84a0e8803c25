"""Everything that training changes, in one pytree."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from ml_collections import ConfigDict

from cone_jax import memory_bank, sharding
from cone_jax.memory_bank import MemoryBank
from cone_jax.models import EncoderOutput
from cone_jax.training import learner as learners
from cone_jax.training.learner import Learner

Tree = Any


class TrainState(flax.struct.PyTreeNode):
    """The state between two steps; replicated over all devices.

    The fields of the momentum network and the bank are None for an objective that has no use
    for them. `learner` is not data: it holds the functions that the state is used with.
    """

    step: jax.Array  # steps taken so far
    params: Tree
    batch_stats: Tree
    opt_state: Tree
    ema_params: Tree | None
    ema_batch_stats: Tree | None
    bank: MemoryBank | None
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


def init_state(
    config: ConfigDict,
    rng: jax.Array,
    *,
    num_classes: int,
    steps_per_epoch: int,
    mesh: Mesh | None = None,
) -> TrainState:
    """The state before the first step, replicated over `mesh` (default: all devices)."""
    mesh = sharding.make_mesh() if mesh is None else mesh
    create = _initialiser(config, num_classes, steps_per_epoch, mesh)
    return jax.jit(create, out_shardings=sharding.replicated(mesh))(rng)


def abstract_state(
    config: ConfigDict, *, num_classes: int, steps_per_epoch: int, mesh: Mesh | None = None
) -> TrainState:
    """Shapes, dtypes and shardings of the state, without computing anything."""
    mesh = sharding.make_mesh() if mesh is None else mesh
    create = _initialiser(config, num_classes, steps_per_epoch, mesh)
    shapes = jax.eval_shape(create, jax.random.key(0))
    place = sharding.replicated(mesh)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), shapes)


def _initialiser(config: ConfigDict, num_classes: int, steps_per_epoch: int, mesh: Mesh) -> Any:
    learner = learners.build(
        config, num_classes=num_classes, steps_per_epoch=steps_per_epoch, mesh=mesh
    )
    size = config.data.image_size

    def create(rng: jax.Array) -> TrainState:
        params_rng, bank_rng, step_rng = jax.random.split(rng, 3)
        images = jnp.zeros((1, size, size, 3), jnp.float32)
        output, variables = learner.encoder.init_with_output(params_rng, images, train=False)
        params, batch_stats = variables["params"], variables.get("batch_stats", {})
        needs = learner.objective.needs
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            params=params,
            batch_stats=batch_stats,
            opt_state=learner.optimizer.init(params),
            ema_params=params if needs.key else None,
            ema_batch_stats=batch_stats if needs.key else None,
            bank=_init_bank(config.bank, bank_rng, output) if needs.bank else None,
            rng=jax.random.key_data(step_rng),
            learner=learner,
        )

    return create


def _init_bank(settings: ConfigDict, rng: jax.Array, output: EncoderOutput) -> MemoryBank:
    shape = (settings.size, output.embedding.shape[-1], output.logits.shape[-1])
    dtype = jnp.dtype(settings.probs_dtype)
    if settings.init == "official":
        return memory_bank.init_official(rng, *shape, dtype)
    return memory_bank.init(*shape, dtype)
