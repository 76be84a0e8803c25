import math
import os
import random
import time

import pytest

from cone_jax import buckets, storage
from cone_jax.errors import UserError
from tests import bucket_servers


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "x.txt"
    target.write_text("old")

    def interrupted() -> None:
        with storage.replacing(target) as unfinished:
            unfinished.write_text("half of the n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [file.name for file in tmp_path.iterdir()] == ["x.txt"]
    assert target.read_text() == "old"


def test_the_file_is_replaced_only_at_the_end(tmp_path):
    target = tmp_path / "x.txt"
    target.write_text("old")
    with storage.replacing(target) as unfinished:
        unfinished.write_text("new")
        assert target.read_text() == "old"
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("x.txt", "new")]


def test_the_error_of_the_block_is_the_one_that_is_seen(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ValueError, match="mine"),
        storage.replacing(tmp_path / "file/below") as unfinished,
    ):
        raise ValueError(f"mine, {unfinished}")


def test_the_content_is_on_disk_before_the_name(tmp_path, monkeypatch):
    target, calls = tmp_path / "x.txt", []
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append(os.fstat(fd).st_size))
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda *paths: calls.append("replace") or replace(*paths))
    with storage.replacing(target) as unfinished:
        unfinished.write_text("four")
    assert calls == [4, "replace"]


def test_of_two_that_create_a_file_at_once_one_does_though_their_numbers_are_the_same(
    tmp_path, monkeypatch
):
    """As those of containers are that share a disk."""
    target, link = tmp_path / "lock.json", os.link

    def overtaken(*paths):
        monkeypatch.setattr(os, "link", link)
        assert storage.create(target, b"theirs")
        link(*paths)

    monkeypatch.setattr(os, "link", overtaken)
    assert not storage.create(target, b"ours")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [
        ("lock.json", "theirs")
    ]


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_bucket_with_one_slash_is_not_a_folder_here(scheme):
    with pytest.raises(UserError, match=rf"--workdir .* names no bucket; give {scheme}://BUCKET/"):
        storage.path(f"{scheme}:/bucket/run", "--workdir")


LARGE = 12 * 2**20 + 17


