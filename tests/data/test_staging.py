"""Data in a bucket: brought here whole, once, checked, and read as if it had always been here."""

import collections
import re
import shlex
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from ml_collections import ConfigDict

from cone_jax import buckets, storage
from cone_jax.data import packing, preparation, staging
from cone_jax.data.sources import corrections, create, registry
from cone_jax.errors import Failure, StoreAway, UserError
from cone_jax.evaluation import other_sets
from cone_jax.modes import MODES, command_line
from tests import bucket_servers, object_stores

FILES = [f"{name}/{i}.png" for name in "abc" for i in range(10)]


@pytest.fixture(scope="module")
def gs():
    with object_stores.gcs() as store:
        yield store


@pytest.fixture(scope="module")
def s3():
    with object_stores.s3() as store:
        yield store


@pytest.fixture
def packed(make_folder, tmp_path):
    """Thirty pictures in six files, four of them to train on."""
    out = tmp_path / "packed"
    packing.pack_folder(
        str(make_folder(FILES)), str(out), holdout=0.3, shard_size=6, report=lambda line: None
    )
    return out


@pytest.fixture
def url(gs, packed, tmp_path):
    url = gs.put(packed, tmp_path.name)
    gs.requests = gs.sent = 0
    return url


def records(source):
    return [
        (bytes(record.image), record.label)
        for record in map(source.__getitem__, range(len(source)))
    ]


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_pack_in_a_bucket_is_read_like_one_on_a_disk(scheme, packed, tmp_path, request):
    url = request.getfixturevalue(scheme).put(packed, tmp_path.name)
    for split in ("train", "test", "train+test"):
        here = create("packed", split, path=str(packed))
        there = create("packed", split, path=url, stage=str(tmp_path / "stage"))
        assert records(there) == records(here)
        assert there.class_names == here.class_names
        if split.isidentifier():  # as a file of corrections calls them, wherever they are
            names = [
                corrections.name_of(source, 3, root)
                for source, root in ((here, packed), (there, url))
            ]
            assert names[0] == names[1]
            assert there.describe(3) == f"{url}/{names[1]}"


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_folder_is_packed_into_a_bucket_as_onto_a_disk(
    scheme, packed, make_folder, tmp_path, request
):
    store, lines = request.getfixturevalue(scheme), []
    folder, out = str(make_folder(FILES)), f"{store.url}/{tmp_path.name}-made"
    options = {"holdout": 0.3, "shard_size": 6, "report": lines.append}
    packing.pack_folder(folder, out, **options)
    made = storage.path(out)
    assert {file.name: file.read_bytes() for file in made.rglob("*")} == {
        file.name: file.read_bytes() for file in packed.iterdir()
    }
    packing.pack_folder(folder, out, **options)
    assert lines[-1] == f"{out} is already complete"
    with pytest.raises(UserError, match="a pack of other images or other options"):
        packing.pack_folder(folder, out, **options | {"shard_size": 5})


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_tfds_set_in_a_bucket_is_read_like_one_on_a_disk(scheme, birds_dir, tmp_path, request):
    url = request.getfixturevalue(scheme).put(birds_dir, tmp_path.name)
    options = {"name": "tiny_birds", "stage": str(tmp_path / "stage")}
    for split in ("train[20%:]", "test"):
        here = create("tfds", split, name="tiny_birds", path=str(birds_dir))
        there = create("tfds", split, path=url, **options)
        assert records(there) == records(here)
    with pytest.raises(UserError, match="split 'nonsense' is not"):
        create("tfds", "nonsense", path=url, **options)


def test_arrays_in_a_bucket(gs, tmp_path):
    images = np.arange(4 * 12, dtype=np.uint8).reshape(12, 2, 2)
    folder = tmp_path / "arrays"
    folder.mkdir()
    np.savez(folder / "cells.npz", images=images, labels=np.arange(12) % 2)
    url = gs.put(folder, tmp_path.name)
    there = create("array", "train", path=f"{url}/cells.npz", stage=str(tmp_path / "stage"))
    here = create("array", "train", path=str(folder / "cells.npz"))
    assert records(there) == records(here)


