"""Tables, WebDataset shards and Hugging Face sets: the records of the folder, bit for bit."""

import csv
import io
import pickle
import tarfile
import warnings

import numpy as np
import pytest
from PIL import Image

from cone_jax import config as config_lib
from cone_jax.data import datasets
from cone_jax.data.decode import DamagedImage
from cone_jax.data.sources import create
from cone_jax.errors import UserError

KINDS = ("csv", "parquet", "webdataset", "hf_datasets")
SPLITS = ("train", "test")


def write_pictures(root, splits=SPLITS):
    rng = np.random.default_rng(0)
    for split in splits:
        for name, count in (("owl", 9), ("tit", 7), ("élan", 5)):
            folder = root / split / name
            folder.mkdir(parents=True)
            for index in range(count):
                pixels = rng.integers(0, 256, (*rng.integers(9, 20, 2), 3), dtype=np.uint8)
                kind = ("png", "jpg", "bmp")[index % 3]
                Image.fromarray(pixels).save(folder / f"{index}.{kind}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("formats") / "photos"
    write_pictures(root)
    return root


def rows_of(folder, splits=SPLITS):
    """(path below the split, split, label) of every picture, in no particular order."""
    files = [
        (file.relative_to(folder / split).as_posix(), split, file.parent.name)
        for split in splits
        for file in folder.glob(f"{split}/*/*")
    ]
    return [files[place] for place in np.random.default_rng(1).permutation(len(files))]


def write_csv(folder, out):
    with (out / "photos.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("split", "path", "label"))
        writer.writerows(
            (split, folder / split / path, label) for path, split, label in rows_of(folder)
        )
    return "table", out / "photos.csv"


def write_parquet(folder, out):
    import pandas

    for split in SPLITS:
        rows = [
            (str(folder / split / path), label)
            for path, own, label in rows_of(folder)
            if own == split
        ]
        pandas.DataFrame(rows, columns=["path", "label"]).to_parquet(out / f"{split}.parquet")
    return "table", out


def write_webdataset(folder, out):
    """With the format's own writer, in shards of ten."""
    import webdataset

    for split in SPLITS:
        with webdataset.ShardWriter(
            str(out / f"{split}-%04d.tar"), maxcount=10, verbose=0
        ) as shards:
            for path, own, label in rows_of(folder):
                if own == split:
                    key, _, kind = path.rpartition(".")
                    sample = {kind: (folder / split / path).read_bytes(), "cls": label.encode()}
                    shards.write({"__key__": key, **sample})
    return "webdataset", out


def write_hf_datasets(folder, out):
    """With the library itself, in two files per split."""
    import datasets as hf

    parts = {}
    for split in SPLITS:
        source = create("image_folder", split, path=str(folder))
        features = hf.Features(
            {"image": hf.Image(), "label": hf.ClassLabel(names=list(source.class_names))}
        )
        records = [source[index] for index in range(len(source))]
        columns = {
            "image": [{"bytes": record.image, "path": None} for record in records],
            "label": [record.label for record in records],
        }
        parts[split] = hf.Dataset.from_dict(columns, features=features)
    hf.disable_progress_bars()
    hf.DatasetDict(parts).save_to_disk(out / "set", num_shards={"train": 2, "test": 1})
    return "hf_datasets", out / "set"


WRITERS = {
    "csv": write_csv,
    "parquet": write_parquet,
    "webdataset": write_webdataset,
    "hf_datasets": write_hf_datasets,
}


@pytest.fixture(scope="module")
def written(folder, tmp_path_factory):
    """(source, path) of each format."""
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries that write
        for name, write in WRITERS.items():
            found[name] = write(folder, tmp_path_factory.mktemp(name))
    return found


def records(source):
    return [(source[i].image, source[i].label) for i in range(len(source))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", SPLITS)
def test_records_are_those_of_the_folder(kind, split, written, folder):
    source, path = written[kind]
    expected = create("image_folder", split, path=str(folder))
    found = create(source, split, path=str(path))
    assert found.class_names == expected.class_names
    assert records(found) == records(expected)
    assert found.labels.tolist() == expected.labels.tolist()
    again = pickle.loads(pickle.dumps(found))
    assert records(again) == records(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_the_folder_from_any_step_on(kind, written, folder):
    config = config_lib.default()
    config.batch_size = 4
    config.data.train_transforms = ("random_resized_crop(8)", "flip")
    streams = []
    for source, path in (("image_folder", folder), written[kind]):
        config.data.source, config.data.path = source, str(path)
        train = datasets.open_dataset(config.data).train
        streams.append(datasets.train_batches(config, train, num_steps=12))
    for step in (7, 0, 11):
        for name, column in streams[0][step].items():
            np.testing.assert_array_equal(column, streams[1][step][name])


@pytest.fixture
def undivided(tmp_path):
    """A folder without a part to test on, and the same pictures as a table and in a shard."""
    write_pictures(tmp_path / "both", splits=("train",))
    folder = tmp_path / "both" / "train"
    files = [path for path, _, _ in rows_of(tmp_path / "both", ("train",))]
    lines = ["path,label", *(f"{path},{path.partition('/')[0]}" for path in files)]
    (folder / "all.csv").write_text("\n".join(lines))
    shards = tmp_path / "shards"
    shards.mkdir()
    with tarfile.open(shards / "train-0.tar", "w") as archive:
        for path in files:
            archive.add(folder / path, path)
            label = path.partition("/")[0].encode()
            member = tarfile.TarInfo(f"{path.rpartition('.')[0]}.cls")
            member.size = len(label)
            archive.addfile(member, io.BytesIO(label))
    return {"image_folder": folder, "table": folder / "all.csv", "webdataset": shards}


def test_hold_outs_are_those_of_the_folder(undivided):
    for split in SPLITS:
        options = {"holdout": 0.3, "holdout_seed": 4}
        expected, *others = (
            records(create(kind, split, path=str(path), **options))
            for kind, path in undivided.items()
        )
        assert others == [expected, expected]


def test_a_class_with_one_held_out_picture_brings_a_warning_whatever_the_format(
    undivided, written, tmp_path
):
    """Only a part to test on of the user's own must have more."""
    _, saved = written["hf_datasets"]
    wrong = tmp_path / "corrections.csv"
    wrong.write_text("path,label,corrected\nowl/0.png,owl,\n")
    cases = [(kind, path, {}) for kind, path in undivided.items()]
    cases.append(("hf_datasets", saved / "train", {}))
    folder = undivided["image_folder"]
    cases.append(("image_folder", folder, {"corrections": str(wrong)}))
    cases.append(("image_folder", folder, {"test_split": "train[held_out]"}))
    for kind, path, fields in cases:
        config = config_lib.default()
        config.data.update({"source": kind, "path": str(path), "holdout": 0.1, **fields})
        said = []
        datasets.check_classes(datasets.open_dataset(config.data), config.data, said.append)
        assert any("3 of 3 classes have one test image" in line for line in said), kind


def test_a_picture_that_is_gone_or_broken_is_damaged_as_in_the_folder(written, folder, tmp_path):
    write_pictures(tmp_path / "photos")
    kind, path = write_csv(tmp_path / "photos", tmp_path)
    source = create(kind, "train", path=str(path))
    (tmp_path / "photos/train/owl/0.png").unlink()
    expected = create("image_folder", "train", path=str(folder))
    with pytest.raises(DamagedImage, match="cannot be read: No such file"):
        source[0]
    assert source.describe(1).endswith("train/owl/1.jpg")
    assert source[1].image == expected[1].image


TABLES = [
    ("file,label\na.png,x", "has no column 'path'"),
    ("path,label\n,x", "line 2: the path is empty"),
    ("path,label\na.png,x\na.png,y", "line 3: a.png stands in line 2 already"),
    ("path,label\na.png,x,z", "line 2: 3 values, but the first line names 2"),
    ("path,label\nnowhere.png,x", "1 of 1 files do not exist"),
    ("path,label", "lists no picture"),
    ("path,label,split\na.png,x,train\nb.png,y,test", "a class that train lacks"),
]


@pytest.mark.parametrize(("text", "message"), TABLES)
def test_a_wrong_table_is_explained_in_one_line(text, message, tmp_path):
    for name in ("a.png", "b.png"):
        Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / name)
    (tmp_path / "t.csv").write_text(text)
    split = "test" if "split" in text else "train"
    with pytest.raises(UserError, match=message):
        create("table", split, path=str(tmp_path / "t.csv"), holdout=0.5)


def test_wrong_shards_are_explained_in_one_line(tmp_path, folder):
    with pytest.raises(UserError, match=r"holds no train-\*.tar"):
        create("webdataset", "train", path=str(tmp_path))
    shard = tmp_path / "train-0.tar"
    with tarfile.open(shard, "w") as archive:
        archive.add(folder / "train/owl/0.png", "0.png")
    with pytest.raises(UserError, match=r"0.png has no label; add 0.cls"):
        create("webdataset", "train", path=str(tmp_path))
    shard.write_bytes(b"not a tar file" * 100)
    with pytest.raises(UserError, match="is not an uncompressed TAR file"):
        create("webdataset", "train", path=str(tmp_path))


def test_wrong_sets_are_explained_in_one_line(tmp_path, written):
    with pytest.raises(UserError, match=r"holds neither dataset_dict.json nor state.json"):
        create("hf_datasets", "train", path=str(tmp_path))
    _, path = written["hf_datasets"]
    with pytest.raises(
        UserError, match=r"data.label_key \('lable'\) is not in .*did you mean 'lab"
    ):
        create("hf_datasets", "train", path=str(path), label_key="lable")
    part = create("hf_datasets", "test", path=str(path / "train"), holdout=0.5)
    rest = create("hf_datasets", "train", path=str(path / "train"), holdout=0.5)
    assert len(part) + len(rest) == 21
