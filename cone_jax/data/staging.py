"""Data in a bucket, brought to a local folder before it is read.

Training reads records in random order, once per epoch: from a bucket that is one request per
record and epoch, from a disk one copy of each file (docs/data.md has the measured requests and
bytes). So each machine fetches the files of the splits it reads, once, into ``data.stage``:

* Only what is asked for: the shards of a split, and of a TFDS expression those that it touches.
* Every file is checked against the checksum that the store keeps, and gets its name only then.
* An interrupted copy goes on where it stopped; a file that is there is not fetched again, unless
  the file in the bucket has changed.
* Processes on one machine share one copy: the first fetches, the others wait.

The files and their order are those in the bucket, so a run sees the same samples as from a disk.
"""

import base64
import concurrent.futures
import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import json
import os
import shlex
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

from cone_jax import runtime, storage
from cone_jax.console import program
from cone_jax.data.sources import packed, splits, tfds
from cone_jax.errors import Failure, StoreAway, UserError, optional_module
from cone_jax.settings import Data

_REQUEST = 32 * 2**20  # bytes of one request; what an interruption loses
_THREADS = 8
_WORTH_TELLING = 10 * 2**20  # bytes


class Entry(NamedTuple):
    """A file in a bucket as its store describes it."""

    size: int
    kind: str  # of the checksum: md5, crc32c, or etag, which is S3's
    checksum: str

    @property
    def version(self) -> str:
        """Distinguishes it from other versions of the file."""
        return f"{self.size} {self.kind} {self.checksum}"


def localised(data: Data, part: str) -> Data:
    """`data` with the local copy of what its `part` needs in the place of a bucket."""
    if data.source in _REFUSED:
        raise UserError(_REFUSED[data.source](data))
    if data.source not in _NEEDED:
        return data  # of another distribution, which may read buckets itself
    # A single .npz file is the one thing that is not a folder.
    url, _, file = data.path.rpartition("/") if _is_file(data) else (data.path, "", "")
    stage = Stage(url, data.stage)
    for names in _NEEDED[data.source](stage, data, part):
        stage.bring(names)
    return dataclasses.replace(data, path=os.fspath(stage.folder / file))


def _is_file(data: Data) -> bool:
    return data.source == "array" and data.path.endswith(".npz")


