"""What comes after training: scores, files, pictures, exports of one tiny detector."""

import csv
import dataclasses
import json
import re
import shutil
from unittest import mock

import jax
import numpy as np
import pytest
from flax import traverse_util
from PIL import Image
from rich.console import Console

from cone_jax import detection, interop, prediction, training
from cone_jax.analysis import detection_files, report
from cone_jax.data import contact_sheet
from cone_jax.data.masks import encode_mask
from cone_jax.errors import UserError
from cone_jax.evaluation import coco_metric
from cone_jax.interop import exported_detector, files, torchvision_detector
from cone_jax.interop.metadata import ExportFailed
from cone_jax.modes import evaluate, predict, train
from cone_jax.training.run_directory import RunDirectory
from tests import tiny_run
from tests.detection import shapes
from tests.detection.test_detector_training import tiny


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Trained for two steps; scores of nearly 0 count, so that there is something to write."""
    data = shapes.write(tmp_path_factory.mktemp("shapes"), 12)
    path = tmp_path_factory.mktemp("runs") / "run"
    config = tiny(data, **{"steps": 2, "evaluation.every_epochs": 0.0, "data.holdout": 0.3})
    training.train(config, path, Console(quiet=True))
    return RunDirectory.open(path)


def test_evaluation_writes_what_pycocotools_scores_alike(directory):
    """The result file, read by pycocotools with the user's own JSON, gives the scores reported."""
    evaluators = directory.run.evaluators
    scores = evaluate.evaluate_checkpoint(directory, "latest", Console(quiet=True), evaluators)
    folder = directory.path / "evaluation" / "test"
    found = json.loads((folder / "detections.json").read_text())
    assert {entry["category_id"] for entry in found} <= set(shapes.NAMES)
    truth = json.loads(
        (directory.run.dataset.test.objects(0).path.parents[1] / "instances.json").read_text()
    )
    tested = [directory.run.dataset.test.objects(i).image_id for i in range(4)]
    assert {entry["image_id"] for entry in found} <= set(tested)
    assert set(tested) != set(range(4)), "or records and ids could be mistaken for each other"
    outcome = evaluators[0].evaluate(
        directory.run, directory.variables(directory.run, directory.resolve()), print
    )
    named = list(shapes.NAMES)
    assert [(entry["image_id"], entry["category_id"]) for entry in found] == [
        (tested[each["image_id"]], named[each["category_id"] - 1]) for each in outcome.found
    ]
    for kind, name in (("bbox", "box_ap"), ("segm", "mask_ap")):
        score = coco_metric.evaluate(truth, found, kind=kind, image_ids=tested)
        assert scores[f"test/{name}"] == pytest.approx(score.summary["ap"] / 100, abs=1e-9)
    header, *rows = csv.reader((folder / "per_class.csv").read_text().splitlines())
    assert header == ["class", "objects", "box_ap", "mask_ap"]
    labelled = [x["category_id"] for x in truth["annotations"] if x["image_id"] in tested]
    assert {name: int(count) for name, count, *_ in rows} == {
        name: labelled.count(number) for number, name in shapes.NAMES.items()
    }
    assert detection_files.precision_recall(outcome).axes[0].get_ylim() == (0, 105)
    assert all(line.endswith(" drawn") for line in detection_files.pictures(outcome)[1])
    for name in ("detections.png", "precision_recall.svg", "paper.md"):
        assert (folder / name).stat().st_size > 100


def size_of(path):
    with Image.open(path) as picture:
        return picture.size


def sure():
    """A result entry of a disc with a small mask in a large box."""
    mask = np.zeros((64, 64), bool)
    mask[50:60, 26:36] = True
    return {
        "image_id": 1,
        "category_id": 8,
        "score": 0.9,
        "bbox": [20.0, 40.0, 24.0, 22.0],
        "segmentation": encode_mask(mask),
    }


