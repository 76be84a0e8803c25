"""Files of a user, on a disk or in a bucket: the one place that knows which.

`path` turns what a user gives into a path. Below ``gs://`` and ``s3://`` that is a `BucketPath`,
which behaves like `pathlib.Path`; all else is a `pathlib.Path`. `replacing` writes a file whole or
not at all, `AppendedFile` adds lines to one, `local` lends one to libraries that read disks only.
"""

import contextlib
import errno
import os
import re
import secrets
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from cone_jax.errors import UserError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_CHUNK = 1 << 20
SCHEMES = ("gs", "s3")
_ONE_SLASH = re.compile(f"({'|'.join(SCHEMES)}):/")


def path(given: str | os.PathLike[str], field: str = "path") -> Path:
    """The path that a user means: a directory or file here, or below gs:// or s3://.

    `field` names the flag or field in errors.

    >>> path("~/birds") == Path.home() / "birds"
    True
    >>> path("hdfs://cluster/run", "--workdir")
    Traceback (most recent call last):
        ...
    cone_jax.errors.UserError: --workdir (hdfs://cluster/run) must be a local path, gs:// or s3://
    """
    if is_remote(given):
        from cone_jax import buckets

        return buckets.open_path(os.fspath(given), field)
    scheme = _SCHEME.match(os.fspath(given))
    if scheme is not None:
        raise UserError(f"{field} ({given}) must be a local path, gs:// or s3://")
    slip = _ONE_SLASH.match(os.fspath(given))
    if slip is not None:  # a folder of that name would be made here, and the bucket stay empty
        raise UserError(f"{field} ({given}) names no bucket; give {slip[1]}://BUCKET/FOLDER")
    return Path(given).expanduser()


def is_remote(given: str | os.PathLike[str]) -> bool:
    """Whether it lies in a bucket.

    >>> is_remote("gs://bucket/run"), is_remote("runs/digits")
    (True, False)
    """
    scheme = _SCHEME.match(os.fspath(given))
    return scheme is not None and scheme[1] in SCHEMES


def normalised(given: str) -> str:
    """As `os.path.normpath`, which would remove one of the two slashes of a URL.

    >>> normalised("s3://bucket/run/../other/"), normalised("/runs//digits/")
    ('s3://bucket/other', '/runs/digits')
    """
    scheme, mark, rest = given.rpartition("://")
    return scheme + mark + os.path.normpath(rest)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A local path to write to; it takes the place of `path` when the block succeeds.

    >>> with tempfile.TemporaryDirectory() as directory:
    ...     target = Path(directory) / "metrics.json"
    ...     with replacing(target) as unfinished:
    ...         _ = unfinished.write_text("{}")
    ...     target.read_text()
    '{}'
    """
    if is_remote(path):
        with tempfile.TemporaryDirectory() as scratch:
            unfinished = Path(scratch, path.name)
            yield unfinished
            _upload(unfinished, path)
        return
    unfinished = _beside(path)
    try:
        yield unfinished
        with unfinished.open("rb") as written:
            os.fsync(written.fileno())  # a power failure could keep the name and lose the content
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


@contextlib.contextmanager
def replacing_directory(path: Path) -> Iterator[Path]:
    """A local directory to fill; it takes the place of `path` when the block succeeds.

    In a bucket the files appear one after another, those of an earlier one are deleted before.
    """
    if not is_remote(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    parent = None if is_remote(path) else path.parent
    unfinished = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=parent))
    try:
        yield unfinished
        remove_directory(path)
        if is_remote(path):
            for file in sorted(file for file in unfinished.rglob("*") if file.is_file()):
                _upload(file, path / file.relative_to(unfinished).as_posix())
        else:
            unfinished.chmod(0o755)  # mkdtemp makes it private
            unfinished.rename(path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextlib.contextmanager
def streamed(path: Path) -> Iterator[IO[str]]:
    """A local text file to write to: it is `path` itself, or goes there when the block ends."""
    if not is_remote(path):
        path.unlink(missing_ok=True)  # it might be a link
        with path.open("w") as file:
            yield file
        return
    with tempfile.NamedTemporaryFile("w") as file:
        try:
            yield cast(IO[str], file)
        finally:
            file.flush()
            _upload(Path(file.name), path)


@contextlib.contextmanager
def local(path: Path) -> Iterator[Path]:
    """`path` itself on a disk; of a file or directory in a bucket, a copy as long as the block."""
    if not is_remote(path):
        yield path
        return
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch, path.name)
        if path.is_dir():
            for file in path.rglob("*"):
                target = copy / file.relative_to(path).as_posix()
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.read_bytes())
        else:
            copy.write_bytes(path.read_bytes())
        yield copy


def remove_directory(path: Path) -> None:
    """Deletes a directory and all below it, if it is there."""
    if is_remote(path):
        path.rmtree(missing_ok=True)  # type: ignore[attr-defined]
    else:
        shutil.rmtree(path, ignore_errors=True)


def move_directory(path: Path, target: Path) -> None:
    """Gives a directory another name; in a bucket that is a copy, and the original goes last."""
    if is_remote(path):
        path.move_to(target)  # type: ignore[attr-defined]
    else:
        path.rename(target)


def whole_directories(path: Path, marker: str) -> list[Path]:
    """The directories directly below `path`; in a bucket only those that hold a file `marker`.

    A directory on a disk gets its name when it is whole. In a bucket it is there with its first
    file, so the last one has to say so.
    """
    if not path.is_dir():
        return []
    if is_remote(path):
        return [file.parent for file in path.glob(f"*/{marker}")]
    return [entry for entry in path.iterdir() if entry.is_dir()]


def fingerprint(path: Path, like: int | str | None = None) -> tuple[int, int | str]:
    """The size and a checksum of a file, to be compared with an earlier one.

    Of a file on a disk that is CRC-32, an int; of one in a bucket a text that the store keeps,
    so that nothing has to be fetched. `like` is the earlier checksum: it decides which of the two
    it is, so that a run may be copied from a disk to a bucket. From a bucket to a disk, or to a
    bucket that keeps another checksum, only the size can be compared.
    """
    if is_remote(path) and not isinstance(like, int):
        return cast(tuple[int, str], path.stored_fingerprint(like))  # type: ignore[attr-defined]
    checksum = size = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
            size += len(chunk)
    return size, like if isinstance(like, str) else checksum


def modified(path: Path) -> float:
    """When a file was written last, in seconds since the epoch; of one in a bucket whole ones."""
    stat = path.stat()
    return stat.mtime if is_remote(path) else stat.st_mtime  # type: ignore[attr-defined]


def create(path: Path, content: bytes) -> bool:
    """Writes a file only if there is none; whether it did. Of several at a time one succeeds."""
    if is_remote(path):
        return bool(path.create(content))  # type: ignore[attr-defined]
    scratch = _beside(path)
    try:
        scratch.write_bytes(content)
        os.link(scratch, path)  # unlike opening with O_EXCL it appears with its content
    except FileExistsError:
        return False
    finally:
        scratch.unlink(missing_ok=True)
    return True


def _beside(path: Path) -> Path:
    """A hidden name that nobody else has: containers that share a disk have the same numbers."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")


