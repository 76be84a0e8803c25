"""Object stores on loopback for tests: Google's (gcp-storage-emulator) and S3 (moto), and a proxy.

    python tests/bucket_servers.py gcs 9123

serves the bucket ``bucket`` until it is ended, and prints the port: of 0 the system makes a free
one. The emulator ignores conditions and does not say which generation of an object it sends;
without both there is no lock and no OCDBT, so they are added here as Google documents them. It also
reads an upload as if it were an e-mail, and loses the last byte of a file that ends with a carriage
return: uploads are taken apart here instead. What arrives of an upload whose sender was killed it
takes for the whole: here it is refused. It lets five connections wait, where TensorStore opens
dozens: one that is turned away tries again after a second. And it is slowed down by every object
there ever was: with each write it makes a text of all of them, deleted ones included, to go on from
another time.
"""

import contextlib
import email
import functools
import json
import os
import socket
import subprocess
import sys
import threading
import urllib.request
from http import HTTPStatus
from pathlib import Path
from unittest import mock

BUCKET = "bucket"


def serve_gcs(port: int) -> None:
    _, port = start_gcs(port)
    print(port, flush=True)
    threading.Event().wait()


@functools.cache
def mended_emulator():
    """The emulator's module, once in a process, with what it lacks."""
    from gcp_storage_emulator import storage as kept
    from gcp_storage_emulator.exceptions import NotFound
    from gcp_storage_emulator.handlers import objects

    insert, download = objects.insert, objects.download

    def generation(storage, bucket, name):
        try:
            return str(storage.get_file_obj(bucket, name)["generation"])
        except NotFound:
            return "0"

    def conditional_insert(request, response, storage, *args, **kwargs):
        asked = request.query.get("ifGenerationMatch")
        content = request.data  # before it is refused, or the answer might arrive as a cut
        name = (request.query.get("name") or [None])[0]
        if asked and name is None:  # of a multipart upload the name is in its first part
            name = content["meta"]["name"]
        if asked and generation(storage, request.params["bucket_name"], name) != asked[0]:
            response.status = HTTPStatus.PRECONDITION_FAILED
            return
        insert(request, response, storage, *args, **kwargs)

    def dated_download(request, response, storage, *args, **kwargs):
        found = generation(storage, request.params["bucket_name"], request.params["object_id"])
        download(request, response, storage, *args, **kwargs)
        response["x-goog-generation"] = found
        if request.query.get("ifGenerationNotMatch") == [found]:
            response.status = HTTPStatus.NOT_MODIFIED
            response.write_file(b"")

    objects.insert, objects.download = conditional_insert, dated_download
    from gcp_storage_emulator import server as emulator  # takes the handlers when imported

    read, read_raw = emulator._read_data, emulator._read_raw_data

    def read_whole(handler):
        raw, announced = read_raw(handler), handler.headers.get("Content-Length")
        if announced and len(raw) < int(announced):
            raise ConnectionError("the upload broke off")
        return raw

    def read_exactly(handler, query):
        kind = handler.headers.get("Content-Type") or ""
        if not kind.startswith("multipart/related"):
            return read(handler, query)
        raw = emulator._decode_raw_data(emulator._read_raw_data(handler), handler)
        return take_apart(raw, handler.headers.get_param("boundary"))

    emulator._read_raw_data, emulator._read_data = read_whole, read_exactly
    kept.DEFAULT_SOFT_DELETE_RETENTION_SECONDS = 0
    kept.Storage._write_config_to_file = lambda storage: None
    emulator.server.HTTPServer.request_queue_size = 128
    return emulator


def start_gcs(port: int = 0):
    """A server in this process, and its port."""
    server = mended_emulator().create_server(
        "127.0.0.1", port, in_memory=True, default_bucket=BUCKET
    )
    server.start()
    return server, server._api._httpd.server_address[1]


