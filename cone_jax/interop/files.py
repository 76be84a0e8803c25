"""Weights on disk: safetensors, PyTorch files, Orbax checkpoints, run directories, exports.

Reading never executes what a file contains: PyTorch files are opened with ``weights_only``, and
pickles not at all.
"""

import argparse
import dataclasses
import json
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import flax
import jax
import numpy as np
import safetensors
import safetensors.numpy

from cone_jax import storage
from cone_jax.errors import UserError, closest
from cone_jax.interop import layouts, metadata, published
from cone_jax.models import ModelSpec
from cone_jax.workdir.checkpoints import CHECKPOINTS_FOLDER, resolve_step
from cone_jax.workdir.orbax_s3 import ocp

# Where training programs keep the weights inside what they save.
WRAPPERS = ("state_dict", "model", "model_state_dict", "net")
TORCH_SUFFIXES = (".pth", ".pt", ".bin", ".tar", ".th", ".ckpt")
# Between a file and the name of one network of several in it: checkpoint.pth#model_ema
PART_MARK = "#"
# Beside what PyTorch takes for safe: torchvision's, timm's and DeiT's programs keep their command's
# arguments with the weights, which is names and values and nothing that runs.
_HARMLESS = (argparse.Namespace,)
# Of programs that know how to save what is in them.
_OTHER_PROGRAMS = {".h5": "Keras", ".keras": "Keras", ".hdf5": "Keras", ".caffemodel": "Caffe"}
LFS_POINTER = "a Git LFS pointer"
_LONGEST_HEADER = 100_000_000  # of safetensors, by its specification

Tree = Any


@dataclasses.dataclass(frozen=True)
class Weights:
    """Named arrays; `layout` is the naming if the file states it, else "" (to be detected)."""

    tensors: Mapping[str, np.ndarray]
    layout: str = ""


def read_weights(path: Path) -> Weights:
    """The weights at `path`, of any kind; ``#name`` after it selects one network of several."""
    if path.is_dir():
        return _read_directory(path)
    part = ""
    if not path.exists() and PART_MARK in path.name:
        name, _, part = path.name.rpartition(PART_MARK)
        path = path.with_name(name)
    if not path.exists():
        name = path.stem if path.suffix in (".safetensors", *TORCH_SUFFIXES) else path.name
        raise UserError(
            f"{path}, where weights should be, does not exist; give a file that does"
            f"{published.named_like(name) or _as_repository(path)}"
        )
    _refuse_pretenders(path)
    if path.suffix == ".safetensors":
        return Weights(read_safetensors(path))
    if path.suffix in TORCH_SUFFIXES:
        return Weights(read_torch(path, part))
    raise UserError(
        f"{path} holds no weights that can be read: it must be a .safetensors or .pth file, the "
        "directory of a run or an export"
    )


def _as_repository(path: Path) -> str:
    """A hint if OWNER/NAME of the hub may be meant, otherwise empty."""
    match = re.fullmatch(r"(?:hf:/?)?([\w.-]+/[\w.-]+)", str(path))
    if match is None or path.parent.exists():
        return ""
    return f", or a repository of the hub as hf://{match[1]}"


def pretender(start: bytes) -> str:
    """What a file that begins like this is instead of weights; "" if that does not show.

    >>> pretender(b"<!DOCTYPE html><html>"), pretender(b"PK")
    ('a web page', '')
    """
    if start.startswith(b"version https://git-lfs"):
        return LFS_POINTER
    is_page = start.lstrip()[:15].lower().startswith((b"<!doctype html", b"<html", b"<?xml"))
    return "a web page" if is_page else ""


