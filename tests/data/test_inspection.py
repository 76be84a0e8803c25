"""A folder with one of every kind of trouble: each is found, and nothing else is."""

import csv
import re

import numpy as np
import pytest
from PIL import Image

from cone_jax.__main__ import main
from cone_jax.analysis import check_files
from cone_jax.config import load_recipe
from cone_jax.data import datasets, decode, inspection
from cone_jax.data.pipeline import NOT_DAMAGED, DamageTally
from cone_jax.errors import UserError


def photograph(seed: int, size=(80, 60)) -> Image.Image:
    """Large soft shapes with grain, as photographs have; no two seeds alike."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize(size, Image.Resampling.BICUBIC), np.int16)
    grain = rng.integers(-6, 7, smooth.shape)
    return Image.fromarray(np.clip(smooth + grain, 0, 255).astype(np.uint8))


@pytest.fixture
def folder(tmp_path):
    seed = 0
    for split, count in (("train", 12), ("test", 3)):
        for name in ("owl", "tit"):
            place = tmp_path / "photos" / split / name
            place.mkdir(parents=True)
            for index in range(count):
                photograph(seed := seed + 1).save(place / f"{index:02}.jpg", quality=92)
    return tmp_path / "photos"


@pytest.fixture
def config(folder):
    config = load_recipe("configs/folder.py", "small").unlock()
    config.data.path = str(folder)
    return config


def problems(config) -> dict[str, str]:
    config.data.cache_bytes = 0
    dataset = datasets.open_dataset(config.data)
    found = inspection.inspect(dataset, config.data.image_size, root=config.data.path)
    return {
        finding.problem: f"{finding.path.removeprefix(config.data.path + '/')}: {finding.detail}"
        for finding in found.findings
    }


def test_a_clean_folder_has_no_finding(config):
    assert problems(config) == {}


def test_every_trouble_is_found_with_its_file_and_cause(config, folder):
    train, test = folder / "train", folder / "test"
    whole = (train / "owl" / "00.jpg").read_bytes()
    (train / "owl" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (train / "owl" / "twin.jpg").write_bytes(whole)
    (test / "owl" / "leak.jpg").write_bytes((train / "owl" / "01.jpg").read_bytes())
    again = Image.open(train / "tit" / "02.jpg").resize((160, 120))
    again.save(train / "owl" / "again.jpg", quality=60)
    turned = Image.Exif()
    turned[0x0112] = 6
    photograph(100).save(train / "tit" / "turned.jpg", exif=turned)
    photograph(101).save(train / "tit" / "really.jpg", "PNG")
    photograph(102, (30, 20)).save(train / "tit" / "tiny.png")
    photograph(103, (600, 60)).save(train / "tit" / "wide.png")
    (train / "tit" / "phone.HEIC").write_bytes(b"whatever")
    assert problems(config) == {
        "unreadable": "train/owl/cut.jpg: " + decode.reason_unreadable(
            datasets.open_split(config.data, "train"), 13
        ),
        "duplicate": f"train/owl/twin.jpg: of {train}/owl/00.jpg",
        "duplicate in train and test": f"test/owl/leak.jpg: of {train}/owl/01.jpg (train)",
        "near duplicate, other class": (
            f"train/tit/02.jpg: of {train}/owl/again.jpg; tit, there owl"
        ),
        "turned": "train/tit/turned.jpg: EXIF orientation 6; read upright",
        "extension": "train/tit/really.jpg: .jpg, but a PNG file",
        "small": "train/tit/tiny.png: 30 x 20 pixels; training enlarges it to 96",
        "elongated": "train/tit/wide.png: 600 x 60 pixels; crops see a part",
        "not read": "train/tit/phone.HEIC: .HEIC is not read; convert it to JPEG or PNG",
    }  # fmt: skip


def test_the_mode_writes_a_table_and_a_page(folder, tmp_path, capsys):
    (folder / "train" / "owl" / "empty.jpg").write_bytes(b"")
    command = ["check", "--config=folder:small", f"--config.data.path={folder}"]
    assert main([*command, f"--workdir={tmp_path / 'run'}"]) == 0
    assert "unreadable" in capsys.readouterr().out
    with (tmp_path / "run" / "check.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows == [
        {
            "path": str(folder / "train/owl/empty.jpg"),
            "problem": "unreadable",
            "detail": "the file is empty",
        }
    ]
    assert "empty.jpg" in (tmp_path / "run" / "check.html").read_text()


def test_a_folder_one_level_too_high_names_the_right_one(config, folder):
    config.data.path = str(folder.parent)
    dataset = datasets.open_dataset(config.data)
    with pytest.raises(UserError, match=rf"one class, 'photos'.*--config.data.path={folder}"):
        datasets.check_classes(dataset, config.data, print)
    finding = inspection.wrong_level(folder.parent, dataset.class_names)[0]
    assert finding.problem == "wrong level"
    assert finding.detail.endswith(f"--config.data.path={folder}")
    spaced = folder.rename(folder.with_name("my photos"))
    (finding,) = inspection.wrong_level(spaced.parent, ("my photos",))
    assert finding.detail.endswith(f"--config.data.path='{spaced}'")


@pytest.mark.parametrize("layout", ["parts", "classes"])
def test_a_finding_about_a_class_names_its_folder(folder, layout):
    root = folder if layout == "parts" else folder / "train"
    for file in sorted((folder / "train" / "owl").iterdir())[1:]:
        file.unlink()
    for file in sorted((folder / "test" / "tit").iterdir())[1:]:
        file.unlink()
    counts = {"train": np.array([1, 12]), "test": np.array([3, 1 if layout == "parts" else 3])}
    found = inspection._class_problems(("owl", "tit"), counts, str(root))
    train, test = folder / "train", folder / "test"
    expected = [(str(train / "owl"), "few pictures"), (str(test / "tit"), "few pictures")]
    expected = expected if layout == "parts" else expected[:1]
    assert [each[:2] for each in found] == [*expected, (str(train / "owl"), "imbalance")]


def test_a_class_with_one_picture_ends_training_with_a_line(folder, tmp_path, capsys):
    for file in sorted((folder / "train" / "tit").iterdir())[1:]:
        file.unlink()
    command = ["--config=folder", f"--config.data.path={folder}", f"--workdir={tmp_path / 'run'}"]
    assert main(command) == 2
    assert "class 'tit' has 1 image to train on" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_class_with_one_test_picture_of_the_users_own_is_refused(config, folder):
    for file in sorted((folder / "test" / "tit").iterdir())[1:]:
        file.unlink()
    with pytest.raises(UserError, match="class 'tit' has 1 image to test on"):
        datasets.check_classes(datasets.open_dataset(config.data), config.data, print)


def test_three_pictures_a_class_bring_a_warning_of_what_to_expect(config, folder, tmp_path):
    for name in ("owl", "tit"):
        for index in range(3):
            place = tmp_path / "few" / name
            place.mkdir(parents=True, exist_ok=True)
            photograph(index).save(place / f"{index}.png")
    config.data.path, said = str(tmp_path / "few"), []
    datasets.check_classes(datasets.open_dataset(config.data), config.data, said.append)
    assert any(
        "fewer than 10 images to train on" in line and "chance (50%)" in line for line in said
    )
    assert any("one test image" in line for line in said)


def test_the_quick_look_stops_in_time_and_says_how_far_it_came(config, folder):
    (folder / "train" / "owl" / "00.jpg").write_bytes(b"no picture")
    source = datasets.open_split(config.data, "train")
    bad, looked = inspection.quick_look(source)
    assert looked == 24
    assert bad == [(str(folder / "train/owl/00.jpg"), "not a JPEG, PNG, WebP or BMP file")]
    ticks = iter((0.0, 4.0))
    assert inspection.quick_look(source, clock=lambda: next(ticks)) == ([], 0)


@pytest.mark.parametrize(
    ("count", "limit", "tolerated"), [(40, 0.01, 4), (8, 0.01, 1), (1, 0.01, 0), (40, 0.0, 0)]
)
def test_a_handful_of_bad_pictures_ends_no_run_unless_none_is_allowed(count, limit, tolerated):
    class Source:
        class_names = ("a",)

        def __len__(self):
            return count

        def __getitem__(self, index):
            raise decode.DamagedImage("torn")

        def describe(self, index):
            return f"{index}.png"

    said: list[str] = []
    tally = DamageTally(Source(), limit, said.append)
    for record in range(tolerated):
        tally.add(np.array([NOT_DAMAGED, record]))
    with pytest.raises(UserError, match=rf"{tolerated}.png \(torn\)"):
        tally.add(np.array([tolerated]))
    assert said[0] == "cannot read 0.png; replaced (torn)"


def test_training_lists_unreadable_files_before_it_begins(config, folder, tmp_path):
    from cone_jax.training import loop
    from cone_jax.training.run import Run

    for split in ("train", "test"):
        (folder / split / "owl" / "00.jpg").write_bytes(b"no picture")
    said: list[str] = []
    loop._look_before_training(Run.open(config), said.append)
    for split in ("train", "test"):
        reason = "not a JPEG, PNG, WebP or BMP file"
        assert f"unreadable: {folder}/{split}/owl/00.jpg: {reason}" in said
    assert any("1 of 24 pictures cannot be read" in line for line in said)


def test_two_folders_of_the_same_classes_bring_a_warning_before_training(config, folder):
    """``anna/owl``, ``bob/owl``: who took a picture is not what is on it."""
    from cone_jax.training import loop
    from cone_jax.training.run import Run

    for split, name in (("train", "anna"), ("test", "bob")):
        (folder / split).rename(folder / name)
    said: list[str] = []
    loop._look_before_training(Run.open(config), said.append)
    (warning,) = [line for line in said if "folders of the same names" in line]
    assert warning.startswith(f"warning: data.path ({folder}): every class holds")
    assert "(owl, tit)" in warning


def test_too_many_unreadable_files_end_a_run_before_anything_is_compiled(config, folder):
    from cone_jax.training import loop
    from cone_jax.training.run import Run

    for index in range(3):  # of 24; two are a handful
        (folder / f"train/owl/{index:02}.jpg").write_bytes(b"")
    said: list[str] = []
    with pytest.raises(UserError, match=r"3 of 24 images cannot be read.*02.jpg \(the file is"):
        loop._look_before_training(Run.open(config), said.append)
    config.data.damaged_limit = 0.2
    loop._look_before_training(Run.open(config), said.append)


@pytest.mark.parametrize(
    ("file", "named"),
    [
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "a HEIC picture"),
        (b"GIF89a\1\0\1\0", "a GIF picture"),
        (b"II*\0\x08\0\0\0", "a TIFF or raw picture"),
        (b"<!DOCTYPE html><title>404", "a web page"),
    ],
)
def test_a_file_of_another_kind_is_named(config, folder, file, named):
    (folder / "train/owl/00.jpg").write_bytes(file)
    told = problems(config)["unreadable"]
    assert told.startswith(f"train/owl/00.jpg: {named}, not a JPEG")
    assert told.endswith("convert it to JPEG or PNG") == named.endswith("picture")


def test_the_gravest_comes_first_and_a_copy_is_shown_beside_its_original(config, folder, tmp_path):
    whole = (folder / "train/owl/00.jpg").read_bytes()
    for index in range(4):
        photograph(200 + index, (600, 60)).save(folder / f"train/tit/wide{index}.png")
    (folder / "train/owl/twin.jpg").write_bytes(whole)
    (folder / "test/tit/leak.jpg").write_bytes(whole)
    (folder / "train/tit/cut.jpg").write_bytes(whole[: len(whole) // 2])
    dataset = datasets.open_dataset(config.data)
    found = inspection.inspect(dataset, config.data.image_size, root=config.data.path)
    leak = "duplicate in train and test, other class"
    assert list(found.tally()) == ["unreadable", leak, "duplicate", "elongated"]
    check_files.write(found, dataset, tmp_path / "run")
    text = (tmp_path / "run/check.html").read_text()
    pairs = re.findall(r'<div class="group">(.*?)</div>\s*</div>\s*</div>', text, re.DOTALL)
    shown = [re.findall(r"<b>(.*?)</b>", pair) for pair in pairs]
    assert shown == [["leak.jpg", "00.jpg"], ["twin.jpg", "00.jpg"]]
    assert "in test" in pairs[0]