def test_predictions_are_those_of_the_evaluation_and_drawn(directory, tmp_path):
    source = directory.run.dataset.test
    pictures = [source.objects(index).path for index in range(2)]
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    finder = prediction.ObjectFinder(directory.deployed(), source.category_ids)
    output = tmp_path / "found.json"
    lines = list(prediction.write_detections(finder, finder([*pictures, broken]), output))
    assert "cannot be read" in lines[2]
    entries = json.loads(output.read_text())
    assert {entry["image_id"] for entry in entries} <= {1, 2}
    outcome = directory.run.evaluators[0].evaluate(
        directory.run, directory.variables(directory.run, 2), print
    )
    first = [entry for entry in outcome.found if entry["image_id"] == 0]
    again = [entry for entry in entries if entry["image_id"] == 1]
    assert len(first) == len(again)
    for ours, theirs in zip(first, again, strict=True):
        np.testing.assert_allclose(theirs["bbox"], ours["bbox"], atol=1e-2)
    drawn = sorted((tmp_path / "found").glob("*.png"))
    assert list(map(size_of, drawn)) == list(map(size_of, pictures))
    certain = prediction.FoundObjects(pictures[0], np.zeros((64, 64, 3), np.uint8), [sure()])
    shown = finder.drawn(certain)
    assert shown[40, 20:44].any(axis=-1).all(), "the box"
    assert shown[55, 30].any(), "the mask"
    assert not shown[55, 22].any(), "neither"
    described = json.loads((tmp_path / "found.images.json").read_text())
    assert described["categories"] == [{"id": k, "name": n} for k, n in shapes.NAMES.items()]


def test_exports_have_torchvisions_names_and_find_the_same(directory, tmp_path):
    network = directory.deployed()
    arguments = (network.variables, network.encoder, network.metadata, tmp_path)
    weights = interop.export("safetensors", *arguments)
    tensors = files.read_safetensors(weights / "model.safetensors")
    assert "roi_heads.mask_predictor.mask_fcn_logits.weight" in tensors
    back = torchvision_detector.from_torchvision(tensors, network.encoder.settings)
    for ours, theirs in zip(
        jax.tree.leaves(back), jax.tree.leaves(dict(network.variables)), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    program = interop.export("stablehlo", *arguments)
    assert (program / "model_64x64.stablehlo").stat().st_size > 1000
    assert json.loads((program / "detector.json").read_text())["class_names"] == ["square", "disc"]
    with pytest.raises(UserError, match="--format"):
        interop.export("onnx", *arguments)
    finds_the_same([weights, program], network, directory, tmp_path)


def finds_the_same(exports, network, directory, tmp_path):
    """`predict` from an export writes what the run itself finds; damage is one line."""
    picture = directory.run.dataset.test.objects(0).path
    (expected,) = prediction.ObjectFinder(network)([picture])
    assert expected.entries
    for export in exports:
        arguments = mock.Mock(workdir=export, output=tmp_path / f"{export.name}.json")
        arguments.flags = {"images": str(picture), "model": "", "step": "latest"}
        predict.predict(arguments, Console(quiet=True))
        found = json.loads(arguments.output.read_text())
        assert len(found) == len(expected.entries)
        for ours, theirs in zip(found, expected.entries, strict=True):
            assert ours["category_id"] == theirs["category_id"]
            np.testing.assert_allclose(ours["bbox"], theirs["bbox"], atol=1e-2)
            np.testing.assert_allclose(ours["score"], theirs["score"], atol=1e-4)
    (exports[1] / "model_64x64.stablehlo").unlink()
    with pytest.raises(UserError, match=r"model_64x64\.stablehlo: No such file"):
        exported_detector.load(exports[1])
    (exports[0] / "detector.json").write_text("{}")
    with pytest.raises(UserError, match="is not a detector's description"):
        exported_detector.load(exports[0])


def initial(source, settings):
    """What a detector of these settings starts from, and what became of each name."""
    detector = detection.Detector(settings)
    image, size = np.zeros((1, 64, 64, 3), np.float32), np.array([[64, 64]])
    own = jax.eval_shape(detector.init, jax.random.key(0), image, size)
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), own)
    variables, account = interop.load_initial(source, detector, zeros)
    return traverse_util.flatten_dict(variables, sep="/"), account


def flat(network):
    return traverse_util.flatten_dict(jax.device_get(dict(network.variables)), sep="/")


