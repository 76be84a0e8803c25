"""Files that are complete or not there, whatever interrupts the writing of them."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, beside `path`; it takes the place of `path` when the block succeeds.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     target = Path(directory) / "metrics.json"
    ...     with replacing(target) as unfinished:
    ...         _ = unfinished.write_text("{}")
    ...     target.read_text()
    '{}'
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield unfinished
        with unfinished.open("rb") as written:
            os.fsync(written.fileno())  # a power failure could keep the name and lose the content
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise
