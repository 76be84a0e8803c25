"""One mesh axis over all devices of all processes: batches are split, the state is replicated."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from cone_jax.errors import UserError

DATA_AXIS = "data"


def make_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh of all devices, or of those given. Axes are Auto: the compiler partitions."""
    devices = jax.devices() if devices is None else devices
    return jax.make_mesh(
        (len(devices),), (DATA_AXIS,), axis_types=(AxisType.Auto,), devices=devices
    )


def platform(mesh: Mesh) -> str:
    """What programs for this mesh are compiled for: ``cpu``, ``gpu`` or ``tpu``."""
    return str(mesh.devices.flat[0].platform)


def replicated(mesh: Mesh) -> NamedSharding:
    """A whole copy on every device."""
    return NamedSharding(mesh, PartitionSpec())


def split(mesh: Mesh) -> NamedSharding:
    """Rows distributed evenly over the devices."""
    return NamedSharding(mesh, PartitionSpec(DATA_AXIS))


def check_divisible(field: str, batch_size: int, mesh: Mesh, parts: int = 1) -> None:
    """Each of a batch's parts must give every device the same number of rows."""
    if batch_size % (mesh.size * parts):
        nearest = max(batch_size // (mesh.size * parts), 1) * mesh.size * parts
        times = f" times accumulate ({parts})" if parts > 1 else ""
        raise UserError(
            f"{field} ({batch_size}) must be a multiple of the {mesh.size} devices{times}, "
            f"e.g. {nearest}"
        )


def to_devices(mesh: Mesh, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
    """This process's rows of a global batch, as global arrays split over the mesh."""
    sharding = split(mesh)
    return {
        name: jax.make_array_from_process_local_data(sharding, rows) for name, rows in batch.items()
    }
