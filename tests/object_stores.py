"""The stores of `bucket_servers` within this process, for tests that count what is fetched."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import fsspec

from tests.bucket_servers import BUCKET, free_port, reached


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
    from gcp_storage_emulator import server as emulator

    store, port = Store("gs"), free_port()
    send = emulator.Response.write_file

    def count(response, content, *arguments, **options):
        store.requests += 1
        store.sent += len(content)
        return send(response, content, *arguments, **options)

    with mock.patch.object(emulator.Response, "write_file", count), reached("gcs", port):
        server = emulator.create_server("127.0.0.1", port, in_memory=True, default_bucket=BUCKET)
        server.start()
        try:
            yield store
        finally:
            server.stop()


@contextlib.contextmanager
def s3() -> Iterator[Store]:
    """A store for ``s3://``."""
    from moto.server import ThreadedMotoServer

    store, port = Store("s3"), free_port()
    with reached("s3", port):
        server = ThreadedMotoServer("127.0.0.1", port, verbose=False)
        server.start()
        try:
            store.files.mkdir(BUCKET)
            yield store
        finally:
            server.stop()
