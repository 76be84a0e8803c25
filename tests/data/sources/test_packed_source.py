import json
import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cone_jax.data import decode, packing
from cone_jax.data.sources import create, file_name, packed
from cone_jax.errors import UserError


@pytest.fixture
def folder_and_pack(make_folder, tmp_path):
    files = [f"train/{name}/{i}.png" for name in "ab" for i in range(5)]
    root = make_folder([*files, "val/b/x.jpg"])
    packing.pack_folder(str(root), str(tmp_path / "pack"), shard_size=4, report=lambda line: None)
    return root, tmp_path / "pack"


def test_record_i_is_record_i_of_the_folder(folder_and_pack):
    root, pack = folder_and_pack
    for split in ("train", "test"):
        folder = create("image_folder", split, path=str(root))
        source = create("packed", split, path=str(pack))
        assert source.class_names == folder.class_names
        assert [source[i] for i in range(len(source))] == [folder[i] for i in range(len(folder))]
    assert source.describe(0) == f"{pack}/val[0] (b/x.jpg)"
    assert file_name(source, 0) == file_name(folder, 0) == "x.jpg"


def test_threads_and_other_processes_read_the_same(folder_and_pack):
    source = create("packed", "train", path=str(folder_and_pack[1]))
    expected = [source[i] for i in range(10)]
    copy = pickle.loads(pickle.dumps(source))
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(copy.__getitem__, list(range(10)) * 4)) == expected * 4


def test_a_damaged_shard_damages_its_records_only(folder_and_pack):
    _, pack = folder_and_pack
    shard = pack / "train-00001-of-00003.array_record"
    shard.write_bytes(shard.read_bytes()[:100])
    source = create("packed", "train", path=str(pack))
    assert source[3].image
    assert source[8].image
    with pytest.raises(decode.DamagedImage, match="cannot be read"):
        source[4]
    assert source.describe(4) == f"{pack}/train[4]"


def test_what_is_missing_is_named(folder_and_pack):
    root, pack = folder_and_pack
    with pytest.raises(UserError, match=r"'extra'.*it holds train, val"):
        create("packed", "extra", path=str(pack))
    with pytest.raises(UserError, match="not a completely packed folder"):
        create("packed", "train", path=str(root))
    (pack / "train-00002-of-00003.array_record").unlink()
    with pytest.raises(UserError, match=r"train-00002-of-00003.*1 of 3 shards"):
        create("packed", "train", path=str(pack))
    metadata = json.loads((pack / "metadata.json").read_text())
    (pack / "metadata.json").write_text(json.dumps({**metadata, "format": "version 9"}))
    with pytest.raises(UserError, match="version 9"):
        create("packed", "train", path=str(pack))


@given(st.integers(0, 2**32 - 1), st.binary(max_size=50), st.binary(max_size=50))
@settings(deadline=None, max_examples=50)
def test_a_record_survives_storage(label, name, image):
    # A file name is bytes, often not UTF-8.
    record = packed.PackedRecord(label, os.fsdecode(name), image)
    assert packed.from_bytes(packed.to_bytes(record)) == record
