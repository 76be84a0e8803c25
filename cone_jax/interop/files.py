"""Weights on disk: safetensors, PyTorch files, Orbax checkpoints, run directories, exports.

Reading never executes what a file contains: PyTorch files are opened with ``weights_only``, and
pickles not at all.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import flax
import jax
import numpy as np
import orbax.checkpoint as ocp
import safetensors
import safetensors.numpy

from cone_jax.errors import UserError
from cone_jax.interop import layouts, metadata
from cone_jax.workdir.checkpoints import CHECKPOINTS_FOLDER, resolve_step

# Where training programs keep the weights inside what they save.
WRAPPERS = ("state_dict", "model", "model_state_dict", "net")
TORCH_SUFFIXES = (".pth", ".pt", ".bin", ".tar")

Tree = Any


@dataclasses.dataclass(frozen=True)
class Weights:
    """Named arrays; `layout` is the naming where the file says it, else "" (to be found out)."""

    tensors: Mapping[str, np.ndarray]
    layout: str = ""


def read_weights(path: Path) -> Weights:
    """The weights at `path`, whatever kind it is."""
    if path.is_dir():
        return _read_directory(path)
    if not path.exists():
        raise UserError(f"{path}, where weights should be, does not exist; give a file that does")
    if path.suffix == ".safetensors":
        return Weights(read_safetensors(path))
    if path.suffix in TORCH_SUFFIXES:
        return Weights(read_torch(path))
    raise UserError(
        f"{path} holds no weights that can be read: it must be a .safetensors or .pth file, the "
        "directory of a run or an export"
    )


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
        return safetensors.numpy.load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(
            f"{path} cannot be read as safetensors: {error}; fetch or export it again"
        ) from error


def write_safetensors(
    path: Path, tensors: Mapping[str, np.ndarray], header: Mapping[str, str]
) -> None:
    """Writes tensors, and texts into the header."""
    safetensors.numpy.save_file(dict(tensors), path, metadata=dict(header))


def read_torch(path: Path) -> dict[str, np.ndarray]:
    """The state dict in a file of `torch.save`, unwrapped; needs PyTorch."""
    torch = _import_torch(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises what its unpickler and zip reader raise
        # Not in its own words: they advise to execute the code.
        raise UserError(
            f"{path} cannot be read as PyTorch weights without executing code from it "
            f"({type(error).__name__}); save its state dict as safetensors"
        ) from error
    while isinstance(content, Mapping) and not _is_state_dict(content, torch):
        inner = next((name for name in WRAPPERS if isinstance(content.get(name), Mapping)), None)
        if inner is None:
            break
        content = content[inner]
    if not isinstance(content, Mapping) or not _is_state_dict(content, torch):
        raise UserError(f"{path} holds no state dict, at the top or under {', '.join(WRAPPERS)}")
    return {
        name: value.detach().to(torch.float32).numpy()
        for name, value in content.items()
        if isinstance(value, torch.Tensor)
    }


def write_torch(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """A plain state dict, as `load_state_dict` takes it; needs PyTorch."""
    torch = _import_torch(path)
    torch.save({name: torch.from_numpy(value.copy()) for name, value in tensors.items()}, path)


def _is_state_dict(content: Mapping[str, Any], torch: Any) -> bool:
    return any(isinstance(value, torch.Tensor) for value in content.values())


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
    """Of an Orbax tree the parts `names` that it has, as NumPy arrays; the rest is not read."""
    path = directory.absolute()
    # Not through a Checkpointer: it takes the directory for a whole checkpoint, and complains.
    handler = ocp.PyTreeCheckpointHandler()
    try:
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
