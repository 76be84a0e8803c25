"""A stand-in for Hugging Face's hub on loopback: its HTTP protocol, as far as files need it.

`resolve` answers as the hub does: small files with their content, large ones with a redirect, the
commit and the hash in headers; the store of large files takes range requests. Names of owners
choose what goes wrong: ``gated``, ``busy``. Uploads go through preupload, LFS batch and commit.
"""

import base64
import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "c0ffee" + 34 * "0"
LARGE = 10_000  # bytes; from here on a file is in the store
TOKEN = "hf_stand_in"


class StandIn:
    """Repositories, and what has been asked for."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.store: dict[str, bytes] = {}
        self.requests: list[tuple[str, str, str]] = []  # method, path, range
        self.answers: list[tuple[str, int]] = []  # path, status
        self.break_off: set[str] = set()  # hashes whose first answer ends too early
        self.endpoint = ""

    @property
    def store_endpoint(self) -> str:
        """Another host, as the hub's store is."""
        return self.endpoint.replace("127.0.0.1", "localhost")

    def add(self, repository: str, **files: bytes) -> None:
        content = {name.replace("__", "."): value for name, value in files.items()}
        self.repositories.setdefault(repository, {}).update(content)
        for value in content.values():
            self.store[hashlib.sha256(value).hexdigest()] = value


@contextlib.contextmanager
def serving() -> Iterator[StandIn]:
    """The hub while the context lasts; `endpoint` is its address."""
    state = StandIn()

    class Handler(_Handler):
        hub = state

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: StandIn

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._get()

    def do_GET(self) -> None:
        self._get()

    def _get(self) -> None:
        path = self.path.partition("?")[0]
        self.hub.requests.append((self.command, path, self.headers.get("Range", "")))
        if match := re.fullmatch(r"/store/(\w+)", path):
            self._from_store(match[1])
        elif match := re.fullmatch(r"/([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)", path):
            self._resolve(*match.groups())
        else:
            self._answer(404, {})

    def _resolve(self, repository: str, revision: str, file: str) -> None:
        owner = repository.partition("/")[0]
        if owner == "busy":
            return self._answer(429, {"Retry-After": "0"})
        known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if owner == "gated":
            headers = {"X-Error-Code": "GatedRepo", "X-Error-Message": "gated"}
            return self._answer(403 if known else 401, headers)
        if repository not in self.hub.repositories and not known:
            return self._answer(401, {"X-Error-Message": "Invalid username or password."})
        if repository not in self.hub.repositories:
            return self._answer(404, {"X-Error-Code": "RepoNotFound"})
        if revision not in ("main", "v1", COMMIT):
            return self._answer(404, {"X-Error-Code": "RevisionNotFound"})
        content = self.hub.repositories[repository].get(file)
        if content is None:
            return self._answer(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha1(content).hexdigest()}"'}
        if len(content) < LARGE:
            return self._answer(200, headers, content)
        digest = hashlib.sha256(content).hexdigest()
        headers |= {
            "X-Linked-ETag": f'"{digest}"',
            "X-Linked-Size": str(len(content)),
            "Location": f"{self.hub.store_endpoint}/store/{digest}",
        }
        return self._answer(302, headers)

    def _from_store(self, digest: str) -> None:
        content = self.hub.store[digest]
        first = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(first[1]) if first else 0
        headers = {"Accept-Ranges": "bytes", "ETag": f'"{digest}"'}
        if first:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        part = content[start:]
        if digest in self.hub.break_off and self.command == "GET":
            self.hub.break_off.discard(digest)
            self._head(206 if first else 200, headers, len(part))
            self.wfile.write(part[: len(part) * 9 // 10])
            self.close_connection = True
            return
        self._answer(206 if first else 200, headers, part)

    def do_PUT(self) -> None:
        content = self._body()
        self.hub.store[hashlib.sha256(content).hexdigest()] = content
        self._answer(200, {})

    def do_POST(self) -> None:
        body = self._body()
        self.hub.requests.append(("POST", self.path, ""))
        if self.path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._answer(401, {"X-Error-Message": "Invalid credentials"})
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
            self.hub.repositories.setdefault(name, {})
            return self._json({"url": f"{self.hub.endpoint}/{name}", "name": name})
        if re.search(r"/preupload/\w+$", self.path):
            return self._json({"files": [_mode(file) for file in json.loads(body)["files"]]})
        if self.path.endswith("/objects/batch"):
            objects = [
                {**asked, "actions": {"upload": {"href": f"{self.hub.endpoint}/upload"}}}
                for asked in json.loads(body)["objects"]
            ]
            return self._json({"transfer": "basic", "objects": objects})
        if match := re.fullmatch(r"/api/models/(.+)/commit/main", self.path):
            self._commit(match[1], body)
            return self._json(
                {
                    "success": True,
                    "commitOid": COMMIT,
                    "commitUrl": f"{self.hub.endpoint}/{match[1]}/commit/{COMMIT}",
                    "hookOutput": "",
                }
            )
        return self._answer(404, {})

    def _commit(self, repository: str, body: bytes) -> None:
        for line in map(json.loads, body.decode().splitlines()):
            value = line["value"]
            if line["key"] == "file":
                content = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                content = self.hub.store[value["oid"]]
            else:
                continue
            self.hub.repositories[repository][value["path"]] = content
            self.hub.store[hashlib.sha256(content).hexdigest()] = content

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _json(self, content: Any) -> None:
        self._answer(200, {"Content-Type": "application/json"}, json.dumps(content).encode())

    def _answer(self, status: int, headers: dict[str, str], content: bytes = b"") -> None:
        self._head(status, headers, len(content))
        if self.command != "HEAD":
            self.wfile.write(content)

    def _head(self, status: int, headers: dict[str, str], length: int) -> None:
        self.hub.answers.append((self.path.partition("?")[0], status))
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(length)}).items():
            self.send_header(name, value)
        self.end_headers()


def _mode(file: dict[str, Any]) -> dict[str, Any]:
    mode = "lfs" if file["size"] >= LARGE else "regular"
    return {"path": file["path"], "uploadMode": mode, "shouldIgnore": False}
