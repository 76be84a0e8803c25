"""One writer for a workdir: a lock file with a heartbeat, on a disk or in a bucket.

The file `lock.json` is created only if absent, says who holds it, and counts up every few seconds.
Whoever finds one takes over without asking if its process is known to be dead, or if it has not
counted for `LEASE` seconds by the finder's own clock; nobody trusts the clock of another machine,
nor a process id of another machine. Modes that only read do not look at it.
"""

import contextlib
import datetime
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cone_jax import distributed, storage
from cone_jax.console import Report
from cone_jax.errors import StoreAway, TrainingFailed, UserError
from cone_jax.workdir.checkpoints import Checkpoints
from cone_jax.workdir.directory import unwritable_refused

LOCK_FILE = "lock.json"
# Seconds between two heartbeats, and seconds without any after which the holder counts as dead.
HEARTBEAT = 5.0
LEASE = 40.0
# Seconds that a run which has lost its store gets to end by itself.
GRACE = 20.0

Holder = dict[str, Any]
_tokens_of_this_process: set[str] = set()


class Lock:
    """The lock while it is held. `check` says whether it still is."""

    def __init__(self, workdir: Path, holder: Holder, timeout: float) -> None:
        self._workdir, self._holder, self._timeout = workdir, holder, timeout
        self._path = workdir / LOCK_FILE
        self._lost = ""
        self._seen = time.monotonic()  # when the lock was last known to be held
        self._checkpoints: Checkpoints | None = None
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True, name="workdir lock")

    def start(self) -> None:
        _tokens_of_this_process.add(self._holder["token"])
        self._thread.start()

    def watch(self, checkpoints: Checkpoints) -> None:
        """Takes note of the checkpoints, to be able to name one when the store is away."""
        self._checkpoints = checkpoints

    def check(self) -> None:
        """`TrainingFailed` if the run must not write any more."""
        # A process that was stopped may come here before its heartbeat wakes up.
        if not self._lost and time.monotonic() - self._seen > LEASE / 2:
            self._lost = self._taken_over()
        if self._lost:
            raise TrainingFailed(self._lost)

    def release(self) -> None:
        self._released.set()
        self._thread.join()
        _tokens_of_this_process.discard(self._holder["token"])
        with contextlib.suppress(Exception):  # a lock left behind is taken over
            if _read(self._path).get("token") == self._holder["token"]:
                self._path.unlink(missing_ok=True)

    def _taken_over(self) -> str:
        """The message that names the new holder; "" if the lock is still ours."""
        found = _read(self._path)
        if not found or found.get("token") == self._holder["token"]:
            return ""
        return f"workdir ({self._workdir}) was taken over by {_name(found)}"

    def _beat(self) -> None:
        while not self._released.wait(HEARTBEAT):
            try:
                if taken := self._taken_over():
                    self._end(taken)
                    return
                self._holder["beat"] += 1
                with storage.replacing(self._path) as unfinished:
                    unfinished.write_text(json.dumps(self._holder, indent=1) + "\n")
                self._seen = time.monotonic()
            except Exception as error:  # of whatever library is below; tried again
                if time.monotonic() - self._seen > self._timeout:
                    said = f"no answer for {self._timeout:g} s ({_first_line(error)})"
                    self._end(self.away(said))
                    return

    def away(self, said: str) -> str:
        """The message when the store stays away for longer than checkpoint.store_timeout."""
        checkpoints = self._checkpoints
        saved = "there is no checkpoint yet" if checkpoints is None else checkpoints.last_good
        return (
            f"workdir ({self._workdir}) is out of reach: {said}, as checkpoint.store_timeout says; "
            f"{saved}; start again with the same flags when the store is back"
        )

    def _end(self, reason: str) -> None:
        """Lets the loop end the run; where that waits for the store, ends the process."""
        self._lost = reason
        if not self._released.wait(GRACE):
            print(f"failed: {reason}", file=sys.stderr, flush=True)
            os._exit(1)


