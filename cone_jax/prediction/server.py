"""A small web page for a trained network: drop a picture, see its classes and its neighbours.

It answers on the loopback interface unless told otherwise, to pages of its own address only: a page
from elsewhere that the same browser shows can neither use it nor read its answers. Nothing that is
sent is kept.
"""

import base64
import html
import io
import json
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from PIL import Image

from cone_jax.console import Report
from cone_jax.data import decode
from cone_jax.data.sources import Source
from cone_jax.errors import UserError
from cone_jax.evaluation import inference
from cone_jax.models import EncoderOutput
from cone_jax.prediction.predictor import Predictor
from cone_jax.training.run_directory import RunDirectory

LARGEST = 64 * 2**20  # bytes of a picture
SHOWN = 6  # nearest training pictures
_THUMBNAIL = 160
_PAGE = Path(__file__).with_name("server.html")


class Neighbour(NamedTuple):
    """A training picture beside the one in question."""

    name: str  # where it is
    label: str
    similarity: float
    image: str  # as a data URI


class NearestPictures:
    """The training pictures of a run, by the embeddings of its network."""

    def __init__(self, directory: RunDirectory, step: int | str, report: Report) -> None:
        run = directory.run.on_local_devices()
        number = directory.resolve(step)
        self._run, self._variables = run, directory.variables(run, number)
        self._source: Source = run.dataset.train
        rows = self._look(run.eval_stream(self._source, report, readable_only=True))
        self._embedding = rows["embedding"]
        self._records, self._labels = rows["id"], rows["label"]

    def _look(self, batches: Any) -> inference.Rows:
        return inference.infer(self._run.learner, self._variables, batches, _embedding)

    def __call__(self, pixels: np.ndarray) -> list[Neighbour]:
        """The nearest ones to a picture as the network sees it, uint8 [H, W, 3]; best first."""
        batches = inference.batches_of(pixels[None], self._run.eval_batch_size)
        query = self._look(batches)["embedding"][0]
        similarity = self._embedding @ query
        names = self._source.class_names
        return [
            Neighbour(
                name=self._source.describe(int(self._records[row])),
                label=names[self._labels[row]],
                similarity=float(similarity[row]),
                image=_thumbnail(self._source, int(self._records[row])),
            )
            for row in np.argsort(-similarity, kind="stable")[:SHOWN]
        ]


def _embedding(out: EncoderOutput, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    length = jax.numpy.linalg.norm(out.embedding, axis=-1, keepdims=True)
    embedding = out.embedding / jax.numpy.maximum(length, 1e-12)
    return {"embedding": embedding, "id": batch["id"], "label": batch["label"]}


def _thumbnail(source: Source, record: int) -> str:
    try:
        opened = decode.open_image(source[record].image)
    except decode.DamagedImage:
        return ""
    pixels = opened if isinstance(opened, np.ndarray) else np.asarray(opened.full())
    picture = Image.fromarray(pixels)
    picture.thumbnail((_THUMBNAIL, _THUMBNAIL))
    file = io.BytesIO()
    picture.save(file, "png")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def answer(
    predictor: Predictor, nearest: Callable[[np.ndarray], list[Neighbour]] | None, data: bytes
) -> dict[str, Any]:
    """What the page shows for a picture: `error`, or `classes` and `neighbours`."""
    pixels = predictor.pixels(data)
    if isinstance(pixels, str):
        return {"error": pixels}
    ((classes, probabilities),) = predictor.classify([pixels])
    return {
        "classes": [list(pair) for pair in zip(classes, probabilities, strict=True)],
        "neighbours": [each._asdict() for each in nearest(pixels)] if nearest else [],
    }


def listen(
    address: str,
    predictor: Predictor,
    nearest: Callable[[np.ndarray], list[Neighbour]] | None = None,
    title: str = "",
) -> ThreadingHTTPServer:
    """A server that is bound to ``host:port`` and not yet serving; port 0 takes a free one."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UserError(f"--address ({address!r}) must be host:port, such as 127.0.0.1:8000")
    busy = threading.Lock()  # one picture at a time: the devices are shared

    class Handler(_Handler):
        def respond(self, data: bytes) -> dict[str, Any]:
            with busy:
                return answer(predictor, nearest, data)

        def page(self) -> bytes:
            text = _PAGE.read_text(encoding="utf-8")
            return text.replace("{{title}}", html.escape(title)).encode()

    try:
        return ThreadingHTTPServer((host, int(port)), Handler)
    except OSError as error:
        raise UserError(
            f"--address ({address}) cannot be used: {error.strerror}; choose another port"
        ) from error


class _Handler(BaseHTTPRequestHandler):
    """Answers two requests: for the page, and for the classes of a picture."""

    def respond(self, data: bytes) -> dict[str, Any]:
        raise NotImplementedError

    def page(self) -> bytes:
        raise NotImplementedError

    def do_GET(self) -> None:
        if self._refused():
            return
        if self.path == "/":
            self._send(HTTPStatus.OK, self.page(), "text/html; charset=utf-8")
        else:
            self._send(HTTPStatus.NOT_FOUND, b"there is only /\n", "text/plain")

    def do_POST(self) -> None:
        if self._refused():
            return
        length = self.headers.get("Content-Length", "")
        if self.path != "/predict" or not length.isdecimal():
            self._send(HTTPStatus.BAD_REQUEST, b"POST a picture to /predict\n", "text/plain")
        elif int(length) > LARGEST:
            text = f"at most {LARGEST} bytes\n".encode()
            self._send(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text, "text/plain")
        else:
            found = json.dumps(self.respond(self.rfile.read(int(length))))
            self._send(HTTPStatus.OK, found.encode(), "application/json")

    def _refused(self) -> bool:
        """Whether the request comes from a page of another address, and was refused."""
        host, port = cast(tuple[str, int], self.server.server_address)[:2]
        own = {f"{name}:{port}" for name in (str(host), "localhost", "127.0.0.1", "[::1]")}
        asked, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        loopback = str(host).startswith("127.") or host in ("::1", "localhost")
        strange = origin is not None and origin.partition("://")[2] != asked
        if strange or (loopback and asked not in own):
            self._send(HTTPStatus.FORBIDDEN, b"not from here\n", "text/plain")
            return True
        return False

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: what people look at is private."""
