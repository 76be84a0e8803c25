"""Weights from elsewhere into an encoder, with an account of every name.

Nothing is guessed silently: each of our variables is mapped, re-initialised or missing, each
name in the file is mapped, ignored or unexpected, and by default anything missing or unexpected
is an error.
"""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax
import jax.numpy as jnp
import numpy as np

from cone_jax.errors import UserError
from cone_jax.interop import files, layouts, state_dict
from cone_jax.models import Encoder, deit

Variables = Mapping[str, Any]

# What a released training checkpoint holds beside the network to load: PyTorch's counters, the
# key network and the bank.
IGNORED = re.compile(r"(.*\.)?num_batches_tracked|(module\.)?(encoder_k\..*|queue.*)")


@dataclasses.dataclass(frozen=True)
class ImportReport:
    """What became of every name. Ours are paths such as ``params/classifier/bias``."""

    source: str
    layout: str
    mapped: tuple[tuple[str, str], ...] = ()  # ours, theirs
    resized: tuple[str, ...] = ()  # of those: positions interpolated to another grid
    reinitialised: tuple[str, ...] = ()  # ours; the classifier of another number of classes
    missing: tuple[str, ...] = ()  # ours, absent from the file
    mismatched: tuple[str, ...] = ()  # ours, there with a shape that does not fit
    unexpected: tuple[str, ...] = ()  # theirs, without a place in ours
    ignored: tuple[str, ...] = ()  # theirs, known not to be needed

    @property
    def complete(self) -> bool:
        """Whether everything has its place."""
        return not (self.missing or self.mismatched or self.unexpected)

    def summary(self) -> str:
        """One line."""
        statuses = [field.name for field in dataclasses.fields(self)][2:]
        counts = [f"{len(getattr(self, s))} {s}" for s in statuses if getattr(self, s)]
        return f"{self.source} ({self.layout} names): {', '.join(counts)}"

    def table(self) -> str:
        """A line for every name: what became of it, ours, theirs."""
        rows = [("resized" if o in self.resized else "mapped", o, t) for o, t in self.mapped]
        for status in ("reinitialised", "missing", "mismatched"):
            rows += [(status, name, "") for name in getattr(self, status)]
        for status in ("unexpected", "ignored"):
            rows += [(status, "", name) for name in getattr(self, status)]
        widest = max((len(ours) for _, ours, _ in rows), default=0)
        lines = [
            f"{status:13}  {ours:{widest}}  {theirs}".rstrip() for status, ours, theirs in rows
        ]
        return "\n".join((self.summary(), *lines))


class IncompleteImport(UserError):  # noqa: N818 - as its base, it names the user's situation
    """A strict import that left something over; `report` says what."""

    def __init__(self, message: str, report: ImportReport) -> None:
        super().__init__(message)
        self.report = report


def load_initial(
    path: Path | str, encoder: Encoder, variables: Variables, *, strict: bool = True
) -> tuple[dict[str, Any], ImportReport]:
    """`variables` with the weights at `path` in place of their values.

    `path` is a ``.safetensors`` or ``.pth`` file with torchvision's, timm's or the released
    CoNe names, the directory of a run, one of its checkpoints, or an export. A classifier for
    another number of classes keeps the value it has in `variables`. `strict` False does so for
    everything that is missing or does not fit. Loaded values are NumPy arrays, float32.
    """
    weights = files.read_weights(Path(path).expanduser())
    return from_tensors(
        weights.tensors, encoder, variables, source=str(path), layout=weights.layout, strict=strict
    )


def from_tensors(
    tensors: Mapping[str, np.ndarray],
    encoder: Encoder,
    variables: Variables,
    *,
    source: str,
    layout: str = "",
    strict: bool = True,
) -> tuple[dict[str, Any], ImportReport]:
    """As `load_initial`, from arrays by name; an empty `layout` is found out."""
    names, layout = _names(tensors, encoder, variables, layout)
    if not any(name in tensors for name in names.values()):
        raise UserError(
            f"init_from ({source}) has no tensor of {encoder.spec.name}; it begins with "
            f"{', '.join(list(tensors)[:3])}"
        )
    values = flax.traverse_util.flatten_dict(dict(variables))
    found: dict[str, list[Any]] = {field.name: [] for field in dataclasses.fields(ImportReport)}
    for path, name in names.items():
        ours = "/".join(path)
        if name not in tensors:
            found["missing"].append(ours)
            continue
        value = state_dict.restore(layout, path, np.asarray(tensors[name], np.float32))
        shape = tuple(values[path].shape)
        is_resized = path[-1] == "position" and value.shape != shape and value.ndim == 3
        if is_resized:
            value = _fit_positions(value, shape)
        if value.shape == shape:
            values[path] = value
            found["mapped"].append((ours, name))
            found["resized"] += [ours] if is_resized else []
        elif path[1] == "classifier" and value.shape[:-1] == shape[:-1]:
            found["reinitialised"].append(ours)
        else:
            found["mismatched"].append(f"{ours} {value.shape}, not {shape}")
    for name in tensors.keys() - set(names.values()):
        found["ignored" if IGNORED.fullmatch(name) else "unexpected"].append(name)
    lists = {field: tuple(sorted(rows)) for field, rows in found.items() if rows}
    report = ImportReport(source, layout, **lists)
    if strict and not report.complete:
        raise IncompleteImport(_complaint(report), report)
    return flax.traverse_util.unflatten_dict(values), report


def _names(
    tensors: Mapping[str, np.ndarray], encoder: Encoder, variables: Variables, layout: str
) -> tuple[dict[layouts.Path, str], str]:
    """The names to look for: those of the layout and prefix under which most are found."""
    if layout:
        return layouts.names(encoder, variables, layout), layout
    candidates = []
    for candidate in layouts.available(encoder):
        names = layouts.names(encoder, variables, candidate)
        prefixes = {
            name.removesuffix(known)
            for known in names.values()
            for name in tensors
            if name.endswith(f".{known}")
        }
        for prefix in ("", *sorted(prefixes)):
            if not IGNORED.fullmatch(f"{prefix}x"):
                prefixed = {path: prefix + name for path, name in names.items()}
                count = sum(name in tensors for name in prefixed.values())
                candidates.append((count, prefixed, candidate))
    _, names, layout = max(candidates, key=lambda candidate: candidate[0])
    return names, layout


def _fit_positions(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Positions of one square grid for another; anything else, such as two tokens, as it is."""
    side, old = (round((count - 1) ** 0.5) for count in (shape[1], value.shape[1]))
    if old * old != value.shape[1] - 1:
        return value
    return np.asarray(deit.interpolate_positions(jnp.asarray(value), (side, side)))


def _complaint(report: ImportReport) -> str:
    parts = []
    for status in ("missing", "mismatched", "unexpected"):
        names = getattr(report, status)
        if names:
            more = ", ..." if len(names) > 3 else ""
            parts.append(f"{len(names)} {status} ({', '.join(names[:3])}{more})")
    return (
        f"init_from ({report.source}) does not fit the model: {'; '.join(parts)}; choose the "
        "model it was made with, or set init_strict to False to take what fits"
    )
