"""The platform of the mesh decides what a step is made of, not that of the process."""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from cone_jax import distributed, training
from cone_jax.training import train_log, train_state
from cone_jax.training.train_state import abstract_state


@dataclasses.dataclass(frozen=True)
class Client:
    platform: str
    platform_version: str = "a stand-in"

    def get_default_layout(self, dtype: Any, shape: tuple[int, ...], _: "Device") -> Any:
        here = jax.devices()[0]
        return here.client.get_default_layout(dtype, shape, here)


@dataclasses.dataclass(frozen=True)
class Device:
    """What tracing and lowering ask of a device, which need not be there."""

    client: Client
    id: int
    process_index: int = 0
    slice_index: int = 0
    device_kind: str = "a stand-in"

    @property
    def platform(self) -> str:
        return self.client.platform


def mesh_of(platform: str, devices: int = 2, slices: int = 1) -> Mesh:
    client = Client(platform)
    stand_ins = [Device(client, i, slice_index=i * slices // devices) for i in range(devices)]
    return Mesh(
        np.array(stand_ins, dtype=object), (distributed.DATA_AXIS,), axis_types=(AxisType.Auto,)
    )


def trace_step(config, mesh):
    made = train_state.build_learner(config, num_classes=10, steps_per_epoch=4, mesh=mesh)
    state = abstract_state(made)
    size = config.data.image_size

    def rows(shape, dtype):
        place = distributed.split(mesh)
        return jax.ShapeDtypeStruct((config.batch_size, *shape), dtype, sharding=place)

    batch = {
        "image": rows((size, size, 3), jnp.uint8),
        "label": rows((), jnp.int32),
        "id": rows((), jnp.int32),
    }
    return training.train_step.trace(state, batch)


def test_a_mesh_knows_its_platform_and_its_slices():
    assert distributed.platform(distributed.make_mesh()) == "cpu"
    assert distributed.platform(mesh_of("tpu")) == "tpu"
    assert [distributed.slices(mesh_of("tpu", 4, slices)) for slices in (1, 2, 4)] == [1, 2, 4]


@pytest.mark.parametrize("platform", ["tpu", "gpu"])
def test_the_network_is_made_for_the_mesh(tiny_config, platform):
    arguments = {"num_classes": 10, "steps_per_epoch": 4}
    there = train_state.build_learner(tiny_config, mesh=mesh_of(platform), **arguments)
    here = train_state.build_learner(tiny_config, mesh=distributed.make_mesh(), **arguments)
    assert there.encoder.make.platform == platform
    assert here.encoder.make.platform == "cpu"
    assert there.encoder.spec == here.encoder.spec


def test_a_step_for_a_tpu_has_xlas_convolutions_and_no_branch(tiny_config):
    tiny_config.model.name = "mobilenet_v2"
    tiny_config.model.options.width = None
    jaxpr = str(trace_step(tiny_config, mesh_of("tpu")).jaxpr)
    # Query and key forward, and two gradients; not one for the pixels.
    assert jaxpr.count(" conv_general_dilated") == 52 * 4 - 1
    on_cpu = str(trace_step(tiny_config, distributed.make_mesh()).jaxpr)
    assert on_cpu.count(" conv_general_dilated") == 3  # the stem's: query, key, gradient
    assert on_cpu.count(" cond[") > jaxpr.count(" cond[")


def test_a_step_is_lowered_for_a_tpu_without_one(tiny_config):
    program = trace_step(tiny_config, mesh_of("tpu")).lower(lowering_platforms=("tpu",)).as_text()
    assert program.count("stablehlo.convolution") == 9 * 4 - 1  # of ResNet-8


def test_on_a_tpu_the_query_s_pass_waits_for_the_key_s(tiny_config):
    text = str(trace_step(tiny_config, mesh_of("tpu")).jaxpr)
    before, barrier, after = text.partition("optimization_barrier")
    assert before.count(" conv_general_dilated") == 9  # the key's, of ResNet-8
    assert after.count(" conv_general_dilated") == 9 * 3 - 1
    # The pictures come out last, and somebody uses them: otherwise their name would be "_".
    pictures = before.rpartition("=")[0].split()[-1]
    size = tiny_config.data.image_size
    assert re.fullmatch(rf"[a-z]+:f32\[{tiny_config.batch_size},{size},{size},3\]", pictures)
    # Between slices the transfers that the compiler saves by taking turns are worth more.
    for mesh in (distributed.make_mesh(), mesh_of("tpu", slices=2)):
        assert barrier not in str(trace_step(tiny_config, mesh).jaxpr)


def test_out_of_memory_advises_half_precision_where_that_is_fast(tiny_config):
    assert "model.dtype=bfloat16" in train_log._advice(tiny_config, mesh_of("tpu"))
    assert "model.dtype" not in train_log._advice(tiny_config, mesh_of("cpu"))
    alone = train_log._advice(tiny_config, mesh_of("tpu", devices=1))
    assert "bank.sharding" not in alone
    assert f"accumulate=2, batch_size={tiny_config.batch_size // 2}" in alone