def test_a_detector_starts_from_a_run_or_an_export_of_one(directory, tmp_path):
    """Also from one for other classes: all but its predictors."""
    network = directory.deployed()
    arguments = (network.variables, network.encoder, network.metadata, tmp_path)
    given, settings = flat(network), network.encoder.settings
    for source in (directory.path, interop.export("safetensors", *arguments)):
        found, account = initial(source, settings)
        assert account.complete
        assert not account.reinitialised
        for name, value in given.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)
        found, account = initial(source, dataclasses.replace(settings, num_classes=5))
        predictors = [x for x in given if "box_predictor" in x or "mask_head/logits" in x]
        assert sorted(account.reinitialised) == sorted(predictors)
        for name in given.keys() - set(predictors):
            np.testing.assert_array_equal(found[name], given[name], err_msg=name)


def test_a_detector_starts_from_a_cone_run_or_an_export_of_one(directory, tmp_path):
    config = tiny_run.config()
    config.steps, config.data.image_size = 1, 32
    config.data.train_transforms = ("resize(32)",)
    config.model.update(name="resnet18", stem="imagenet")
    config.model.options.width = 8
    training.train(config, tmp_path / "run", Console(quiet=True))
    network = RunDirectory.open(tmp_path / "run").deployed()
    arguments = (network.variables, network.encoder, network.metadata, tmp_path)
    given = {name: value for name, value in flat(network).items() if "/backbone/" in name}
    assert given
    for source in (tmp_path / "run", interop.export("safetensors", *arguments)):
        found, account = initial(source, directory.deployed().encoder.settings)
        assert account.complete
        assert sorted(account.reinitialised) == sorted(found.keys() - given.keys())
        for name, value in given.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_a_detector_that_torchvision_lacks_is_exported_under_our_names(directory, tmp_path):
    known = directory.deployed().encoder.settings
    preset = {**detection.settings.preset("moco", "c4"), "proposals": known.proposals}
    settings = dataclasses.replace(known, **preset)
    detector = detection.Detector(settings)
    image, size = np.zeros((1, 64, 64, 3), np.float32), np.array([[64, 64]])
    variables = jax.jit(detector.init)(jax.random.key(1), image, size)
    arguments = (variables, detector, directory.deployed().metadata, tmp_path)
    export = interop.export("safetensors", *arguments)
    tensors = files.read_safetensors(export / "model.safetensors")
    assert "params/res5_norm/bn/scale" in tensors
    loaded = exported_detector.load(export)
    assert loaded.encoder.settings == settings
    found, account = initial(export, settings)
    assert account.complete
    for name, value in traverse_util.flatten_dict(jax.device_get(variables), sep="/").items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
        np.testing.assert_array_equal(flat(loaded)[name], value, err_msg=name)


def test_an_export_that_finds_something_else_is_not_left_behind(directory, tmp_path, monkeypatch):
    read, name = files.read_safetensors, "roi_heads.mask_predictor.mask_fcn_logits.bias"

    def changed(path):
        tensors = read(path)
        return {**tensors, name: tensors[name] + 0.01}

    monkeypatch.setattr(files, "read_safetensors", changed)
    network = directory.deployed()
    with pytest.raises(ExportFailed, match="finds other masks than the detector"):
        interop.export(
            "safetensors", network.variables, network.encoder, network.metadata, tmp_path
        )
    assert not list(tmp_path.iterdir())


