"""The local page of a trained run, over HTTP and in a real browser."""

import base64
import http.client
import io
import json
import threading
import time

import pytest
from PIL import Image
from rich.console import Console

from cone_jax import prediction, training
from cone_jax.errors import UserError
from cone_jax.prediction import server
from cone_jax.training.run_directory import RunDirectory
from tests import tiny_run
from tests.analysis import browser


@pytest.fixture(scope="module")
def run(tmp_path_factory, small_network):
    config = tiny_run.config()
    config.model.name, config.steps = "two_layers", 20
    directory = tmp_path_factory.mktemp("serve") / "my <run>"
    training.train(config, directory, Console(quiet=True))
    return directory


@pytest.fixture(scope="module")
def serving(run):
    """host:port of a running server."""
    nearest = server.NearestPictures(RunDirectory.open(run), "latest", print)
    predictor = prediction.open_model(run)
    with server.listen("127.0.0.1:0", predictor, nearest, run.name) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield "{}:{}".format(*listening.server_address[:2])
        listening.shutdown()
        thread.join()


def picture(run, record):
    """A training record as a PNG file."""
    file = io.BytesIO()
    Image.fromarray(RunDirectory.open(run).dataset.train[record].image).convert("RGB").save(
        file, "png"
    )
    return file.getvalue()


def ask(serving, method, path, body=None, **headers):
    connection = http.client.HTTPConnection(serving, timeout=60)
    connection.request(method, path, body, headers)
    reply = connection.getresponse()
    text = reply.read()
    connection.close()
    return reply.status, text


def test_classes_are_those_of_predict_and_the_picture_itself_is_nearest(run, serving, tmp_path):
    data = picture(run, 17)
    (tmp_path / "one.png").write_bytes(data)
    (expected,) = prediction.open_model(run)([tmp_path / "one.png"])
    status, text = ask(serving, "POST", "/predict", data)
    found = json.loads(text)
    assert status == 200
    assert found["classes"] == [
        list(pair) for pair in zip(expected.classes, expected.probabilities, strict=True)
    ]
    assert len(found["neighbours"]) == server.SHOWN
    assert found["neighbours"][0]["name"] == "digits/train[17]"
    assert found["neighbours"][0]["similarity"] == pytest.approx(1.0, abs=1e-5)
    cosines = [each["similarity"] for each in found["neighbours"]]
    assert cosines == sorted(cosines, reverse=True)
    assert base64.b64decode(found["neighbours"][0]["image"].partition(",")[2])[:4] == b"\x89PNG"


def test_what_is_not_a_picture_is_explained(serving):
    status, text = ask(serving, "POST", "/predict", b"hello")
    assert (status, json.loads(text)) == (200, {"error": "not a JPEG, PNG, WebP or BMP file"})
    assert ask(serving, "GET", "/../etc/passwd")[0] == 404
    assert ask(serving, "POST", "/elsewhere", b"x")[0] == 400
    length = {"Content-Length": str(server.LARGEST + 1)}
    assert ask(serving, "POST", "/predict", None, **length)[0] == 413


@pytest.mark.parametrize("header", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}])
def test_pages_from_elsewhere_are_refused(serving, header):
    assert ask(serving, "GET", "/", **header)[0] == 403
    assert ask(serving, "POST", "/predict", b"x", **header)[0] == 403


@pytest.mark.parametrize("address", ["8000", "localhost:", "localhost:http", "127.0.0.1:99999"])
def test_a_wrong_address_is_explained(address):
    with pytest.raises(UserError, match=r"--address \(.*\) must be host:port"):
        server.listen(address, None)


def test_a_dropped_picture_in_a_browser(run, serving):
    encoded = base64.b64encode(picture(run, 3)).decode()
    drop = f"""(async () => {{
        const bytes = Uint8Array.from(atob("{encoded}"), (c) => c.charCodeAt(0));
        const data = new DataTransfer();
        data.items.add(new File([bytes], "digit.png", {{ type: "image/png" }}));
        const dropped = new DragEvent("drop", {{ dataTransfer: data }});
        document.getElementById("drop").dispatchEvent(dropped);
    }})(); 0"""
    with browser.started(offline=False) as chromium:
        chromium.look(390, "light")
        chromium.open(f"http://{serving}/")
        assert chromium.evaluate("document.querySelector('h1').textContent") == "my <run>"
        chromium.evaluate(drop)
        for _ in range(600):
            if chromium.evaluate("document.body.dataset.done") == "1":
                break
            time.sleep(0.1)
        assert chromium.evaluate("document.querySelectorAll('#classes p').length") == 5
        assert chromium.evaluate("document.querySelectorAll('#near img').length") == server.SHOWN
        assert chromium.evaluate("document.querySelector('#near figure').title") == (
            "digits/train[3]"
        )
        assert chromium.evaluate("document.getElementById('error').textContent") == ""
        assert chromium.evaluate("document.documentElement.scrollWidth") <= 390
    assert chromium.complaints == []
    own = (f"http://{serving}/", "data:", "blob:")
    assert all(url.startswith(own) for url in chromium.requests)