def test_a_folder_without_arrays_is_named_as_it_was_given(url, tmp_path):
    with pytest.raises(UserError, match=rf"data\.path \({url}\) holds no \.npz file"):
        create("array", "train", path=url, stage=str(tmp_path / "stage"))


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_other_tfds_sets_are_looked_for_in_the_bucket_of_the_run(
    scheme, birds_dir, tmp_path, request
):
    url = request.getfixturevalue(scheme).put(birds_dir, tmp_path.name)
    data = {"source": "tfds", "path": url, "stage": str(tmp_path / "stage")}
    run = SimpleNamespace(config=ConfigDict({"data": data}))
    source = other_sets.open_tfds(run, "tiny_birds")
    assert records(source) == records(create("tfds", "test", name="tiny_birds", path=birds_dir))
    assert other_sets.has_tfds(run, "tiny_birds")
    assert not other_sets.has_tfds(run, "large_birds")
    with pytest.raises(UserError, match=rf"data\.path \({url}/large_birds\) does not exist"):
        other_sets.open_tfds(run, "large_birds")


def test_only_what_a_split_needs_is_fetched_and_only_once(gs, url, packed, tmp_path):
    stage = tmp_path / "stage"
    create("packed", "test", path=url, stage=str(stage))
    shards = sorted(packed.glob("test*"))
    assert sorted(file.name for file in (stage / "gs").rglob("*record")) == [f.name for f in shards]
    size = sum(file.stat().st_size for file in (packed / "metadata.json", *shards))
    assert (gs.requests, gs.sent) == (1 + len(shards), size)
    create("packed", "test", path=url, stage=str(stage))
    assert gs.sent == size


def test_of_a_tfds_set_the_files_of_the_split_are_fetched(gs, birds_dir, tmp_path):
    url = gs.put(birds_dir, tmp_path.name)
    create("tfds", "test", name="tiny_birds", path=url, stage=str(tmp_path / "stage"))
    [file] = (tmp_path / "stage/gs").rglob("*array_record-*")
    assert "-test." in file.name


def test_a_file_that_changed_in_the_bucket_is_fetched_again(gs, url, packed, tmp_path):
    stage = str(tmp_path / "stage")
    create("packed", "test", path=url, stage=stage)
    text = (packed / "metadata.json").read_text()
    # Of the same size, so that only the checksum tells them apart.
    changed = re.sub(r'"([abc])"', lambda name: f'"{chr(ord(name[1]) + 23)}"', text)
    assert changed != text
    gs.files.pipe_file(f"{url}/metadata.json", changed.encode())
    assert create("packed", "test", path=url, stage=stage).class_names == ("x", "y", "z")


def test_what_was_interrupted_goes_on_where_it_stopped(gs, url, packed, tmp_path, monkeypatch):
    monkeypatch.setattr(staging, "_REQUEST", 30_000)
    monkeypatch.setattr(staging, "_THREADS", 1)
    real, read = staging.Stage._read, []

    def cut_off(stage, name, start, stop):
        if len(read) == 7:
            raise Failure("the connection is gone")
        read.append(stop - start)
        return real(stage, name, start, stop)

    monkeypatch.setattr(staging.Stage, "_read", cut_off)
    stage = str(tmp_path / "stage")
    with pytest.raises(Failure, match="gone"):
        create("packed", "train", path=url, stage=stage)
    monkeypatch.setattr(staging.Stage, "_read", real)
    before, gs.sent = gs.sent, 0
    there = create("packed", "train", path=url, stage=stage)
    assert records(there) == records(create("packed", "train", path=str(packed)))
    shards = (packed / "metadata.json", *packed.glob("train*"))
    assert before + gs.sent == sum(file.stat().st_size for file in shards)


