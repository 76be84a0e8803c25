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
