"""Weights without a run: recognised, evaluated on any folder whose classes are the network's."""

import io
import json

import numpy as np
import pytest
import safetensors.numpy
from PIL import Image
from rich.console import Console

from cone_jax import interop, models
from cone_jax.config import load_recipe
from cone_jax.data.sources import image_folder
from cone_jax.errors import UserError
from cone_jax.evaluation import label_maps
from cone_jax.interop import hub, metadata, published, pushing, state_dict
from cone_jax.interop.metadata import ExportMetadata
from cone_jax.modes import MODES, command_line
from cone_jax.training import named_network, pretrained
from tests.models import random_variables

CLASSES = {"n01440764": 0, "goldfish": 1, "Great_White_Shark": 2}


@pytest.fixture(scope="module")
def network():
    encoder = models.create("resnet8", 1000, projection=None)
    return encoder, random_variables.draw(encoder, 224)


@pytest.fixture
def weights(network, tmp_path):
    path = tmp_path / "resnet8.safetensors"
    safetensors.numpy.save_file(state_dict.to_state_dict(*network), path)
    return path


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for name in CLASSES:
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index in range(2):
            coarse = Image.fromarray(rng.integers(0, 256, (5, 7, 3), np.uint8))
            picture = coarse.resize((300, 260), Image.Resampling.BICUBIC)
            picture.save(tmp_path / "photos" / name / f"{index}.png")
    return tmp_path / "photos"


def call(*argv):
    output = io.StringIO()
    arguments = command_line.parse(argv, {name: mode.help for name, mode in MODES.items()})
    MODES[arguments.mode].run(arguments, Console(file=output, width=250))
    return output.getvalue()


def expected_logits(network, folder):
    """Each picture by hand: Pillow, then the network."""
    rows, labels = [], []
    for name, label in sorted(CLASSES.items()):
        for file in sorted((folder / name).iterdir()):
            image = Image.open(file).convert("RGB").resize((295, 256), Image.Resampling.BILINEAR)
            pixels = np.asarray(image.crop((36, 16, 260, 240)), np.float32) / 255
            rows.append((pixels - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225))
            labels.append(label)
    images = np.stack(rows).astype(np.float32)
    return random_variables.logits(*network, images), np.array(labels)