def take_apart(raw: bytes, boundary: str) -> dict[str, object]:
    """What an upload in two parts says of a file, and the file byte for byte."""
    mark = b"--" + boundary.encode()
    newline = b"\r\n" if raw.partition(mark)[2].startswith(b"\r\n") else b"\n"
    _, about, file, _ = raw.split(mark)
    headers, _, content = file.partition(2 * newline)
    about = about.partition(2 * newline)[2]
    kind = email.message_from_bytes(headers.strip()).get_content_type()
    content = content.removesuffix(newline)
    return {"meta": json.loads(about), "content": content, "content-type": kind}


def serve_s3(port: int) -> None:
    _, port = start_s3(port)
    print(port, flush=True)
    threading.Event().wait()


def start_s3(port: int = 0):
    """A server in this process, and its port."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
    urllib.request.urlopen(request).close()
    return server, port


@contextlib.contextmanager
def running(kind: str):
    """A server in a process of its own; gives its port."""
    process = subprocess.Popen(
        [sys.executable, __file__, kind, "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def environment(kind: str, port: int) -> dict[str, str]:
    """What a client has to know; the names are those of gcsfs, s3fs and TensorStore."""
    address = f"http://127.0.0.1:{port}"
    if kind == "gcs":
        return {
            "STORAGE_EMULATOR_HOST": address,
            "TENSORSTORE_GCS_HTTP_URL": address,
            "FSSPEC_GCS_TOKEN": "anon",
            "NO_GCE_CHECK": "true",
            # Otherwise gcsfs asks for a minute what kind of bucket it is, in another protocol.
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }
    return {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


@contextlib.contextmanager
def reached(kind: str, port: int):
    """This process and its children reach the server; gives the URL of its bucket."""
    import fsspec
    from etils.epath import backend
    from fsspec import asyn

    with mock.patch.dict(os.environ, environment(kind, port)):
        fsspec.config.set_conf_env(fsspec.config.conf)
        try:
            yield f"{'gs' if kind == 'gcs' else 's3'}://{BUCKET}"
        finally:
            # fsspec and epath keep file systems, and with them the address of the server.
            known = fsspec.get_filesystem_class(kind)
            for files in known._cache.values():
                # s3fs itself gives up after a tenth of a second, and another test gets a warning.
                if client := getattr(files, "_s3creator", None):
                    asyn.sync(files.loop, client.__aexit__, None, None, None)
            known.clear_instance_cache()
            backend.fsspec_backend._get_filesystem.cache_clear()


class FaultyProxy:
    """Passes connections on to a server, or does what `fault` says with them instead.

    `fault` is called with the number of a connection and returns "" (pass it on), "cut" (close it),
    or an HTTP status such as "503 Service Unavailable".
    """

    def __init__(self, target: int, fault=lambda number: "") -> None:
        self.fault, self._target, self._count = fault, target, 0
        self.failed = 0  # connections
        self.fetched = 0  # bytes that came from the server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._listener.accept()
                self._count += 1
                threading.Thread(
                    target=self._serve, args=(connection, self._count), daemon=True
                ).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        with connection, contextlib.suppress(OSError):
            fault = self.fault(number)
            if fault:
                self.failed += 1
                if fault != "cut":
                    connection.recv(1 << 16)
                    answer = f"HTTP/1.0 {fault}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                    connection.sendall(answer.encode())
                    # Closed at once, with a body on its way here, it might arrive as a cut.
                    connection.shutdown(socket.SHUT_WR)
                    connection.settimeout(5)
                    while connection.recv(1 << 16):
                        pass
                return
            with socket.create_connection(("127.0.0.1", self._target)) as server:
                back = threading.Thread(
                    target=self._pump, args=(server, connection, True), daemon=True
                )
                back.start()
                self._pump(connection, server)
                back.join()

    def _pump(self, source: socket.socket, sink: socket.socket, counted: bool = False) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.fetched += counted * len(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listener.close()


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).parent))  # of the tests, whose names are not packages
    {"gcs": serve_gcs, "s3": serve_s3}[sys.argv[1]](int(sys.argv[2]))
    os._exit(0)