def _refuse_pretenders(path: Path) -> None:
    """Refuses a file that is not what its name says, and names what it is."""
    with path.open("rb") as file:
        start = file.read(512)
        is_archive = start.startswith(b"PK") and zipfile.is_zipfile(file)
        size = file.seek(0, os.SEEK_END)
    kind = pretender(start)
    if kind == LFS_POINTER:
        raise UserError(f"{path} is {kind}, not the weights; fetch them: git lfs pull, or by name")
    if kind:
        raise UserError(f"{path} is {kind}, not weights; fetch it from the address of the file")
    if path.suffix in (".pkl", ".pickle"):
        raise UserError(
            f"{path} is a pickle, which can execute code when it is read; save its arrays as "
            "safetensors, under the names that they have"
        )
    if program := _OTHER_PROGRAMS.get(path.suffix):
        raise UserError(
            f"{path} is a file of {program}; save its arrays as safetensors, under the names that "
            "they have there"
        )
    # The first eight bytes of a safetensors file are a length, and may look like anything.
    is_torch = start.startswith((b"PK", b"\x80")) and start[8:9] != b"{"
    if path.suffix == ".safetensors" and is_torch:
        raise UserError(f"{path} is a PyTorch file, not safetensors; rename it to end in .pth")
    if path.suffix == ".safetensors" and 8 < size < _safetensors_size(path):
        whole = _safetensors_size(path)
        raise UserError(f"{path} is truncated: {size} of {whole} bytes; fetch or export it again")
    if path.suffix in TORCH_SUFFIXES and start.startswith(b"PK") and not is_archive:
        raise UserError(f"{path} is truncated: the end of its archive is missing; fetch it again")


def _safetensors_size(path: Path) -> int:
    """How long the file must be by its header; 0 where there is none to read."""
    length, header = _header(path)
    if len(header) < length:
        return 8 + length
    try:
        tensors = json.loads(header).values()
        ends = [tensor["data_offsets"][1] for tensor in tensors if "data_offsets" in tensor]
    except (ValueError, AttributeError, TypeError, KeyError, IndexError):
        return 0
    return 8 + length + max(ends, default=0)


