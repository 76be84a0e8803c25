"""Devices and processes: one mesh over all of them, which one writes, and how they agree.

The mesh has one axis. Batches are split along it, the state is replicated.
"""

import contextlib
import ctypes
import importlib.util
import math
import os
import re
import signal
import sys
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from cone_jax.errors import TrainingFailed, UserError

DATA_AXIS = "data"


def make_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh of all devices, or of those given. Axes are Auto: the compiler partitions."""
    devices = jax.devices() if devices is None else devices
    count = _slices(devices)
    if count > 1:  # which JAX's function does not take
        each = mesh_utils.create_hybrid_device_mesh(
            (len(devices) // count,), (count,), list(devices)
        )
        return Mesh(each, (DATA_AXIS,), axis_types=(AxisType.Auto,))
    return jax.make_mesh(
        (len(devices),), (DATA_AXIS,), axis_types=(AxisType.Auto,), devices=devices
    )


def platform(mesh: Mesh) -> str:
    """What programs for this mesh are compiled for: ``cpu``, ``gpu`` or ``tpu``."""
    return str(mesh.devices.flat[0].platform)


def slices(mesh: Mesh) -> int:
    """The number of TPU slices in the mesh. The hosts carry what goes from one to another."""
    return _slices(mesh.devices.flat)


def _slices(devices: Iterable[jax.Device]) -> int:
    return len({getattr(device, "slice_index", 0) for device in devices})


def replicated(mesh: Mesh) -> NamedSharding:
    """A whole copy on every device."""
    return NamedSharding(mesh, PartitionSpec())


def split(mesh: Mesh) -> NamedSharding:
    """Rows distributed evenly over the devices."""
    return NamedSharding(mesh, PartitionSpec(DATA_AXIS))


# Smaller arrays are cheaper to keep than to gather.
LEAST_SPLIT = 1024


def split_longest(mesh: Mesh, shape: Sequence[int]) -> NamedSharding:
    """Split along the longest axis that the devices divide; a whole copy where there is none.

    >>> mesh = jax.make_mesh((1,), ("data",))
    >>> split_longest(mesh, (3, 64, 128)).spec, split_longest(mesh, (8,)).spec
    (P(None, None, 'data'), P())
    """
    lengths = {axis: length for axis, length in enumerate(shape) if length % mesh.size == 0}
    if math.prod(shape) < LEAST_SPLIT or not lengths:
        return replicated(mesh)
    longest = max(lengths, key=lambda axis: lengths[axis])
    return NamedSharding(mesh, PartitionSpec(*(None,) * longest, DATA_AXIS))


def check_divisible(field: str, batch_size: int, devices: int, parts: int = 1) -> None:
    """Each of a batch's parts must give every device the same number of rows."""
    if batch_size % (devices * parts):
        nearest = max(batch_size // (devices * parts), 1) * devices * parts
        times = f" times accumulate ({parts})" if parts > 1 else ""
        raise UserError(
            f"{field} ({batch_size}) must be a multiple of the {devices} devices{times}, "
            f"e.g. {nearest}"
        )


def rounded_up(batch_size: int, devices: int) -> int:
    """The smallest number of rows, at least `batch_size`, that divides evenly among the devices.

    >>> rounded_up(1000, 8), rounded_up(1000, 16), rounded_up(64, 256)
    (1000, 1008, 256)
    """
    return -(-batch_size // devices) * devices


def to_devices(mesh: Mesh, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
    """This process's rows of a global batch, as global arrays split over the mesh."""
    sharding = split(mesh)
    return {
        name: jax.make_array_from_process_local_data(sharding, rows) for name, rows in batch.items()
    }


# Seconds without a sign of life after which a process counts as dead, and the others end too.
HEARTBEAT_TIMEOUT = 40


def initialize(coordinator: str = "", num_processes: str = "", process_id: str = "") -> None:
    """Joins the other processes of a run; does nothing where there are none.

    With `coordinator` (host:port of process 0) the three arguments are all that is needed. Without
    it, SLURM, Open MPI and Cloud TPU or GKE pods are recognised by their environment.
    """
    if coordinator:
        if not (num_processes.isdecimal() and process_id.isdecimal()):
            raise UserError(
                f"--coordinator needs --num_processes ({num_processes!r}) and --process_id "
                f"({process_id!r}), two numbers"
            )
        if int(process_id) >= int(num_processes):
            raise UserError(
                f"--process_id ({process_id}) must be below --num_processes ({num_processes})"
            )
        jax.distributed.initialize(
            coordinator,
            int(num_processes),
            int(process_id),
            heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT,
        )
    elif in_cluster(os.environ):
        jax.distributed.initialize(heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT)
    else:
        return
    _delay_aborts()
    with lost_processes_explained():
        _connect()


def _connect() -> None:
    """Runs a collective of each kind once.

    Gloo connects a group of devices at its first collective, and gives up when another process
    comes there 30 s later: so now, when all have just come together, and not after each has opened
    its data and compiled its programs. Once connected, they wait for each other.
    """
    barrier("all processes are here")  # from process to process
    mesh = make_mesh()  # among all devices
    ones = to_devices(mesh, {"one": np.ones(jax.local_device_count(), np.float32)})
    jax.block_until_ready(jax.jit(jnp.sum, out_shardings=replicated(mesh))(ones["one"]))


def _delay_aborts() -> None:
    """Gives an error the time to be told before JAX aborts the process.

    When process 0 dies, a collective fails, which raises an error here, and in the same
    millisecond a thread of JAX, which has lost the coordination service, calls `abort`. No
    option of JAX prevents it. With C's `sleep` to handle SIGABRT that thread first sleeps for as
    many seconds as the number of the signal, six. A process that has not ended by then is aborted.
    """
    libc = ctypes.CDLL(None)
    libc.signal(signal.SIGABRT, libc.sleep)


def require_single_process(mode: str, coordinator: str = "") -> None:
    """`UserError` if this is one of several processes, which the mode does not support."""
    if coordinator or in_cluster(os.environ):
        raise UserError(
            f"--mode={mode} takes one process, but this is one of several (--coordinator, SLURM, "
            "Open MPI or a pod); start it alone, e.g. with srun --ntasks=1"
        )


def in_cluster(environment: Mapping[str, str]) -> bool:
    """Whether a launcher has started this process as one of several.

    >>> in_cluster({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"})
    True
    >>> in_cluster({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1"})  # one task, all its GPUs
    False

    On GKE a TPU slice lists its hosts in the environment, and the pods of an indexed job have
    an index; a Cloud TPU VM has to ask, and JAX's import has left a mark that it is one.
    """
    counts = ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "MEGASCALE_NUM_SLICES")
    if any(environment.get(name, "1") not in ("", "1") for name in counts):
        return True
    lists = ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES")
    if any("," in environment.get(name, "") for name in lists):
        return True
    if "KUBERNETES_SERVICE_HOST" in environment and "JOB_COMPLETION_INDEX" in environment:
        if importlib.util.find_spec("kubernetes") is None:
            raise UserError(
                "JOB_COMPLETION_INDEX makes this a pod of an indexed job, whose other pods JAX "
                "finds with the package kubernetes: install jax[k8s], or give --coordinator"
            )
        return True
    on_tpu = environment.get("TPU_ML_PLATFORM") == "JAX"
    return on_tpu and "TPU_SKIP_MDS_QUERY" not in environment and "," in _hosts_of_tpu_slice()


def _hosts_of_tpu_slice() -> str:
    """What the metadata server of a Cloud TPU VM lists, separated by commas."""
    request = urllib.request.Request(
        "http://metadata.google.internal/computeMetadata/v1/instance/attributes/"
        "worker-network-endpoints",
        headers={"Metadata-Flavor": "Google"},
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return str(answer.read().decode())
    except OSError:  # a TPU elsewhere
        return ""


def is_primary() -> bool:
    """Whether this is the process that writes files and talks to the user."""
    return jax.process_index() == 0


def barrier(name: str) -> None:
    """Waits until every process has reached this point."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


@contextlib.contextmanager
def lost_processes_explained() -> Iterator[None]:
    """Turns the error of a collective whose other process is gone into `TrainingFailed`."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        if not is_desertion(error):
            raise
        cause = str(error).splitlines()[0]
        raise TrainingFailed(
            f"another process of the run has ended or does not answer ({cause}); start all of "
            "them again with the same flags"
        ) from error


def is_desertion(error: BaseException | None) -> bool:
    """Whether a collective has failed, most likely because another process has gone.

    A small program raises a ValueError where a larger one raises a JaxRuntimeError.
    """
    known = isinstance(error, jax.errors.JaxRuntimeError) or (
        isinstance(error, ValueError) and re.match(r"[A-Z_]+: .*Gloo", str(error)) is not None
    )
    return known and jax.process_count() > 1


def leave(code: int) -> NoReturn:
    """Ends this process.

    After a failure it waits neither for the other processes, which may be gone, nor for threads
    that still write to a store that is gone.
    """
    if code == 1 or (code and jax.process_count() > 1):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def from_primary(value: int) -> int:
    """The primary process's `value`, in every process."""
    if jax.process_count() == 1:
        return value
    return int(multihost_utils.broadcast_one_to_all(np.int32(value)))
