"""Whether the files of a checkpoint are still what was written.

Orbax makes a checkpoint visible only when it is complete; what happens to the files afterwards
(a failing disk, a full one, a careless copy) it does not see. So each complete checkpoint gets a
manifest of sizes and checksums, `manifests/<step>.json` beside `checkpoints/`.
"""

import json
from pathlib import Path

from cone_jax import storage

MANIFESTS = "manifests"


def write_manifest(checkpoint: Path, manifest: Path) -> None:
    """Records every file of every item of `checkpoint`."""
    manifest.parent.mkdir(exist_ok=True)
    entries = {
        path.relative_to(checkpoint).as_posix(): storage.fingerprint(path)
        for path in _files(checkpoint)
    }
    with storage.replacing(manifest) as unfinished:
        unfinished.write_text(json.dumps(entries, indent=1))


def find_damage(checkpoint: Path, manifest: Path, only: str = "") -> str | None:
    """What is wrong with the first file that is not as recorded; None if all are.

    With `only`, the files of that item are looked at and no others. A checkpoint without a
    manifest was not written by this program's trainer, and is taken as it is.
    """
    if not manifest.exists():
        return None
    try:
        recorded = json.loads(manifest.read_text())
        entries = [(str(name), int(size), _kept(crc)) for name, (size, crc) in recorded.items()]
        if any(Path(name).is_absolute() or ".." in Path(name).parts for name, _, _ in entries):
            raise ValueError("a name leads out of the checkpoint")
    except (ValueError, TypeError, AttributeError):
        return f"{manifest.name} is unreadable"
    for name, expected_size, expected_checksum in entries:
        if only and not name.startswith(f"{only}/"):
            continue
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        size, checksum = storage.fingerprint(path, expected_checksum)
        if size != expected_size:
            return f"{name} has {size} bytes instead of {expected_size}"
        if checksum != expected_checksum:
            return f"{name} has another checksum than when it was written"
    return None


def _files(checkpoint: Path) -> list[Path]:
    """The files of the items; those beside them are Orbax's own bookkeeping."""
    below = (path for path in checkpoint.rglob("*") if path.is_file())
    return sorted(path for path in below if path.parent != checkpoint)


def _kept(checksum: object) -> int | str:
    """A CRC-32, or in a bucket the store's own checksum, which is a text."""
    return checksum if isinstance(checksum, str) else int(checksum)  # type: ignore[call-overload]
