"""Writes that fail because of the disk, in one line instead of a library's stack.

A disk that is full, over quota or read-only is nobody's mistake in a config, and no reason to lose
anything: files are replaced atomically, a checkpoint becomes visible only when it is complete.
"""

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

from cone_jax.errors import Failure, TrainingFailed, UserError
from cone_jax.workdir.checkpoints import resolve_step

# Only writing can fail in these ways.
_WRITING = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
# TensorStore, below Orbax, raises ValueError with the number in its text.
_IN_TEXT = re.compile(r"os_error_code='(\d+)'")


def reason(error: BaseException | None) -> str | None:
    """What the operating system said, if `error` or what caused it is a failed write.

    >>> reason(OSError(errno.ENOSPC, "No space left on device"))
    'No space left on device'
    >>> reason(FileNotFoundError(errno.ENOENT, "No such file or directory")) is None
    True
    """
    while error is not None:
        if isinstance(error, OSError):
            codes = {error.errno or 0}
        else:
            codes = set(map(int, _IN_TEXT.findall(str(error))))
        for code in codes & _WRITING:
            return os.strerror(code)
        error = error.__cause__ or error.__context__
    return None


@contextlib.contextmanager
def explained(workdir: Path) -> Iterator[None]:
    """Turns failed writes into `TrainingFailed`, saying what is safe and how to go on."""
    try:
        yield
    except (UserError, Failure):  # say already what there is to say
        raise
    except Exception as error:
        said = reason(error)
        if said is None:
            raise
        try:
            saved = f"checkpoint {resolve_step(workdir)} is intact"
        except UserError:
            saved = "there is no checkpoint yet"
        raise TrainingFailed(
            f"workdir ({workdir}) cannot be written: {said}; {saved}; mend that, and start again "
            "with the same flags"
        ) from error
