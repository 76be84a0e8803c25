"""The batched forward pass: from pictures on the host to outputs on the host.

Evaluators, probes, analyses and predictions all go through `infer_batches`. Each chooses by a
`Readout` what it takes from the network's outputs, so that no more than this leaves the devices.
Rows come back in the order of the batches, without padding, in every process. There is one
compilation per readout and shape of batches.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from cone_jax import distributed
from cone_jax.data.on_device import normalise_images
from cone_jax.models import Encoder, EncoderOutput

Rows = dict[str, np.ndarray]
# From the outputs for a batch, the batch on the devices, and whatever else is given, to rows by
# name. A function of a module: it is part of what identifies a compiled program.
Readout = Callable[..., dict[str, jax.Array]]

# What the devices see of a host batch, and what stands for a column that it lacks: with the same
# columns in every batch, all uses of a readout share one program.
_ABSENT = {"label": np.int32(-1), "id": np.int32(-1), "mask": np.bool_(True)}


class Network(Protocol):
    """A network, how pixels are normalised for it, and its devices: a `Learner` is one."""

    @property
    def encoder(self) -> Encoder: ...
    @property
    def mean(self) -> tuple[float, ...]: ...
    @property
    def std(self) -> tuple[float, ...]: ...
    @property
    def mesh(self) -> Mesh: ...


class PlacedNetwork(NamedTuple):
    """A `Network` outside of training."""

    encoder: Encoder
    mean: tuple[float, ...]
    std: tuple[float, ...]
    mesh: Mesh


def infer(
    network: Network,
    variables: Mapping[str, Any],
    batches: Iterable[Mapping[str, np.ndarray]],
    readout: Readout,
    *given: Any,
) -> Rows:
    """The rows of all batches together: see `infer_batches`."""
    parts = list(infer_batches(network, variables, batches, readout, *given))
    if not parts:
        raise ValueError("nothing to evaluate: no batches")
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def infer_batches(
    network: Network,
    variables: Mapping[str, Any],
    batches: Iterable[Mapping[str, np.ndarray]],
    readout: Readout,
    *given: Any,
) -> Iterator[Rows]:
    """Runs the network on host batches of ``image``, and ``label``, ``id``, ``mask`` if any.

    Images are uint8 [B, H, W, 3], or float32 that are normalised already. With several processes
    each gives its own rows of every batch. Rows whose mask is False are left out. The host is one
    batch ahead of the devices.
    """
    computed = None
    for batch in batches:
        images = batch["image"]
        columns = {name: np.full(len(images), value) for name, value in _ABSENT.items()}
        known = ("image", *network.encoder.inputs, *_ABSENT)
        columns |= {name: batch[name] for name in known if name in batch}
        before, computed = (
            computed,
            _forward(
                variables,
                distributed.to_devices(network.mesh, columns),
                given,
                encoder=network.encoder,
                mean=network.mean,
                std=network.std,
                mesh=network.mesh,
                readout=readout,
            ),
        )
        if before is not None:
            yield _real_rows(before)
    if computed is not None:
        yield _real_rows(computed)


def lower(
    network: Network,
    variables: Mapping[str, Any],
    batch: Mapping[str, Any],
    readout: Readout,
    *given: Any,
) -> jax.stages.Lowered:
    """The program of one batch, of arrays or of shapes, before its compilation."""
    fixed = {name: getattr(network, name) for name in ("encoder", "mean", "std", "mesh")}
    return _forward.lower(variables, dict(batch), given, readout=readout, **fixed)


@functools.partial(jax.jit, static_argnames=("encoder", "mean", "std", "mesh", "readout"))
def _forward(
    variables: Mapping[str, Any],
    batch: dict[str, jax.Array],
    given: tuple[Any, ...],
    *,
    encoder: Encoder,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    mesh: Mesh,
    readout: Readout,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The mask of one batch and what `readout` makes of it, on every device."""
    images = batch["image"]
    if images.dtype == jnp.uint8:
        images = normalise_images(images, mean, std)
    others = [batch[name] for name in encoder.inputs]
    out = cast(EncoderOutput, encoder.apply(variables, images, *others, train=False))
    rows = batch["mask"], readout(out, batch, *given)
    # With several processes, each can read only what is replicated.
    return jax.lax.with_sharding_constraint(rows, distributed.replicated(mesh))


def _real_rows(computed: tuple[jax.Array, dict[str, jax.Array]]) -> Rows:
    mask, rows = jax.device_get(computed)
    return {name: column[mask] for name, column in rows.items()}


def batches_of(images: np.ndarray, size: int) -> Iterator[Rows]:
    """Pictures [n, ...] in batches of `size`, hence one compilation; the last picture is padding.

    >>> [batch["mask"].tolist() for batch in batches_of(np.zeros((3, 1)), 2)]
    [[True, True], [True, False]]
    """
    for first in range(0, len(images), size):
        chunk = images[first : first + size]
        padding = np.repeat(chunk[-1:], size - len(chunk), axis=0)
        yield {
            "image": np.concatenate([chunk, padding]),
            "mask": np.arange(size) < len(chunk),
        }
