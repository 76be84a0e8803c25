import os

import pytest

from cone_jax import storage


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