def _header(path: Path) -> tuple[int, bytes]:
    """How long the header of a safetensors file should be, and what there is of it."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return (0, b"") if length > _LONGEST_HEADER else (length, file.read(length))


def read_description(path: Path) -> tuple[ModelSpec, metadata.ExportMetadata] | None:
    """The description in the header of a file of ours, even without the export around it."""
    if path.suffix != ".safetensors" or not path.is_file():
        return None
    try:
        texts = json.loads(_header(path)[1])["__metadata__"]
        content = {name: json.loads(texts[name]) for name in texts if name != "format"}
        return metadata.parse(content)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # nothing, or somebody else's words


def _read_directory(path: Path) -> Weights:
    if (path / metadata.FILE).exists():
        found, _, _ = metadata.read(path)
        if found["format"] == "orbax":
            return Weights(_flatten(read_orbax(path / found["file"])), layouts.OWN)
        if found["format"] in ("safetensors", "pth"):
            return read_weights(path / found["file"])
        raise UserError(
            f"{path} is an export to {found['format']}, which weights cannot be taken "
            "from; export to safetensors, pth or orbax"
        )
    if (path / "detector.json").exists() and (path / "model.safetensors").exists():
        return Weights(read_safetensors(path / "model.safetensors"))
    if (path / CHECKPOINTS_FOLDER).is_dir():
        step = resolve_step(path)
        path = path / CHECKPOINTS_FOLDER / str(step)
    if not (path / "state").is_dir():
        raise UserError(
            f"{path} is neither the directory of a run nor an export; give one, or weights"
        )
    return Weights(_flatten(read_checkpoint(path)), layouts.OWN)


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """All tensors of a safetensors file."""
    try:
        with storage.local(path) as file:
            return safetensors.numpy.load_file(file)
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(
            f"{path} cannot be read as safetensors: {error}; fetch or export it again"
        ) from error


def write_safetensors(
    path: Path, tensors: Mapping[str, np.ndarray], header: Mapping[str, str]
) -> None:
    """Writes tensors, and texts into the header."""
    # It writes the memory of an array as it lies there: of a transposed one in the wrong order.
    contiguous = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    safetensors.numpy.save_file(contiguous, path, metadata=dict(header))


def read_torch(path: Path, part: str = "") -> dict[str, np.ndarray]:
    """The state dict in a file of `torch.save`, unwrapped; needs PyTorch.

    Where there are several, such as ``model`` and ``model_ema``, `part` has to say which.
    """
    torch = _import_torch(path)
    try:
        with (
            storage.local(path) as file,
            warnings.catch_warnings(),
            torch.serialization.safe_globals(_HARMLESS),
        ):
            warnings.simplefilter("ignore")  # about what it is about to refuse
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises what its unpickler and zip reader raise
        if not isinstance(error, pickle.UnpicklingError):
            raise UserError(
                f"{path} is damaged, truncated or not of PyTorch ({type(error).__name__}); fetch "
                "it again"
            ) from error
        # Not in its own words: they advise to execute the code.
        raise UserError(
            f"{path} cannot be read as PyTorch weights without executing code from it "
            f"({type(error).__name__}); save its state dict as safetensors"
        ) from error
    found = _state_dicts(content, torch)
    if part and part not in found:
        raise UserError(f"{path} has no state dict {part!r}; {closest(part, found)}")
    if not part and len(found) > 1:
        names = ", ".join(found)
        raise UserError(
            f"{path} holds {len(found)} networks ({names}); say which, such as "
            f"{path.name}{PART_MARK}{list(found)[-1]}"
        )
    if not found:
        raise UserError(f"{path} holds no state dict, at the top or under {', '.join(WRAPPERS)}")
    return {
        name: value.detach().to(torch.float32).numpy()
        for name, value in (found[part] if part else next(iter(found.values()))).items()
        if isinstance(value, torch.Tensor)
    }


def write_torch(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """A plain state dict, as `load_state_dict` takes it; needs PyTorch."""
    torch = _import_torch(path)
    torch.save({name: torch.from_numpy(value.copy()) for name, value in tensors.items()}, path)


def _state_dicts(content: Any, torch: Any) -> dict[str, Mapping[str, Any]]:
    """Every state dict in what a program saved, by the name it has there; "" is the top."""
    if not isinstance(content, Mapping):
        return {}
    if any(isinstance(value, torch.Tensor) for value in content.values()):
        return {"": content}
    found: dict[str, Mapping[str, Any]] = {}
    for name, value in content.items():
        inner = _state_dicts(value, torch)
        # Below any other name, only what is a state dict itself.
        usable = {key: each for key, each in inner.items() if name in WRAPPERS or not key}
        found |= {f"{name}.{key}".rstrip("."): each for key, each in usable.items()}
    return found


def _import_torch(path: Path) -> Any:
    try:
        import torch
    except ImportError:
        raise UserError(
            f"{path} is a PyTorch file, for which PyTorch is needed: pip install torch "
            "(or use the safetensors format, which needs nothing)"
        ) from None
    return torch


def read_checkpoint(directory: Path) -> Tree:
    """The network to evaluate in a checkpoint of ours: the averaged one where there is one."""
    state = read_orbax(directory / "state", ("averaged", "params", "batch_stats"))
    return state.pop("averaged", None) or state


def read_orbax(directory: Path, names: Sequence[str] = ("params", "batch_stats")) -> Tree:
    """The parts `names` of an Orbax tree, as NumPy arrays; the rest is not read."""
    # Not through a Checkpointer: it takes the directory for a whole checkpoint, and complains.
    handler = ocp.PyTreeCheckpointHandler()
    try:
        path = directory.absolute()
        stored = handler.metadata(path).tree
        wanted = {name: stored[name] for name in names if stored.get(name)}
        restore_args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), wanted)
        return handler.restore(
            path,
            args=ocp.args.PyTreeRestore(
                item=wanted, restore_args=restore_args, partial_restore=True
            ),
        )
    finally:
        handler.close()


def write_orbax(directory: Path, variables: Tree) -> None:
    """Writes a tree of variables."""
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        arrays = jax.tree.map(np.asarray, variables)
        checkpointer.save(directory.absolute(), args=ocp.args.PyTreeSave(arrays))


def _flatten(variables: Tree) -> dict[str, np.ndarray]:
    return flax.traverse_util.flatten_dict(variables, sep="/")