@pytest.fixture
def proxy(store):
    """A way to the store on which every third connection fails."""
    kinds = ("cut", "429 Too Many Requests", "503 Service Unavailable")
    proxy = bucket_servers.FaultyProxy(
        store[1], lambda number: kinds[number // 3 % 3] if number % 3 == 1 else ""
    )
    yield proxy
    proxy.close()


@pytest.fixture
def folder(store, proxy, monkeypatch):
    monkeypatch.setattr(buckets, "_FIRST_PAUSE", 0.01)
    with bucket_servers.reached(store[0], proxy.port) as url:
        yield storage.path(f"{url}/large")


@pytest.mark.parametrize("part", [5 * 2**20, buckets._PART])
def test_a_large_file_arrives_as_it_is_in_one_request_or_several(folder, proxy, part, monkeypatch):
    monkeypatch.setattr(buckets, "_PART", part)
    content = random.Random(part).randbytes(LARGE)
    with storage.replacing(folder / "put") as unfinished:
        unfinished.write_bytes(content)
    (folder / "piped").write_bytes(content)
    assert (folder / "put").read_bytes() == content
    assert (folder / "piped").read_bytes() == content
    with storage.local(folder / "put") as copy:
        assert copy.read_bytes() == content
    storage.move_directory(folder, folder.with_name("moved"))
    assert [file.name for file in folder.with_name("moved").rglob("*")] == ["piped", "put"]
    assert (folder.with_name("moved") / "put").read_bytes() == content
    assert proxy.failed > 3


@pytest.mark.parametrize("end", [b"\r", b"\n", b"\r\n", b"--"])
def test_a_file_arrives_to_its_last_byte(folder, end):
    for content in (end, b"rows\r\nof bytes" + end):
        (folder / "file").write_bytes(content)
        assert (folder / "file").read_bytes() == content


@pytest.mark.parametrize("store", ["gcs"], indirect=True)  # which gets a connection per request
def test_of_many_failures_one_is_reported_until_there_were_none_for_a_minute(
    folder, proxy, monkeypatch
):
    said = []
    monkeypatch.setattr(buckets._Outage, "report", said.append)
    for ago in (math.inf, 61.0):
        monkeypatch.setattr(buckets._Outage, "last", time.monotonic() - ago)
        before = proxy.failed
        for _ in range(8):
            (folder / "file").write_bytes(b"content")
        assert proxy.failed > before + 2
    assert len(said) == 2
    assert all(line.startswith("gs:// does not answer (") for line in said)


def test_what_may_not_be_written_or_read_is_one_line(folder, proxy):
    (folder / "there").write_bytes(b"before")
    proxy.fault = lambda number: "403 Forbidden"
    denied = r"large/there cannot be written: permission denied"
    with pytest.raises(UserError, match=denied):
        (folder / "there").write_bytes(b"after")
    with pytest.raises(UserError, match=denied), storage.replacing(folder / "there") as unfinished:
        unfinished.write_bytes(b"after")
    for read in ((folder / "there").read_bytes, (folder / "there").read_text):
        with pytest.raises(PermissionError, match=r"permission denied .*large/there"):
            read()


def test_a_file_that_is_not_there_is_named_as_on_a_disk(folder, tmp_path):
    for place in (folder, tmp_path):
        for read in ((place / "absent").read_bytes, (place / "absent").read_text):
            with pytest.raises(FileNotFoundError) as error:
                read()
            assert error.value.strerror == "No such file or directory"
            assert str(error.value.filename) == str(place / "absent")


def test_a_copy_that_has_another_kind_of_checksum_is_compared_by_size(folder, monkeypatch):
    file = folder / "copied"
    file.write_bytes(bytes(LARGE))
    recorded = storage.fingerprint(file)
    assert recorded[0] == LARGE
    assert storage.fingerprint(file, recorded[1]) == recorded
    for changed in (b"\1" + bytes(LARGE - 1), bytes(LARGE - 1)):
        file.write_bytes(changed)
        assert storage.fingerprint(file, recorded[1]) != recorded
    monkeypatch.setattr(buckets, "_PART", 5 * 2**20)
    with storage.replacing(file) as unfinished:
        unfinished.write_bytes(bytes(LARGE))
    assert storage.fingerprint(file, recorded[1]) == recorded
    other = "a checksum that neither store would give"
    assert storage.fingerprint(file, other) == (LARGE, other)


def test_lines_are_added_to_a_large_file(folder, monkeypatch):
    monkeypatch.setattr(buckets, "_PART", 5 * 2**20)
    lines = [f"{number:1023}\n" for number in range(12 * 2**10)]
    file = storage.AppendedFile(folder / "lines", lines[0])
    for line in lines[1:-1]:
        file.write(line)
    file.sync()
    assert (folder / "lines").read_text() == "".join(lines[:-1])
    file.write(lines[-1])
    file.close()
    assert (folder / "lines").read_text() == "".join(lines)


def test_the_error_of_an_upload_is_seen_though_calling_it_off_fails_too(folder, monkeypatch):
    """The emulator knows no such request and answers 501, which would be asked for a minute."""
    monkeypatch.setattr(buckets, "_PART", 5 * 2**20)
    sent = []

    async def broken(files, method, *args, **options):
        sent.append(method)
        if len(sent) == 2:  # the first part
            raise ValueError("mine")
        return await request(files, method, *args, **options)

    kind, name = type(folder._files), "_call_s3" if folder.parts[1] == "s3" else "_request"
    request = getattr(kind, name)
    monkeypatch.setattr(kind, name, broken)
    with pytest.raises(ValueError, match="mine"):
        (folder / "broken").write_bytes(bytes(LARGE))
    monkeypatch.undo()
    assert not (folder / "broken").exists()
    assert len(sent) >= 3
