"""The stores of `bucket_servers` within this process, for tests that count what is fetched."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import fsspec

from tests.bucket_servers import BUCKET, mended_emulator, reached, start_gcs, start_s3


class Store:
    """A running server with an empty bucket, and how much has been fetched from it."""

    def __init__(self, scheme: str) -> None:
        self.url = f"{scheme}://{BUCKET}"
        self.requests = 0  # for contents; of gs:// alone
        self.sent = 0  # bytes of contents

    @property
    def files(self) -> fsspec.AbstractFileSystem:
        return fsspec.url_to_fs(self.url)[0]

    def put(self, folder: Path, name: str) -> str:
        """Uploads a folder; returns its URL."""
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                place = f"{BUCKET}/{name}/{file.relative_to(folder).as_posix()}"
                self.files.pipe_file(place, file.read_bytes())
        return f"{self.url}/{name}"


@contextlib.contextmanager
def gcs() -> Iterator[Store]:
    """A store for ``gs://``; gcsfs and TensorStore reach it through the environment."""
    store, emulator = Store("gs"), mended_emulator()
    send = emulator.Response.write_file

    def count(response, content, *arguments, **options):
        store.requests += 1
        store.sent += len(content)
        return send(response, content, *arguments, **options)

    server, port = start_gcs()
    try:
        with mock.patch.object(emulator.Response, "write_file", count), reached("gcs", port):
            yield store
    finally:
        server.stop()


@contextlib.contextmanager
def s3() -> Iterator[Store]:
    """A store for ``s3://``."""
    server, port = start_s3()
    try:
        with reached("s3", port):
            yield Store("s3")
    finally:
        server.stop()
