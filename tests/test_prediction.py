"""From picture files to classes: the run's own preprocessing, and results that can be read."""

import csv
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from cone_jax import interop, models, prediction, workdir
from cone_jax.errors import UserError
from cone_jax.settings import Model
from cone_jax.training import run_directory
from cone_jax.workdir.checkpoints import Checkpoints
from tests.models import random_variables

METADATA = interop.ExportMetadata(
    class_names=("ant", "bee", "cat"),
    image_size=4,
    mean=(0.5, 0.25, 0.0),
    std=(0.25, 0.5, 1.0),
    transforms=("resize(8)", "centre_crop(4)"),
)


def save(path, colour, size=(8, 8)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


def mean_colour_logits(images):
    """A network whose logits are the mean of each normalised channel."""
    return np.asarray(images).mean(axis=(1, 2)) * 2.0


def test_pixels_are_normalised_and_classes_sorted_by_probability(tmp_path):
    files = [save(tmp_path / "a.png", (255, 0, 51)), save(tmp_path / "b.png", (0, 255, 102))]
    predictor = prediction.Predictor(mean_colour_logits, METADATA, batch_size=3)
    first, second = predictor(files)
    # (1 - .5) / .25, (0 - .25) / .5, .2 and (0 - .5) / .25, (1 - .25) / .5, .4; twice that
    for result, logits in ((first, [4, -1, 0.4]), (second, [-4, 3, 0.8])):
        expected = np.exp(logits) / np.exp(logits).sum()
        order = np.argsort(expected)[::-1]
        assert result.classes == tuple(METADATA.class_names[i] for i in order)
        np.testing.assert_allclose(result.probabilities, expected[order], rtol=1e-4)
    assert [first.path, second.path] == files


def test_any_number_of_files_in_any_size_damaged_ones_among_them(tmp_path):
    colours = [(30 * i, 255 - 30 * i, 0) for i in range(7)]
    files = [save(tmp_path / f"{i}.png", c, (9 + i, 17 - i)) for i, c in enumerate(colours)]
    files[2].write_bytes(b"no picture")
    seen = []

    def logits(images):
        seen.append(images.shape)
        return mean_colour_logits(images)

    results = list(prediction.Predictor(logits, METADATA, batch_size=3)([*files, tmp_path / "x"]))
    assert set(seen) == {(3, 4, 4, 3)}
    assert [result.path for result in results] == [*files, tmp_path / "x"]
    assert [bool(result.error) for result in results] == [i in (2, 7) for i in range(8)]
    assert results[2].classes == ()
    red = [dict(zip(r.classes, r.probabilities, strict=True)).get("ant", -1) for r in results]
    known = [red[i] for i in (0, 1, 3, 4, 5, 6)]
    assert known == sorted(known)


def test_files_and_folders_are_found_in_order(tmp_path):
    wanted = [save(tmp_path / name, 0) for name in ("b/2.JPG", "b/c/1.png", "a.bmp")]
    (tmp_path / "b" / "notes.txt").write_text("")
    save(tmp_path / "b" / ".thumbnails" / "1.png", 0)
    assert prediction.find_images([tmp_path / "b", wanted[2]]) == wanted
    (tmp_path / "empty").mkdir()
    for path, message in (("nowhere", "does not exist"), ("empty", "holds no .jpg")):
        with pytest.raises(UserError, match=rf"--images \(.*{path}\) {message}"):
            prediction.find_images([tmp_path / path])


def test_csv_and_jsonl_hold_the_same(tmp_path):
    files = [save(tmp_path / "a, b.png", (255, 0, 0)), tmp_path / "missing.png"]
    results = list(prediction.Predictor(mean_colour_logits, METADATA, top=2)(files))
    prediction.write_csv(tmp_path / "out.csv", results)
    prediction.write_jsonl(tmp_path / "out.jsonl", results)
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert (
        [row["path"] for row in rows] == [line["path"] for line in lines] == list(map(str, files))
    )
    assert (rows[0]["class_1"], rows[0]["class_2"]) == tuple(lines[0]["classes"])
    assert float(rows[0]["probability_1"]) == lines[0]["probabilities"][0]
    assert rows[1]["class_1"] == ""
    assert rows[1]["error"] == lines[1]["error"] == "No such file or directory"


def test_a_run_and_its_export_predict_the_same(tiny_config, tmp_path):
    encoder = models.from_settings(Model.read(tiny_config.model), 10)
    variables = random_variables.draw(encoder, 8)
    workdir.claim(tmp_path / "run", tiny_config)
    with Checkpoints(tmp_path / "run") as checkpoints:
        checkpoints.save(5, jax.tree.map(jnp.asarray, variables), {}, {})
    names = tuple(f"digit {i}" for i in range(10))
    description = run_directory.describe(tiny_config, names, step=5)
    assert description.image_size == 8
    exported = interop.export("orbax", variables, encoder, description, tmp_path / "exports")
    rng = np.random.default_rng(0)
    for index in range(2):
        pixels = rng.integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{index}.png")
    files = prediction.find_images([tmp_path / "0.png", tmp_path / "1.png"])
    from_run = list(prediction.open_model(tmp_path / "run", batch_size=2)(files))
    from_export = list(prediction.open_model(exported, batch_size=2)(files))
    for one, other in zip(from_run, from_export, strict=True):
        assert len(one.classes) == 5
        assert tuple(f"digit {name}" for name in one.classes) == other.classes
        np.testing.assert_allclose(one.probabilities, other.probabilities, atol=1e-5)


def test_a_directory_that_is_neither_run_nor_export_is_named(tmp_path):
    with pytest.raises(UserError, match="neither the directory of a run"):
        prediction.open_model(tmp_path)