@contextlib.contextmanager
def held(workdir: Path, report: Report, timeout: float) -> Iterator[Lock | None]:
    """Holds the lock of `workdir`; the first of several processes does it for all of them.

    `UserError` where another run holds it. `timeout` is how many seconds the store may stay away.
    """
    if not distributed.is_primary():
        yield None
        return
    lock = Lock(workdir, _acquire(workdir, report), timeout)
    lock.start()
    try:
        yield lock
    except StoreAway as error:
        raise TrainingFailed(lock.away(str(error))) from error
    finally:
        lock.release()


def _acquire(workdir: Path, report: Report) -> Holder:
    path, me = workdir / LOCK_FILE, _this_process()
    content = (json.dumps(me, indent=1) + "\n").encode()
    while True:
        with unwritable_refused(workdir):
            workdir.mkdir(parents=True, exist_ok=True)
            if storage.create(path, content):
                return me
        found = _read(path)
        if found.get("token") == me["token"]:  # it was created, but the answer never came
            return me
        if not found:  # just released
            continue
        _wait_for_death(workdir, found)
        # Of several that find it dead, the one that creates this file follows it.
        claim = path.with_name(f"lock-after-{found.get('token', '')}.json")
        if not storage.create(claim, content):
            time.sleep(HEARTBEAT)
            if _read(path) == found:  # the follower died before it came to it
                claim.unlink(missing_ok=True)
            continue
        if _read(path) == found:
            report(f"takes over from {_name(found)}, which has ended")
            with storage.replacing(path) as unfinished:
                unfinished.write_bytes(content)
            claim.unlink(missing_ok=True)
            return me
        claim.unlink(missing_ok=True)


def _wait_for_death(workdir: Path, found: Holder) -> None:
    """Returns when the holder is dead; `UserError` as soon as it is known to live."""
    refusal = UserError(
        f"workdir ({workdir}) is in use by {_name(found)}; choose another --workdir, or stop that "
        f"run; if it is dead, start again: {LEASE:g} s after its last heartbeat it is taken over, "
        f"at once if {workdir / LOCK_FILE} is deleted"
    )
    if all(found.get(key) == value for key, value in _this_machine().items()):
        if _is_alive(found):
            raise refusal
        return
    began = time.monotonic()
    while time.monotonic() - began < LEASE:
        time.sleep(1.0)
        if _read(workdir / LOCK_FILE) != found:
            raise refusal


def _is_alive(found: Holder) -> bool:
    """Whether a process of this machine still runs, and is not another with the same number."""
    if found.get("pid") == os.getpid():
        return found.get("token") in _tokens_of_this_process
    return _start_of(found.get("pid")) == found.get("started")


def _start_of(pid: Any) -> str | None:
    """When a process began, in the kernel's ticks; None if it has ended, reaped or not."""
    try:
        # The name of the program, in brackets, may hold anything.
        fields = Path(f"/proc/{int(pid)}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError, TypeError):
        return None
    state, started = fields[0], fields[19]
    return None if state in "ZX" else started


def _this_process() -> Holder:
    now = datetime.datetime.now(datetime.UTC)
    return {
        "token": secrets.token_hex(8),
        "pid": os.getpid(),
        "started": _start_of(os.getpid()),
        **_this_machine(),
        "since": now.isoformat(sep=" ", timespec="seconds"),
        "beat": 0,
    }


def _this_machine() -> dict[str, str]:
    """An identifier that processes share if they can see each other's numbers."""
    machine = {"host": socket.gethostname(), "boot": "", "processes": ""}
    with contextlib.suppress(OSError):
        machine["boot"] = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        machine["processes"] = os.readlink("/proc/self/ns/pid")
    return machine


def _read(path: Path) -> Holder:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"token": "unreadable"}


def _name(found: Holder) -> str:
    known = (str(found.get(key, "unknown")) for key in ("pid", "host", "since"))
    return "process {} on {} since {}".format(*known)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