def _upload(file: Path, target: Path) -> None:
    target.upload(file)  # type: ignore[attr-defined]


def array_store(url: str) -> dict[str, Any]:
    """What TensorStore calls the directory `url`, which is in ``s3://``."""
    return cast(dict[str, Any], path(url).array_store())  # type: ignore[attr-defined]


class AppendedFile:
    """A text file that grows at its end.

    On a disk, what is written is with the system at once. A bucket can only replace files: there,
    the whole content is held in memory, and goes up with `sync` and `close`.
    """

    def __init__(self, path: Path, content: str) -> None:
        """Replaces what `path` holds by `content`, and goes on from there."""
        self._path = path
        with replacing(path) as unfinished:
            unfinished.write_text(content)
        self._file: IO[str] | None = None
        if is_remote(path):
            self._content, self._sent = [content], True
        else:
            self._file = path.open("a")

    def write(self, text: str) -> None:
        if self._file is not None:
            self._file.write(text)
            self._file.flush()
        else:
            self._content.append(text)
            self._sent = False

    def sync(self) -> None:
        """Waits until everything written is safe."""
        if self._file is not None:
            os.fsync(self._file.fileno())
        elif not self._sent:
            self._path.write_text("".join(self._content))
            self._sent = True

    def close(self, keep: bool = True) -> None:
        """With `keep` False nothing more is uploaded: another process writes there now."""
        if self._file is not None:
            self._file.close()
        elif keep:
            self.sync()


def reach(path: Path, patience: float, report: Callable[[str], object]) -> None:
    """Contacts the store of `path` once, and raises its error. A disk is not contacted.

    From now on a store that does not answer is asked again for `patience` seconds, and `report`
    is told once per outage.
    """
    if is_remote(path):
        path.reach(patience, report)  # type: ignore[attr-defined]


def refusal(path: Path, error: BaseException) -> str | None:
    """Why `path` cannot be used, if `error` says so; None for an error of another kind."""
    if is_remote(path):
        return cast(str | None, path.refusal(error))  # type: ignore[attr-defined]
    return error.strerror if isinstance(error, OSError) else None


class MirroredFolder:
    """A local directory whose files are also at `target`: there, or copied with `sync`."""

    def __init__(self, target: Path) -> None:
        self._target, self._scratch = target, None
        self.path = target
        if is_remote(target):
            self._scratch = tempfile.TemporaryDirectory()
            self.path = Path(self._scratch.name)
        self._sent: dict[Path, int] = {}

    def sync(self) -> None:
        """Copies what has grown."""
        if self._scratch is not None:
            for file in (file for file in sorted(self.path.rglob("*")) if file.is_file()):
                size = file.stat().st_size
                if self._sent.get(file) != size:
                    _upload(file, self._target / file.relative_to(self.path).as_posix())
                    self._sent[file] = size

    def close(self, keep: bool = True) -> None:
        """As for `AppendedFile`."""
        if keep:
            self.sync()
        if self._scratch is not None:
            self._scratch.cleanup()


# Only writing can fail in these ways.
_WRITING = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
# TensorStore, below Orbax, raises ValueError with the number in its text.
_IN_TEXT = re.compile(r"os_error_code='(\d+)'")


def write_failure(error: BaseException | None) -> str | None:
    """What the system said, if `error` or what caused it is a failed write.

    A disk that is full, over quota or read-only is nobody's mistake in a config, and no reason to
    lose anything: files are replaced atomically, a checkpoint is visible only when it is complete.

    >>> write_failure(OSError(errno.ENOSPC, "No space left on device"))
    'No space left on device'
    >>> write_failure(FileNotFoundError(errno.ENOENT, "No such file or directory")) is None
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