def test_a_file_that_arrives_damaged_is_not_kept(url, tmp_path, monkeypatch):
    real = staging.Stage._read

    def damaged(stage, name, start, stop):
        content = bytearray(real(stage, name, start, stop))
        content[-1] ^= 1
        return bytes(content)

    monkeypatch.setattr(staging.Stage, "_read", damaged)
    with pytest.raises(Failure, match=r"metadata\.json arrived with another checksum"):
        create("packed", "train", path=url, stage=str(tmp_path / "stage"))
    assert not [
        file for file in (tmp_path / "stage").rglob("*") if file.is_file() and file.name != ".lock"
    ]


def test_what_may_be_listed_and_not_read_is_one_line(url, tmp_path, monkeypatch):
    def forbidden(*args, **options):
        raise OSError("Forbidden: https://storage\nyou do not have storage.objects.get access")

    monkeypatch.setattr(staging.Stage(url, "")._files, "cat_file", forbidden)
    with pytest.raises(UserError, match=r"metadata\.json cannot be read: permission .*get access"):
        create("packed", "train", path=url, stage=str(tmp_path / "stage"))


def test_google_has_another_checksum_of_files_uploaded_in_parts(gs, url, packed):
    """Those have no MD5."""
    [about] = gs.files.find(f"{url}/metadata.json", detail=True).values()
    entry = staging._entry({**about, "md5Hash": None})
    digest = staging.Stage(url, "")._digest("metadata.json", entry)
    digest.update((packed / "metadata.json").read_bytes())
    assert entry.kind == "crc32c"
    assert digest.text() == entry.checksum


@pytest.mark.parametrize("request_size", [2**20 + 1, 2**23])
def test_of_s3_files_in_parts_are_checked_too_but_not_what_was_made_with_a_hidden_key(
    s3, request_size, tmp_path, monkeypatch
):
    monkeypatch.setattr(staging, "_REQUEST", request_size)
    content = np.random.default_rng(0).bytes(11 * 2**20)
    place, key = f"bucket/{tmp_path.name}", {"ServerSideEncryption": "aws:kms"}
    s3.files.pipe_file(f"{place}/parts.npz", content, chunksize=5 * 2**20)
    s3.files.pipe_file(f"{place}/whole.npz", content)
    s3.files.pipe_file(f"{place}/empty.npz", b"")
    s3.files.pipe_file(f"{place}/hidden.npz", content, **key)
    stage = staging.Stage(f"s3://{place}", str(tmp_path / "stage"))
    names = stage.list()
    assert names["parts.npz"].checksum.endswith("-3")
    stage.bring(names)
    for name in ("parts.npz", "whole.npz"):
        assert (stage.folder / name).read_bytes() == content
    read = staging.Stage._read
    monkeypatch.setattr(staging.Stage, "_read", lambda *args: read(*args)[:-1] + b"?")
    for name in ("parts.npz", "whole.npz", "hidden.npz"):
        (stage.folder / name).unlink()
    for name in ("parts.npz", "whole.npz"):
        with pytest.raises(Failure, match=f"{name} arrived with another checksum"):
            stage.bring([name])
    stage.bring(["hidden.npz"])


def test_room_is_looked_for_before(gs, url, tmp_path, monkeypatch):
    usage = collections.namedtuple("usage", "total used free")(0, 0, 1000)
    monkeypatch.setattr(staging.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UserError, match=r"has 0.001 MB free, and gs://.* needs .* MB; give a"):
        create("packed", "train", path=url, stage=str(tmp_path / "stage"))
    assert gs.sent < 1000