def test_a_folder_is_evaluated_in_the_classes_of_the_network(network, weights, folder, tmp_path):
    printed = call(
        "evaluate",
        f"--model={weights}",
        f"--config.data.path={folder}",
        "--config.evaluation.batch_size=8",
        f"--workdir={tmp_path / 'out'}",
    )
    assert "does not say what it needs at its input; assumed: ImageNet's classes" in printed
    logits, labels = expected_logits(network, folder)
    shifted = logits - logits.max(1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    scores = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert scores["test/loss"] == pytest.approx(
        -log_probabilities[np.arange(6), labels].mean(), rel=1e-4
    )
    assert scores["test/top1"] == pytest.approx((logits.argmax(1) == labels).mean())


def test_other_sets_may_have_wordnet_ids_and_are_known_by_their_files(weights, folder, tmp_path):
    """One of two pictures of each class, corrupted; class folders are named as in ImageNet-C."""
    ids = {"n01440764": "n01440764", "goldfish": "n01443537", "Great_White_Shark": "n01484850"}
    folder = folder.rename(tmp_path / "clean")
    for name, number in ids.items():
        (folder / name).rename(folder / number)
    for severity in range(1, 6):
        for number in ids.values():
            place = tmp_path / "set" / "fog" / str(severity) / number
            place.mkdir(parents=True)
            (place / "1.png").write_bytes((folder / number / "1.png").read_bytes())
    evaluator = f"robustness(data='{tmp_path / 'set'}', corruptions=('fog',))"
    call(
        "evaluate",
        f"--model={weights}",
        f"--config.data.path={folder}",
        f"--evaluators={evaluator}, classification(data='{tmp_path / 'set/fog/1'}', name='same')",
        f"--workdir={tmp_path / 'out'}",
        "--config.evaluation.batch_size=8",
    )
    scores = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    # Nothing was really corrupted, so it is the error of the same three clean pictures.
    assert scores["robustness_set/clean_error"] == scores["robustness_set/error"]
    assert scores["robustness_set/error"] == pytest.approx(1 - scores["same/top1"])


def test_what_weights_say_of_their_input_is_applied(network, folder, tmp_path):
    said = ExportMetadata(
        class_names=published.class_names(),
        image_size=96,
        mean=(0.9, 0.1, 0.2),
        std=(0.1, 0.2, 0.3),
        transforms=published.evaluation_transforms(130, 96, "bicubic"),
        origin={"step": 0},
    )
    encoder, variables = network
    export = interop.export("safetensors", variables, encoder, said, tmp_path)
    rows, labels = [], []
    for name, label in sorted(CLASSES.items()):
        for file in sorted((folder / name).iterdir()):
            image = Image.open(file).convert("RGB").resize((150, 130), Image.Resampling.BICUBIC)
            pixels = np.asarray(image.crop((27, 17, 123, 113)), np.float32) / 255
            rows.append((pixels - said.mean) / said.std)
            labels.append(label)
    logits = random_variables.logits(*network, np.stack(rows).astype(np.float32))
    shifted = logits - logits.max(1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(1)) - shifted[np.arange(6), labels]
    out = tmp_path / "out"
    data = f"--config.data.path={folder}"
    call(
        "evaluate",
        f"--model={export}",
        data,
        "--config.evaluation.batch_size=8",
        f"--workdir={out}",
    )
    scores = json.loads((out / "evaluation.json").read_text())
    assert scores["test/loss"] == pytest.approx(losses.mean(), rel=1e-4)


def test_what_the_user_says_of_pictures_is_done_in_every_mode(weights, folder, tmp_path):
    flags = (
        "--config.data.mean=(0.9, 0.1, 0.2)",
        "--config.data.std=(0.1, 0.2, 0.3)",
        "--config.data.test_transforms=('resize(130)', 'centre_crop(96)')",
        "--config.data.test_pixels=stored",
    )
    call("export", f"--model={weights}", f"--output={tmp_path}", *flags)
    export = tmp_path / "safetensors"
    _, _, said = metadata.read(export)
    assert (said.mean, said.std) == ((0.9, 0.1, 0.2), (0.1, 0.2, 0.3))
    assert said.transforms == ("resize(130)", "centre_crop(96)")
    assert (said.image_size, said.pixels) == (96, "stored")
    picture, out = folder / "goldfish" / "0.png", tmp_path / "out"
    found = []
    for model, own in ((weights, flags), (export, ())):
        images = (f"--images={picture}", f"--output={tmp_path / 'p.csv'}")
        printed = call("predict", f"--model={model}", *images, *own)
        data = (f"--config.data.path={folder}", "--config.evaluation.batch_size=8")
        call("evaluate", f"--model={model}", *data, f"--workdir={out}", *own)
        loss = json.loads((out / "evaluation.json").read_text())["test/loss"]
        found.append((printed[printed.index(f"{picture}: ") :], loss))
    assert found[0] == found[1]
    with pytest.raises(UserError, match=r"data.mean \(\(0.5,\)\) must have three values"):
        call("predict", f"--model={weights}", *images, "--config.data.mean=(0.5,)")


def test_scores_of_other_weights_are_not_kept_beside_these(weights, folder, tmp_path):
    other, out = weights.with_name("other.safetensors"), tmp_path / "out"
    other.write_bytes(weights.read_bytes())
    data = (f"--config.data.path={folder}", "--config.evaluation.batch_size=8")
    for path, name, kept in (
        (weights, "a", {"a"}),
        (weights, "b", {"a", "b"}),
        (other, "c", {"c"}),
    ):
        evaluators = f"--evaluators=classification(name='{name}')"
        call("evaluate", f"--model={path}", *data, f"--workdir={out}", evaluators)
        scores = json.loads((out / "evaluation.json").read_text())
        assert scores["weights"] == str(path)
        assert {each for each in "abc" if f"{each}/top1" in scores} == kept


@pytest.mark.parametrize("mode", ["evaluate", "robustness", "export"])
def test_a_run_keeps_its_own_results(mode, weights, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(
        UserError, match=r"--workdir \(.*\) is a run, and what --model \(.*\) gives"
    ):
        call(mode, f"--model={weights}", f"--workdir={tmp_path}")


def test_what_is_pushed_does_not_say_where_its_file_was(weights, monkeypatch):
    pushed = {}
    monkeypatch.setattr(
        pushing,
        "push",
        lambda folder, _: pushed.update(
            {path.name: path.read_bytes() for path in folder.iterdir()}
        ),
    )
    call("export", f"--model={weights}", "--push=hf://me/mine", "--yes")
    assert "weights resnet8.safetensors" in pushed["README.md"].decode()
    assert not any(str(weights.parent).encode() in content for content in pushed.values())


def test_export_and_predict_need_no_run(weights, folder, tmp_path):
    call("export", f"--model={weights}", f"--output={tmp_path / 'exports'}")
    picture = folder / "goldfish" / "0.png"
    texts = []
    for flag in (f"--model={weights}", f"--workdir={tmp_path / 'exports' / 'safetensors'}"):
        printed = call("predict", flag, f"--images={picture}", f"--output={tmp_path / 'p.csv'}")
        texts.append(next(line for line in printed.splitlines() if line.startswith(str(picture))))
    assert texts[0] == texts[1]


def test_classes_that_are_none_of_the_networks_are_named():
    with pytest.raises(UserError, match=r"class 'unicorn' \(1 in all\) is not one of the 1000"):
        label_maps.match_classes(["goldfish", "unicorn"], published.class_names())
    assert label_maps.match_classes(["b", "a"], ("a", "b")) == (1, 0)


def test_a_file_of_no_network_here_is_named(tmp_path):
    path = tmp_path / "other.safetensors"
    safetensors.numpy.save_file({"x.weight": np.zeros(3, np.float32)}, path)
    with pytest.raises(UserError, match="holds none of the networks here"):
        named_network.open_network(str(path), print)


def test_a_backbone_alone_has_no_classes_to_predict(network, tmp_path):
    tensors = state_dict.to_state_dict(*network)
    path = tmp_path / "backbone.safetensors"
    backbone = {name: value for name, value in tensors.items() if not name.startswith("fc.")}
    safetensors.numpy.save_file(backbone, path)
    with pytest.raises(UserError, match="the backbone of resnet8 without a plain classifier"):
        named_network.open_network(str(path), print)


def test_weights_are_listed_and_searched():
    printed = call("weights", "--model=MobileNetV2_1")
    assert "timm:mobilenetv2_100.ra_in1k" in printed
    assert "73.0" in printed
    assert "resnet50" not in printed
    with pytest.raises(UserError, match="matches no name"):
        call("weights", "--model=resnet51")


def test_what_weights_need_at_the_input_is_applied_where_the_user_has_not_set_it(
    tmp_path, monkeypatch
):
    row = published.table()["timm:resnet34.ra4_e3600_r224_in1k"]
    assert row.mean == (0.5, 0.5, 0.5)
    fetched = hub.Fetched(tmp_path, row.metadata, {"stride_in_1x1": True}, row.network)
    monkeypatch.setattr(hub, "fetch", lambda reference: fetched)
    config = load_recipe("folder", "resnet50")
    config.init_from = row.id
    said = []
    adopted = pretrained.adopt_input(config, "folder:resnet50", tmp_path, said.append)
    assert (adopted.data.mean, adopted.data.std) == (row.mean, row.std)
    assert adopted.model.options.stride_in_1x1
    assert adopted.model.name == "resnet50"
    assert any(line.startswith("data.mean = (0.5, 0.5, 0.5), as timm:resnet34") for line in said)
    config.data.mean = (0.1, 0.2, 0.3)
    adopted = pretrained.adopt_input(config, "folder:resnet50", tmp_path, said.append)
    assert (adopted.data.mean, adopted.data.std) == ((0.1, 0.2, 0.3), row.std)


def test_a_folder_of_classes_has_no_parts(folder):
    assert not image_folder.has_parts(str(folder))
    assert len(image_folder.open_whole(str(folder))) == 6