def test_preview_and_report_show_objects(directory, tmp_path):
    batch = directory.run.host_batch(1)
    images, captions = contact_sheet.labelled(batch, directory.run.dataset.class_names)
    assert images.shape == batch["image"].shape
    assert captions[0].endswith("objects")
    changed = (images != batch["image"]).any(axis=-1)
    for place in range(len(images)):
        x0, y0, x1, y1 = batch["boxes"][place, 0].round().astype(int)
        assert changed[place, y0 : y1 + 1, x0 : x1 + 1].any(), "the first object is drawn"
        assert changed[place, (y0 + y1) // 2, (x0 + x1) // 2], "with its mask"
        height, _ = batch["size"][place]
        assert not changed[place, height + 16 :].any()
    page = report.write(directory.path).read_text()
    for said in ("Detections", "Precision and recall", "Worst classes", "CoNe (the paper"):
        assert said in page


def test_a_preview_shows_several_small_batches(directory, tmp_path):
    config = directory.config.copy_and_resolve_references().unlock()
    config.batch_size = 2
    with mock.patch.object(contact_sheet, "write") as written:
        contact_sheet.write_training_samples(config, tmp_path / "preview.png")
    _, images, captions = written.call_args.args
    train = directory.run.dataset.train
    assert len(images) == len(captions) == len(train) // 2 * 2 > 2
    assert len(set(captions)) == len(captions), "no picture twice"


# Of each mode that is for classifiers, or for a recipe: its flags on a detector, and what is said.
# `{run}` is the directory of a trained detector, `{recipe}` a recipe of one, `{out}` a new place.
_FOR_CLASSIFIERS = "is for classifiers, but --workdir ({run}) is the run of a detector"
REFUSALS = {
    "probe": (("--workdir={run}",), _FOR_CLASSIFIERS),
    "robustness": (("--workdir={run}",), _FOR_CLASSIFIERS),
    "analyze": (("--workdir={run}",), _FOR_CLASSIFIERS),
    "label_errors": (("--workdir={run}",), _FOR_CLASSIFIERS),
    "serve": (("--workdir={run}",), _FOR_CLASSIFIERS),
    "export to the hub": (
        ("--workdir={run}", "--push=hf://me/detector", "--yes"),
        "--push (hf://me/detector) is for classifiers",
    ),
    "evaluate": (
        ("--workdir={run}", "--evaluators=knn"),
        "--evaluators (knn20) cannot evaluate detection",
    ),
    "probe of init_from": (
        ("{recipe}", "--config.init_from={run}", "--workdir={out}"),
        "--mode=probe is for classifiers; objective.name ('detection') is not one",
    ),
    "transfer": (
        ("{recipe}", "--config.init_from={run}", "--workdir={out}"),
        "--mode=transfer is for classifiers; objective.name ('detection') is not one",
    ),
    "sweep": (
        ("{recipe}", "--sweep=configs/sweeps/folds.py", "--workdir={out}"),
        "data.folds (5) must be 0 for pictures with objects",
    ),
    "sweep of another metric": (
        ("{recipe}", "--sweep=configs/sweeps/momentum.py:digits", "--workdir={out}"),
        "compares test/top1, which no evaluator of",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_mode_that_is_not_for_detectors_says_so(case, directory, refusal, tmp_path):
    """One line and exit code 2, before anything is computed or written."""
    flags, said = REFUSALS[case]
    data = directory.config.data.path
    recipe = ("--config=configs/coco.py:own,tiny", f"--config.data.path={data}")
    argv = [f"--mode={case.split()[0]}"]
    for flag in flags:
        argv += recipe if flag == "{recipe}" else (flag.format(run=directory.path, out=tmp_path),)
    assert said.format(run=directory.path) in refusal(argv).err
    assert not list(tmp_path.iterdir())


def test_runs_of_detectors_are_compared_and_weights_listed(directory, main, tmp_path, capsys):
    again = shutil.copytree(directory.path, tmp_path / "again")
    both = f"--workdirs={directory.path},{again}"
    assert main(["--mode=compare", both, f"--workdir={tmp_path / 'out'}"]) == 0
    page = (tmp_path / "out" / "comparison.html").read_text()
    trained = jax.tree.leaves(directory.deployed().variables["params"])
    assert "box AP" in page
    assert f"{sum(leaf.size for leaf in trained):,}" in page
    assert main(["--mode=weights", "--model=resnet50", f"--workdir={directory.path}"]) == 0
    assert "torchvision:resnet50" in capsys.readouterr().out


def test_training_ends_with_how_to_detect_objects(directory, capsys):
    """A finished run says it again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train.report, "write_after_training", lambda *_: None)
        arguments = mock.Mock(config=directory.config, workdir=directory.path)
        train.train(arguments, Console(width=300))
    printed = capsys.readouterr().out
    assert re.search("detect objects +.*--mode=predict", printed)
    assert "classify" not in printed