def test_processes_of_one_machine_share_a_copy(gs, url, packed, tmp_path):
    def open_both():
        create("packed", "train", path=url, stage=str(tmp_path / "stage"))

    threads = [threading.Thread(target=open_both) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shards = (packed / "metadata.json", *packed.glob("train*"))
    assert gs.sent == sum(file.stat().st_size for file in shards)


@pytest.mark.parametrize("source", ["image_folder", "packed"])
def test_single_images_are_refused_with_the_command_that_packs_them(
    gs, source, make_folder, tmp_path, monkeypatch
):
    url = gs.put(make_folder(["a/1.png", "b/2.png"]), tmp_path.name)
    with pytest.raises(UserError, match="folder of single images in a bucket") as caught:
        create(source, "train", path=url, stage=str(tmp_path / "stage"))
    copy, pack = re.search(r"pack it: (.*?); then", str(caught.value))[1].split(" && ")
    assert copy == f"gcloud storage cp --recursive {url} ."
    flags = shlex.split(pack)[3:]
    parsed = command_line.parse(flags, {name: mode.help for name, mode in MODES.items()})
    assert parsed.mode == "pack"
    assert parsed.config.data.path == tmp_path.name
    assert str(parsed.output) == f"{url}-packed"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "packed", "path": "gs://bucket/nothing"}, "does not exist in its bucket"),
        ({"kind": "packed", "path": "gs://no-such-bucket/x"}, "does not exist in its bucket"),
        ({"kind": "tfds", "path": "gs://bucket/x", "name": "cifar10"}, "x/cifar10. does not exist"),
        ({"kind": "fgvc_aircraft", "path": "gs://bucket/x"}, "must be a local folder"),
        ({"kind": "webdataset", "path": "gs://bucket/x"}, "must be a local folder"),
    ],
)
def test_wrong_places_are_one_line(gs, options, words, tmp_path):
    kind = options.pop("kind")
    with pytest.raises(UserError, match=words) as caught:
        create(kind, "train", stage=str(tmp_path), **options)
    assert "\n" not in str(caught.value)


def test_a_store_that_is_away_is_nobodys_mistake(gs, packed, tmp_path, monkeypatch):
    url = gs.put(packed, tmp_path.name)
    monkeypatch.setattr(buckets._Outage, "patience", 0.0)
    proxy = bucket_servers.FaultyProxy(0, lambda number: "503 Service Unavailable")
    try:
        with (
            bucket_servers.reached("gcs", proxy.port),
            pytest.raises(StoreAway, match="has not answered"),
        ):
            create("packed", "train", path=url, stage=str(tmp_path / "stage"))
    finally:
        proxy.close()


def test_a_name_that_leads_out_of_the_folder_is_refused(gs, url, tmp_path, monkeypatch):
    stage = staging.Stage(url, str(tmp_path / "stage"))
    found = {f"{stage._root}/../../x": {"size": 1, "md5Hash": "x"}}
    monkeypatch.setattr(stage._files, "find", lambda *_, **__: found)
    with pytest.raises(UserError, match="not a name on a disk"):
        stage.list()


def test_progress_is_told_in_lines_where_there_is_no_terminal(capsys):
    with staging._progress("gs://bucket/x to /y", 50_000_000) as advance:
        for _ in range(100):
            advance(500_000)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "staging gs://bucket/x to /y: 50 MB"
    assert lines[1:] == [f"staged {5 * tenth} MB of 50 MB" for tenth in range(1, 11)]


@pytest.mark.parametrize(
    "use",
    [
        lambda url, out: packing.pack_folder(url, out),
        lambda url, out: preparation.prepare("tiny_birds", url),
    ],
    ids=["pack", "prepare"],
)
def test_what_makes_a_data_set_needs_a_local_folder(use, tmp_path):
    with pytest.raises(UserError, match=r"data\.path \(gs://bucket/x\) is in a bucket"):
        use("gs://bucket/x", str(tmp_path))


def test_every_source_of_this_package_is_staged_or_refused():
    """Or a URL would reach code that takes it for a folder."""
    own = set(registry._OWN) - {"digits"}  # which has no path
    assert own == staging._NEEDED.keys() | staging._REFUSED.keys()
