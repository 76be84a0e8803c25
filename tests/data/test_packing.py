import json

import pytest

from cone_jax.data import packing
from cone_jax.data.sources import create
from cone_jax.errors import UserError

FILES = [f"{name}/{i}.png" for name in "abc" for i in range(10)]


def pack(root, out, **options) -> list[str]:
    lines: list[str] = []
    packing.pack_folder(str(root), str(out), report=lines.append, **options)
    return lines


def test_the_metadata_says_what_is_there(make_folder, tmp_path):
    lines = pack(make_folder(FILES), tmp_path / "out", holdout=0.2, shard_size=10)
    metadata = json.loads((tmp_path / "out/metadata.json").read_text())
    assert metadata["class_names"] == ["a", "b", "c"]
    assert {split: part["images"] for split, part in metadata["splits"].items()} == {
        "train": 24,
        "test": 6,
    }
    assert metadata["splits"]["test"]["images_per_class"] == {"a": 2, "b": 2, "c": 2}
    assert metadata["splits"]["train"]["shards"] == {
        "train-00000-of-00003.array_record": 10,
        "train-00001-of-00003.array_record": 10,
        "train-00002-of-00003.array_record": 4,
    }
    assert "packed 30 images into 4 files" in lines[-1]
    files = {file.name for file in (tmp_path / "out").iterdir()}
    shards = {name for part in metadata["splits"].values() for name in part["shards"]}
    assert files == shards | {"metadata.json"}


def test_an_interrupted_pack_goes_on_where_it_stopped(make_folder, tmp_path, monkeypatch):
    root, out = make_folder(FILES), tmp_path / "out"
    read, calls = packing.ImageFolderSource.__getitem__, []

    def stop_in_third_shard(source, index):
        calls.append(index)
        if len(calls) == 13:
            raise KeyboardInterrupt
        return read(source, index)

    monkeypatch.setattr(packing.ImageFolderSource, "__getitem__", stop_in_third_shard)
    with pytest.raises(KeyboardInterrupt):
        pack(root, out, shard_size=5, threads=1)
    with pytest.raises(UserError, match="not a completely packed folder"):
        create("packed", "train", path=str(out))
    before = {file.name: file.stat().st_mtime_ns for file in out.glob("*.array_record")}
    assert 2 <= len(before) < 7
    assert "train-00002-of-00006.array_record" not in before
    assert not list(out.glob(".*")), "an unfinished file is left behind"

    monkeypatch.undo()
    pack(root, out, shard_size=5)
    after = {file.name: file.stat().st_mtime_ns for file in out.glob("*.array_record")}
    assert before.items() <= after.items()
    folder, source = (
        create(kind, "train", path=str(path))
        for kind, path in (("image_folder", root), ("packed", out))
    )
    assert [source[i] for i in range(len(source))] == [folder[i] for i in range(len(folder))]


def test_a_complete_pack_is_left_alone_and_another_is_refused(make_folder, tmp_path):
    root, out = make_folder(FILES), tmp_path / "out"
    pack(root, out)
    assert pack(root, out) == [f"{out} is already complete"]
    with pytest.raises(UserError, match="other images or other options"):
        pack(root, out, holdout=0.3)
    (root / "a/0.png").rename(root / "a/renamed.png")
    with pytest.raises(UserError, match="other images or other options"):
        pack(root, out)


def test_a_folder_in_use_is_refused(make_folder, tmp_path):
    root = make_folder(FILES)
    (tmp_path / "thesis.txt").write_text("my only copy")
    with pytest.raises(UserError, match="not empty"):
        pack(root, tmp_path)
    with pytest.raises(UserError, match=r"thesis\.txt/out cannot be made"):
        pack(root, tmp_path / "thesis.txt/out")
    with pytest.raises(UserError, match="shard_size"):
        pack(root, tmp_path / "out", shard_size=0)
    with pytest.raises(UserError, match="not a folder"):
        pack(tmp_path / "nowhere", tmp_path / "out")


def test_a_damaged_image_is_packed_as_it_is_but_an_unreadable_one_is_an_error(
    make_folder, tmp_path
):
    root = make_folder(FILES)
    (root / "b/3.png").write_bytes(b"\x89PNG broken")
    pack(root, tmp_path / "out")
    parts = [create("packed", split, path=str(tmp_path / "out")) for split in ("train", "test")]
    assert b"\x89PNG broken" in [part[i].image for part in parts for i in range(len(part))]
    (root / "b/3.png").unlink()
    (root / "b/3.png").symlink_to("nowhere.png")
    with pytest.raises(UserError, match=r"b/3.png cannot be read"):
        pack(root, tmp_path / "other")
