"""Object stores: paths below gs:// and s3://, and file systems that wait for an absent store.

Only `storage` imports this, and only for a path in a bucket. Files go through fsspec (gcsfs, s3fs);
arrays of checkpoints through TensorStore, which has drivers of its own.
"""

import asyncio
import contextlib
import errno
import functools
import io
import math
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from etils import epath
from etils.epath import gpath

from cone_jax.errors import StoreAway, UserError, optional_module

# The module that fsspec needs, and the extra of this package that brings it.
_EXTRAS = {"gs": ("gcsfs", "gcs"), "s3": ("s3fs", "s3")}
_CREDENTIALS = ("DefaultCredentialsError", "NoCredentialsError", "RefreshError", "HttpAuthError")
_TRANSIENT = (408, 429, *range(500, 600))  # of HTTP
# Bytes of one request when a larger file is uploaded: what a cut connection sends again.
_PART = 32 * 2**20
# Seconds until a failed request is tried again the first time; then twice as long, and so on.
_FIRST_PAUSE = 0.5
# Seconds without a failed request after which the next one is reported again.
_QUIET = 60.0
_PROTOCOLS = {"gs": ("gs", "gcs"), "s3": ("s3",)}


def open_path(url: str, field: str) -> Path:
    """The path of a URL; `UserError` where the bucket has no name or an extra is missing."""
    scheme, _, rest = url.partition("://")
    module, extra = _EXTRAS[scheme]
    if not rest.strip("/"):
        raise UserError(f"{field} ({url}) names no bucket; give {scheme}://BUCKET/FOLDER")
    # gcsfs would ask over gRPC what kind of bucket it is, and wait a minute where that is closed.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    optional_module(module, extra)
    _set_up(scheme)
    return cast(Path, BucketPath(url))


def _set_up(scheme: str) -> None:
    """Never caches listings, as other processes write too. Retries are left to `_patiently`."""
    fsspec = optional_module("fsspec", _EXTRAS[scheme][1])
    for protocol in _PROTOCOLS[scheme]:
        settings = fsspec.config.conf.setdefault(protocol, {})
        settings.setdefault("use_listings_cache", False)
        if scheme == "s3":
            settings.setdefault("config_kwargs", {"retries": {"total_max_attempts": 1}})
        if scheme not in _set_up_already:
            fsspec.register_implementation(protocol, _patient_class(scheme), clobber=True)
    _set_up_already.add(scheme)


_set_up_already: set[str] = set()


class _Outage:
    """For how long a store may be away, and when it last was."""

    patience = 60.0  # seconds
    report: Callable[[str], object] = staticmethod(lambda line: None)
    last = -math.inf  # by the clock of `time.monotonic`


def _patient_class(scheme: str) -> Any:
    """fsspec's file system, with every request retried for up to `_Outage.patience`.

    The one function that accesses the network is wrapped; for S3 it is a method of its client.
    """
    if scheme == "gs":
        gcsfs = optional_module("gcsfs", "gcs")
        once = gcsfs.GCSFileSystem._request.__wrapped__
        is_retriable = optional_module("gcsfs.retry", "gcs").is_retriable

        class PatientGcs(gcsfs.GCSFileSystem):  # type: ignore[name-defined]
            async def _request(self, method: str, path: str, *args: Any, **options: Any) -> Any:
                def call() -> Any:
                    return once(self, method, path, *args, **options | _as_file(options))

                if method == "DELETE" and "upload_id=" in path:
                    # An upload has failed and is being called off. If that fails as well, the
                    # store forgets it in a week; the error to be seen is that of the upload.
                    with contextlib.suppress(Exception):
                        return await call()
                    return 499, {}, None, b""
                return await _patiently("gs://", call, is_retriable)

        return PatientGcs
    s3fs = optional_module("s3fs", "s3")
    no_way_there = optional_module("botocore.exceptions", "s3").ConnectionError
    unanswered = (no_way_there, *optional_module("s3fs.core", "s3").S3_RETRYABLE_ERRORS)

    def is_transient(error: BaseException) -> bool:
        return isinstance(error, unanswered) or _status(error) in _TRANSIENT

    class PatientS3(s3fs.S3FileSystem):  # type: ignore[name-defined]
        async def set_session(self, *args: Any, **options: Any) -> Any:
            client = await super().set_session(*args, **options)
            if "_make_api_call" in vars(client):
                return client
            once = client._make_api_call

            async def ask(operation: str, arguments: Any) -> Any:
                call = functools.partial(once, operation, arguments)
                if operation == "AbortMultipartUpload":
                    with contextlib.suppress(Exception):  # as above
                        return await call()
                    return {}
                return await _patiently("s3://", call, is_transient)

            client._make_api_call = ask
            return client

    return PatientS3


