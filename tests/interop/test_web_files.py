"""Weights by their address on the web: kept only with the right hash."""

import functools
import hashlib
import http.server
import io
import threading

import pytest
import torch

from cone_jax.errors import UserError
from cone_jax.interop import hub
from cone_jax.interop.hub import DownloadFailed


@pytest.fixture
def web(tmp_path, monkeypatch):
    """A plain web server for a folder, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "*")
    folder = tmp_path / "web"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            if self.path != "/broken-12345678.pth":
                return super().do_GET()
            # Nothing says how long it is, and it ends in the middle of a part.
            self.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n400\r\nPK")
            return None

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=folder)
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_files_from_the_web_are_kept_only_with_the_right_hash(web):
    folder, address = web
    content = io.BytesIO()
    torch.save({"conv1.weight": torch.zeros(3)}, content)
    digest = hashlib.sha256(content.getvalue()).hexdigest()
    for name in ("model.pth", f"model-{digest[:8]}.pth", "model-00000000.pth"):
        (folder / name).write_bytes(content.getvalue())
    path = hub.fetch(f"{address}/model.pth#sha256={digest}").path
    assert path.read_bytes() == content.getvalue()
    (folder / "model.pth").unlink()
    assert hub.fetch(f"{address}/model.pth#sha256={digest}").path == path  # from the cache
    assert hub.cached(f"{address}/model.pth#sha256={digest}") == path
    assert hub.fetch(f"{address}/model-{digest[:8]}.pth").path.exists()
    with pytest.raises(DownloadFailed, match="is not what its name says"):
        hub.fetch(f"{address}/model-00000000.pth")
    assert hub.cached(f"{address}/model-00000000.pth") is None
    pretenders = {
        b"<!DOCTYPE html><html>Sign in</html>": "is a web page, not weights: its SHA-256",
        b"version https://git-lfs.github.com/spec/v1\n": "is a Git LFS pointer, not weights",
    }
    for start, message in pretenders.items():
        (folder / "page-00000000.pth").write_bytes(start)
        with pytest.raises(DownloadFailed, match=message):
            hub.fetch(f"{address}/page-00000000.pth")
    with pytest.raises(DownloadFailed, match="the server says 404"):
        hub.fetch(f"{address}/absent-12345678.pth")
    with pytest.raises(UserError, match="has no hash; add #sha256="):
        hub.fetch(f"{address}/model.pth")


def test_what_follows_a_question_mark_is_for_the_server_alone(web):
    folder, address = web
    (folder / "model.pth").write_bytes(b"weights")
    digest = hashlib.sha256(b"weights").hexdigest()
    reference = f"{address}/model.pth?download=1#sha256={digest}"
    assert hub.fetch(reference).path.name == "model.pth"
    assert hub.cached(reference) == hub.fetch(reference).path
    (folder / f"model-{digest[:8]}.pth").write_bytes(b"weights")
    named = f"model-{digest[:8]}.pth"
    assert hub.fetch(f"{address}/{named}?download=1").path.name == named


def test_a_download_of_unknown_length_that_breaks_off_is_told(web):
    _, address = web
    with pytest.raises(DownloadFailed, match=r"broken-12345678\.pth cannot be downloaded"):
        hub.fetch(f"{address}/broken-12345678.pth")
    assert hub.cached(f"{address}/broken-12345678.pth") is None


@pytest.mark.parametrize(
    "address", ["https://exa mple", "https://127.0.0.1:port", "https://[::1", "https://127.0.0.1/ä"]
)
def test_what_is_no_address_is_told(address):
    with pytest.raises(UserError, match=r"/m-12345678\.pth is not an address: "):
        hub.fetch(f"{address}/m-12345678.pth")


def test_the_page_of_a_repository_is_not_its_weights():
    with pytest.raises(UserError, match=r"has no hash; write hf://timm/resnet18\.a1_in1k, or add"):
        hub.fetch("https://huggingface.co/timm/resnet18.a1_in1k/tree/main")
