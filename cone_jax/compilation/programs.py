"""The programs of a run, traced for a mesh that need not exist: training, evaluation, linear stage.

Shapes are all that is needed: no data, no weights, no device.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from ml_collections import ConfigDict

from cone_jax import config as config_lib
from cone_jax import distributed, objectives, training
from cone_jax.data import datasets, objects, transforms
from cone_jax.evaluation import accuracy, detection, inference
from cone_jax.training import train_state
from cone_jax.training.run import check_batches
from cone_jax.training.train_state import Learner, TrainState

TRAINING, EVALUATION, LINEAR = "training step", "evaluation step", "linear stage"

# What each part of the state is called; what is left are counters.
PARTS = {
    "params": "parameters",
    "batch_stats": "parameters",
    "opt_state": "optimiser",
    "ema_params": "momentum network",
    "ema_batch_stats": "momentum network",
    "bank": "bank",
    "averaged": "averaged model",
}
# Of a schedule whose length is not known; it changes constants of the program, not its cost.
_SOME_STEPS = 1000


class Traced(NamedTuple):
    """A program before its compilation."""

    lowered: Any
    memory: dict[str, int]  # bytes of one device that the state holds, by part
    shapes: tuple[str, ...]  # of the state's buffers on one device, as programs write them


def names(config: ConfigDict) -> tuple[str, ...]:
    """The programs that a run of this config takes."""
    stages = len(config_lib.stage_configs(config))
    return (TRAINING, EVALUATION, LINEAR)[: stages + 1]


def check(config: ConfigDict, devices: int) -> None:
    """`UserError` where a run on that many devices would refuse to start."""
    config_lib.validate(config)
    check_batches(config, devices)


def trace(
    config: ConfigDict, name: str, mesh: Mesh, *, num_classes: int, train_images: int
) -> Traced:
    """The program `name` of a run; 0 `train_images`: not known."""
    stages = config_lib.stage_configs(config)
    stage = stages[-1 if name == LINEAR else 0]
    state = train_state.abstract_state(_learner(stage, mesh, num_classes, train_images))
    if name == EVALUATION:
        deployed = _learner(stages[-1], mesh, num_classes, train_images)
        lowered = _lower_evaluation(config, train_state.abstract_state(deployed))
    else:
        lowered = training.train_step.lower(state, _train_batch(stage, mesh))
    return Traced(lowered, _held(state), tuple(sorted(set(map(_local_shape, _leaves(state))))))


def _learner(config: ConfigDict, mesh: Mesh, num_classes: int, train_images: int) -> Learner:
    steps = _SOME_STEPS
    if train_images:
        steps = datasets.train_order(config, train_images).steps_per_epoch
    needs = objectives.chosen(config.objective).needs
    prior = (1.0 / num_classes,) * num_classes if needs.class_prior else None
    return train_state.build_learner(
        config, num_classes=num_classes, steps_per_epoch=steps, mesh=mesh, class_prior=prior
    )


def _rows(mesh: Mesh, count: int) -> Callable[[tuple[int, ...], Any], jax.ShapeDtypeStruct]:
    place = distributed.split(mesh)
    return lambda shape, dtype: jax.ShapeDtypeStruct((count, *shape), dtype, sharding=place)


def _train_batch(config: ConfigDict, mesh: Mesh) -> dict[str, jax.ShapeDtypeStruct]:
    rows, size = _rows(mesh, config.batch_size), config.data.image_size
    if has_objects(config):
        pictures = objects.parse(config.data.train_transforms, "data.train_transforms").blank()
        columns = {name: rows(each.shape[1:], each.dtype) for name, each in pictures.items()}
        return {**columns, "id": rows((), jnp.int32)}
    views = () if config.data.views == 1 else (config.data.views,)
    return {
        "image": rows((*views, size, size, 3), jnp.uint8),
        "label": rows((), jnp.int32),
        "id": rows((), jnp.int32),
    }


def has_objects(config: ConfigDict) -> bool:
    """Whether the network is a detector."""
    return objectives.chosen(config.objective).needs.labels == "objects"


def _lower_evaluation(config: ConfigDict, state: TrainState) -> Any:
    learner = state.learner
    if has_objects(config):
        return _lower_detections(config, state)
    size = config.data.image_size
    height, width = transforms.parse(config.data.test_transforms).output_size() or (size, size)
    batch_size = distributed.rounded_up(config.evaluation.batch_size, learner.mesh.size)
    rows = _rows(learner.mesh, batch_size)
    batch = {
        "image": rows((height, width, 3), jnp.uint8),
        "label": rows((), jnp.int32),
        "id": rows((), jnp.int32),
        "mask": rows((), jnp.bool_),
    }
    return inference.lower(learner, state.evaluated, batch, accuracy.answers, None)


def _lower_detections(config: ConfigDict, state: TrainState) -> Any:
    rows = _rows(state.learner.mesh, config.evaluation.batch_size)
    pictures = objects.parse(config.data.test_transforms, "data.test_transforms").blank()
    batch = {
        "image": rows(pictures["image"].shape[1:], jnp.uint8),
        "size": rows((2,), jnp.int32),
        "label": rows((), jnp.int32),
        "id": rows((), jnp.int32),
        "mask": rows((), jnp.bool_),
    }
    return inference.lower(state.learner, state.evaluated, batch, detection.detections_of)


def _leaves(tree: Any) -> list[jax.ShapeDtypeStruct]:
    return jax.tree.leaves(tree)


def _local(array: jax.ShapeDtypeStruct) -> tuple[int, ...]:
    return array.sharding.shard_shape(array.shape)


def _local_shape(array: jax.ShapeDtypeStruct) -> str:
    """The part on one device, as the text of a program has it."""
    kinds = {"float32": "f32", "bfloat16": "bf16", "int32": "s32", "uint32": "u32"}
    dtype = kinds.get(array.dtype.name, array.dtype.name)
    return f"{dtype}[{','.join(map(str, _local(array)))}]"


def _held(state: TrainState) -> dict[str, int]:
    held: dict[str, int] = dict.fromkeys(PARTS.values(), 0)
    for field, part in PARTS.items():
        for array in _leaves(getattr(state, field)):
            held[part] += math.prod(_local(array)) * array.dtype.itemsize
    return held


def total(memory: Mapping[str, int]) -> int:
    """All parts together."""
    return sum(memory.values())