class Stage:
    """The local copy of a folder in a bucket, as far as it was asked for."""

    def __init__(self, url: str, folder: str) -> None:
        """Args:
        url: the folder in the bucket.
        folder: below which copies are kept; when empty, the user's cache directory.
        """
        self.url = url.rstrip("/")
        storage.path(self.url, "data.path")  # says what is missing to read it
        fsspec = optional_module("fsspec", "gcs")
        self._files, self._root = fsspec.url_to_fs(self.url)
        top = Path(folder).expanduser() if folder else runtime.cache_directory() / "data"
        self._top = top.absolute()
        scheme, _, place = self.url.partition("://")
        self.folder = self._top / scheme / place
        self._versions = self._top / ".versions" / scheme / place
        self._listed: dict[str, Entry] = {}

    def list(self, below: str = "") -> dict[str, Entry]:
        """All files, or those below a folder, by their path within the folder in the bucket."""
        place = f"{self._root}/{below}".rstrip("/")
        where = f"data.path ({self.url}{'/' * bool(below)}{below})"
        try:
            found = self._files.find(place, detail=True)
        except FileNotFoundError:  # the bucket itself
            found = {}
        except StoreAway:  # not for a user to mend
            raise
        except Exception as error:  # each library has its own
            raise UserError(f"{where} cannot be listed: {_reason(error)}") from error
        names = {name[len(self._root) + 1 :]: name for name in sorted(found)}
        entries = {short: _entry(found[name]) for short, name in names.items() if short[-1:] != "/"}
        if not entries:
            raise UserError(f"{where} does not exist in its bucket")
        outside = next((name for name in entries if ".." in name.split("/") or not name), None)
        if outside is not None:
            raise UserError(f"{where} holds a file {outside!r}, which is not a name on a disk")
        self._listed |= entries
        return entries

    def bring(self, names: Iterable[str]) -> None:
        """Waits until the files of these names, listed before, are here."""
        wanted = {name: self._listed[name] for name in names}
        if not self._missing(wanted):
            return
        try:
            self._top.mkdir(parents=True, exist_ok=True)
            with _alone(self._top / ".lock"):
                self._fetch(self._missing(wanted))
        except PermissionError as error:
            raise UserError(
                f"data.stage ({self._top}) cannot be written to: {error.strerror}"
            ) from error

    def _missing(self, wanted: dict[str, Entry]) -> dict[str, Entry]:
        return {name: entry for name, entry in wanted.items() if not self._has(name, entry)}

    def _has(self, name: str, entry: Entry) -> bool:
        try:
            return (self._versions / name).read_text() == entry.version and (
                self.folder / name
            ).stat().st_size == entry.size
        except FileNotFoundError:
            return False

    def _partial(self, name: str, entry: Entry) -> Path:
        """The path of an unfinished file; another version of it has another path."""
        digest = hashlib.blake2b(entry.version.encode(), digest_size=8).hexdigest()
        return self._versions / f"{name}.{digest}.part"

    def _fetch(self, missing: dict[str, Entry]) -> None:
        present = 0
        for name, entry in missing.items():
            with contextlib.suppress(FileNotFoundError):
                present += self._partial(name, entry).stat().st_size
        total = sum(entry.size for entry in missing.values())
        free = shutil.disk_usage(self._top).free
        if total - present > free:
            raise UserError(
                f"data.stage ({self._top}) has {_size(free)} free, and {self.url} needs "
                f"{_size(total - present)}; give a folder with more room: "
                "--config.data.stage=FOLDER"
            )
        with (
            _progress(f"{self.url} to {self.folder}", total) as advance,
            concurrent.futures.ThreadPoolExecutor(_THREADS) as pool,
        ):
            tasks = [pool.submit(self._fetch_file, *item, advance) for item in missing.items()]
            try:
                for task in concurrent.futures.as_completed(tasks):
                    task.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _fetch_file(self, name: str, entry: Entry, advance: Callable[[int], None]) -> None:
        partial = self._partial(name, entry)
        partial.parent.mkdir(parents=True, exist_ok=True)
        digest = self._digest(name, entry)
        with partial.open("a+b") as file:
            file.seek(0)
            while part := file.read(_REQUEST):
                digest.update(part)
                advance(len(part))
            for start in range(file.tell(), entry.size, _REQUEST):
                part = self._read(name, start, min(start + _REQUEST, entry.size))
                file.write(part)
                digest.update(part)
                advance(len(part))
            size = file.tell()
            file.flush()
            os.fsync(file.fileno())
        found = digest.text()
        if size != entry.size or found != entry.checksum:
            partial.unlink()
            raise Failure(
                f"{self.url}/{name} arrived with another checksum ({found}) than its store has "
                f"({entry.checksum}); start again, and if it stays so upload the file again"
            )
        target = self.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(partial, target)
        (self._versions / name).write_text(entry.version)

    def _digest(self, name: str, entry: Entry) -> "_Digest":
        """What gives the checksum of a file, if its content is right."""
        if entry.kind == "crc32c":
            return _Digest(optional_module("google_crc32c", "gcs").Checksum)
        if entry.kind == "md5":
            return _Digest(_md5)
        bucket, _, key = f"{self._root}/{name}".partition("/")
        about = self._files.call_s3("head_object", Bucket=bucket, Key=key, PartNumber=1)
        part, parts = int(about["ContentLength"]) or 1, entry.checksum.partition("-")[2]
        # With a key of KMS, or in parts of several sizes, nobody can tell how it was made.
        unknown = str(about.get("ServerSideEncryption", "")).startswith("aws:kms") or (
            parts and -(-entry.size // part) != int(parts)
        )
        return _Digest(_md5, part, entry.checksum if unknown else "")

    def _read(self, name: str, start: int, stop: int) -> bytes:
        try:
            return bytes(self._files.cat_file(f"{self._root}/{name}", start=start, end=stop))
        except FileNotFoundError as error:
            raise UserError(f"{self.url}/{name} was deleted while it was fetched") from error
        except Exception as error:  # each library has its own
            said = storage.refusal(storage.path(self.url), error)
            if said is not None:
                raise UserError(
                    f"data.path: {self.url}/{name} cannot be read: {said}; ask for the right to"
                ) from error
            raise Failure(
                f"{self.url}/{name} cannot be fetched: {_reason(error)}; start again, and it goes "
                "on there"
            ) from error


def _reason(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _entry(about: dict[str, Any]) -> Entry:
    """What GCS (md5Hash, crc32c) and S3 (ETag) say of a file; GCS has no MD5 of some."""
    size, etag = int(about["size"]), str(about.get("ETag", "")).strip('"')
    if about.get("md5Hash"):
        return Entry(size, "md5", about["md5Hash"])
    if about.get("crc32c"):
        return Entry(size, "crc32c", about["crc32c"])
    return Entry(size, "etag", etag)


class _Digest:
    """The checksum of a file as its store writes it.

    With the size of its parts it is S3's, the MD5 of their MD5s. `known` is taken for granted.
    """

    def __init__(self, kind: Callable[[], Any], part: int = 0, known: str = "") -> None:
        self._kind, self._part, self._known = kind, part, known
        self._digests = [kind()]
        self._room = part or sys.maxsize  # in the part that has begun

    def update(self, content: bytes) -> None:
        while content:
            if not self._room:
                self._digests.append(self._kind())
                self._room = self._part
            taken, content = content[: self._room], content[self._room :]
            self._digests[-1].update(taken)
            self._room -= len(taken)

    def text(self) -> str:
        digests = [digest.digest() for digest in self._digests]
        if self._known or not self._part:
            return self._known or base64.b64encode(digests[0]).decode()
        if len(digests) == 1:
            return digests[0].hex()
        return f"{_md5(b''.join(digests)).hexdigest()}-{len(digests)}"


_md5 = functools.partial(hashlib.md5, usedforsecurity=False)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keeps the other processes of this machine out."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, elsewhere a line for every tenth; nothing for little."""
    if total < _WORTH_TELLING:
        yield lambda count: None
        return
    console = Console(file=sys.stderr, markup=False, highlight=False, soft_wrap=True)
    if console.is_terminal:
        columns = ("staging", BarColumn(), DownloadColumn(), TimeRemainingColumn())
        console.print(f"staging {title}")
        with Progress(*columns, console=console) as bar:
            task = bar.add_task("", total=total)
            yield lambda count: bar.advance(task, count)
        return
    done, told, lock = 0, 0, threading.Lock()

    def advance(count: int) -> None:
        nonlocal done, told
        with lock:
            done += count
            if done * 10 // max(total, 1) > told:
                told = done * 10 // max(total, 1)
                console.print(f"staged {_size(done)} of {_size(total)}")

    console.print(f"staging {title}: {_size(total)}")
    yield advance


def _size(count: int) -> str:
    """
    >>> _size(1_500_000_000), _size(20_000)
    ('1.5 GB', '0.02 MB')
    """
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"


def _of_pack(stage: Stage, data: Data, part: str) -> Iterator[list[str]]:
    listed = stage.list()
    if packed.METADATA not in listed:
        images = next((name for name in listed if name.endswith(_IMAGES)), None)
        if images:
            raise UserError(_pack_first(data))
        raise UserError(f"data.path ({stage.url}) is not a packed folder: no {packed.METADATA}")
    yield [packed.METADATA]
    metadata = json.loads((stage.folder / packed.METADATA).read_text())
    own = splits.match(part, metadata["splits"])
    shards = [] if own is None else list(metadata["splits"][own]["shards"])
    yield [name for name in shards if name in listed]  # the source says what is missing


def _of_tfds(stage: Stage, data: Data, part: str) -> Iterator[list[str]]:
    base = data.name.partition(":")[0]
    listed = stage.list(base)
    described = [name for name in listed if name.endswith((".json", ".txt"))]
    # A version that is no longer in the bucket must not be found here.
    for file in (stage.folder / base).rglob("dataset_info.json"):
        if file.relative_to(stage.folder).as_posix() not in listed:
            file.unlink()
    yield described
    builder = tfds.find(data.name, os.fspath(stage.folder))
    if builder is None or not tfds.is_array_record(builder):
        return  # the source says so
    folder = Path(builder.data_path).relative_to(stage.folder).as_posix()
    # Of a split that there is not, the source says so.
    with contextlib.suppress(KeyError, ValueError):
        files = {
            Path(each.filename).name.replace(".tfrecord-", ".array_record-")
            for each in builder.info.splits[part].file_instructions
        }
        yield sorted(f"{folder}/{name}" for name in files if f"{folder}/{name}" in listed)


def _of_arrays(stage: Stage, data: Data, part: str) -> Iterator[list[str]]:
    listed = stage.list(data.path.rpartition("/")[2] if _is_file(data) else "")
    names = [name for name in listed if name.endswith(".npz") and "/" not in name]
    if not names:  # or the copy would be named, which is empty
        raise UserError(f"data.path ({data.path}) holds no .npz file; give one, or their folder")
    yield names


_IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
# What each kind of source needs of its folder, in several goes where one tells of the next.
_NEEDED: dict[str, Callable[[Stage, Data, str], Iterator[list[str]]]] = {
    "packed": _of_pack,
    "tfds": _of_tfds,
    "array": _of_arrays,
}


def _pack_first(data: Data) -> str:
    """Why single images are not read from a bucket, and the commands that change it."""
    url = data.path.rstrip("/")
    name = url.rpartition("/")[2]
    copy = "gcloud storage cp --recursive" if url.startswith("gs:") else "aws s3 cp --recursive"
    where = (f"--config.data.path={name}", f"--output={url}-packed")
    pack = shlex.join([*program(), "--mode=pack", "--config=configs/folder.py", *where])
    source = "." if url.startswith("gs:") else shlex.quote(name)
    return (
        f"data.path ({url}) is a folder of single images in a bucket, one request for each; pack "
        f"it: {copy} {shlex.quote(url)} {source} && {pack}; then set data.source to 'packed' and "
        f"data.path to {url}-packed"
    )


def _copy_first(data: Data) -> str:
    return (
        f"data.path ({data.path}) must be a local folder for data.source {data.source!r}; copy it"
    )


_LOCAL_ONLY = ("coco", "fgvc_aircraft", "hf_datasets", "table", "webdataset")
_REFUSED = {"image_folder": _pack_first} | dict.fromkeys(_LOCAL_ONLY, _copy_first)