def _as_file(options: dict[str, Any]) -> dict[str, Any]:
    """The body of a request as a file of its own, which aiohttp sends piece by piece.

    Of a large one in bytes it warns, since it would send nothing else meanwhile.
    """
    data = options.get("data")
    return {"data": io.BytesIO(data)} if isinstance(data, bytes | bytearray | memoryview) else {}


def _status(error: BaseException) -> int:
    """The HTTP status of `error`, or 0: gcsfs has it in the error itself, s3fs in its cause."""
    answer = getattr(error, "response", None) or getattr(error.__cause__, "response", None) or {}
    found = getattr(error, "code", None) or answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return int(found) if str(found).isdecimal() else 0


def _denial(error: BaseException) -> str | None:
    """A message about missing rights, if that is what `error` is about."""
    text = str(error)
    if isinstance(error, PermissionError) or text.startswith("Forbidden"):
        return f"permission denied ({text.splitlines()[-1][:100]})"
    return None


async def _patiently(
    store: str, call: Callable[[], Any], is_transient: Callable[[BaseException], bool]
) -> Any:
    began, delay = time.monotonic(), _FIRST_PAUSE
    while True:
        try:
            return await call()
        except Exception as error:
            if not is_transient(error):
                raise
            # gcsfs puts ", 503" behind the text of an answer, which may be empty.
            said = str(error).partition("\n")[0].strip(", ") or type(error).__name__
            if time.monotonic() - began > _Outage.patience:
                raise StoreAway(
                    f"{store} has not answered for {_Outage.patience:g} s ({said})"
                ) from error
            now = time.monotonic()
            if now - _Outage.last > _QUIET:
                _Outage.report(f"{store} does not answer ({said}); trying again")
            _Outage.last = now
            await asyncio.sleep(delay * random.uniform(0.5, 1.5))
            delay = min(2 * delay, 15.0)


