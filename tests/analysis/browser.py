"""A headless Chromium for tests, driven over a pipe; nothing but the browser is needed.

Debian and Ubuntu have it as the package ``chromium``. On a CI machine (CI=true) it must be there;
elsewhere tests that need it are skipped.
"""

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
# The browser reads commands from descriptor 3 and writes answers to descriptor 4. A process in
# between puts our pipes there; this one would have to fork for it, which JAX's threads forbid.
REDIRECT = """
import os, sys
ours = [os.dup(int(number)) for number in sys.argv[1:3]]
for descriptor, wanted in zip(ours, (3, 4)):
    os.dup2(descriptor, wanted)
    os.set_inheritable(wanted, True)
os.execv(sys.argv[3], sys.argv[3:])
"""
PATIENCE = 60  # seconds


def find() -> str:
    """The browser's program, or the end of the test."""
    for name in NAMES:
        path = shutil.which(name)
        if path:
            return path
    if os.environ.get("CI") == "true":
        pytest.fail("no Chromium on a CI machine; apt-get install chromium")
    pytest.skip("no Chromium; apt-get install chromium")


class Browser:
    """One tab. Remembers everything it complains about and everything it loads."""

    def __init__(self, write: int, read: int, offline: bool = True) -> None:
        self._write, self._read = write, read
        self._buffer = b""
        self._last_id = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self._call(
            "Network.emulateNetworkConditions",
            offline=offline,
            latency=0,
            downloadThroughput=-1,
            uploadThroughput=-1,
        )

    def look(self, width: int, scheme: str) -> None:
        """Becomes a screen of that width that prefers ``light`` or ``dark``."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=844,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._call("Emulation.setEmulatedMedia", features=[feature])

    def open(self, path: Path | str) -> None:
        """Returns when the page, of a file or a URL, and everything in it has been loaded."""
        url = path if isinstance(path, str) else path.absolute().as_uri()
        self._call("Page.navigate", url=url)
        while self._receive().get("method") != "Page.loadEventFired":
            pass

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"].get("value")

    def close(self) -> None:
        self._session = None
        self._call("Browser.close")

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._last_id:
                assert "error" not in answer, answer
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], PATIENCE)
            assert ready, f"the browser has said nothing for {PATIENCE} seconds"
            chunk = os.read(self._read, 1 << 16)
            assert chunk, "the browser has ended"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(line)
        details = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown" | "Log.entryAdded" | "Runtime.consoleAPICalled":
                self.complaints.append(json.dumps(details))
            case "Network.requestWillBeSent":
                self.requests.append(details["request"]["url"])
        return message


@contextlib.contextmanager
def started(offline: bool = True) -> Iterator[Browser]:
    """A browser with a fresh profile, which ends with the block."""
    program = find()
    to_browser, from_browser = os.pipe(), os.pipe()
    theirs = (to_browser[0], from_browser[1])
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = (program, *FLAGS, f"--user-data-dir={profile}")
        process = subprocess.Popen(
            [sys.executable, "-c", REDIRECT, *map(str, theirs), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=theirs,
        )
        for end in theirs:
            os.close(end)
        try:
            browser = Browser(to_browser[1], from_browser[0], offline)
            yield browser
            browser.close()
        finally:
            # Without its pipe the browser ends by itself.
            for end in (to_browser[1], from_browser[0]):
                os.close(end)
            process.wait(PATIENCE)