class BucketPath(gpath.PosixGPath):
    """A path in a bucket with the methods of `pathlib.Path` that this package uses."""

    @property
    def _files(self) -> Any:
        return epath.backend.fsspec_backend.fs(self)

    def absolute(self) -> "BucketPath":
        return self

    def resolve(self, strict: bool = False) -> "BucketPath":
        return self

    def expanduser(self) -> "BucketPath":
        return self

    def is_symlink(self) -> bool:
        return False

    def is_file(self) -> bool:
        return bool(self._files.isfile(os.fspath(self)))

    def mkdir(self, *args: Any, **options: Any) -> None:
        """Nothing to do: a bucket has no directories, and a run does not make buckets."""

    def read_bytes(self) -> bytes:
        try:
            return cast(bytes, self._files.cat_file(os.fspath(self)))
        except FileNotFoundError as error:  # which says the address of a request, or nothing
            missing = os.strerror(errno.ENOENT)
            raise FileNotFoundError(errno.ENOENT, missing, os.fspath(self)) from error
        except Exception as error:  # each library has its own
            said = _denial(error)
            if said is None:
                raise
            raise PermissionError(errno.EACCES, said, os.fspath(self)) from error

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        with self.open("r", encoding=encoding or "utf-8", errors=errors) as file:
            return cast(str, file.read())  # ends of lines become those of a file on a disk

    def write_bytes(self, data: bytes) -> int:
        with self._denial_told():
            self._files.pipe_file(os.fspath(self), data, chunksize=_PART)
        return len(data)

    def write_text(self, data: str, encoding: str | None = None, errors: str | None = None) -> int:
        return self.write_bytes(data.encode(encoding or "utf-8", errors or "strict"))

    def open(self, mode: str = "r", **options: Any) -> IO[Any]:
        """Opens for reading, by fetching the whole file; for writing use `storage.replacing`."""
        if mode not in ("r", "rb"):
            raise ValueError(f"{self} is in a bucket, which takes whole files: storage.replacing")
        content = io.BytesIO(self.read_bytes())
        return content if "b" in mode else io.TextIOWrapper(content, **options)

    def rglob(self, pattern: str) -> "Iterator[BucketPath]":
        """The files below, sorted, without directories."""
        prefix = f"{os.fspath(self).partition('://')[0]}://"
        for name in sorted(self._files.find(os.fspath(self))):
            if not name.endswith("/") and PurePosixPath(name).match(pattern):
                yield BucketPath(prefix + name)

    def upload(self, file: Path) -> None:
        """Puts a local file here, whole."""
        with self._denial_told():
            self._files.put_file(os.fspath(file), os.fspath(self), chunksize=_PART)

    @contextlib.contextmanager
    def _denial_told(self) -> Iterator[None]:
        """`UserError` if this may be read but not written, which `reach` cannot find out."""
        try:
            yield
        except Exception as error:  # each library has its own
            said = _denial(error)
            if said is None:
                raise
            raise UserError(
                f"{self} cannot be written: {said}; ask for the right to, or write elsewhere"
            ) from error

    def create(self, content: bytes) -> bool:
        """Writes only if nothing is here yet."""
        try:
            self._files.pipe_file(os.fspath(self), content, mode="create")
        except FileExistsError:
            return False
        return True

    def move_to(self, target: "BucketPath") -> None:
        """Copies everything below to `target`, then deletes it here."""
        for file in self.rglob("*"):
            place = target / file.relative_to(self).as_posix()
            self._files.cp_file(os.fspath(file), os.fspath(place))
        self.rmtree(missing_ok=True)

    def refusal(self, error: BaseException) -> str | None:
        """What is wrong with the bucket or the access to it; None for any other error."""
        name, text = type(error).__name__, str(error)
        if isinstance(error, FileNotFoundError) or "NoSuchBucket" in text:
            return f"the bucket {self.parts[2]} does not exist"
        if name in _CREDENTIALS or _status(error) == 401 or "nonymous caller" in text:
            return f"there are no credentials for it ({text.splitlines()[0][:100]})"
        return _denial(error)

    def reach(self, patience: float, report: Callable[[str], object]) -> None:
        """Lists the bucket, which fails if it does not exist or access is denied."""
        _Outage.patience, _Outage.report = patience, staticmethod(report)
        self._files.ls(f"{self.parts[1]}://{self.parts[2]}", detail=False)

    def array_store(self) -> dict[str, Any]:
        """Where TensorStore finds the arrays below this path in S3, as s3fs finds the files.

        TensorStore looks for the region of a bucket and for credentials by itself, but does not
        read the address of a server that is not Amazon's.
        """
        spec = {"driver": "s3", "bucket": self.parts[2], "path": "/".join(self.parts[3:])}
        server = self._files.s3.meta
        if "amazonaws.com" not in server.endpoint_url:
            spec |= {"endpoint": server.endpoint_url, "aws_region": server.region_name}
        if "AWS_ACCESS_KEY_ID" in os.environ:  # else it complains of files that are not there
            spec["aws_credentials"] = {"type": "environment"}
        return spec

    def stored_fingerprint(self, like: str | None) -> tuple[int, str]:
        """Size and checksum as the store has them; `like` is an earlier checksum.

        Another store, and S3 itself for a file uploaded in parts, has a checksum of another kind,
        which also has another length. Then only sizes can be compared.
        """
        about = self._files.info(os.fspath(self))
        checksum = str(about.get("crc32c") or about.get("ETag") or about.get("etag") or "")
        if like is not None and len(like) != len(checksum):
            checksum = like
        return int(about["size"]), checksum
