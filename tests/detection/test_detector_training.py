"""A detector in the trainer: what holds for every method holds for it."""

import dataclasses
import io
import json
import shutil

import flax
import jax
import numpy as np
import pytest
from rich.console import Console

from cone_jax import distributed, training
from cone_jax.data import datasets
from cone_jax.errors import UserError
from cone_jax.recipes import coco
from cone_jax.training import loop, pretrained
from cone_jax.training.run import Run
from cone_jax.training.train_step import train_step
from tests.detection import shapes


def tiny(path, options="own,tiny", **fields):
    config = coco.get_config(options).unlock()
    config.data.path = str(path)
    config.data.holdout = 0.25
    config.batch_size = config.evaluation.batch_size = 8  # of eight devices
    config.steps, config.log_every = 4, 1
    config.evaluation.every_epochs = config.checkpoint.every_epochs = 0.5
    config.objective.detection.score_threshold = 0.0
    for field, value in fields.items():
        config.update_from_flattened_dict({field: value})
    return config


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return shapes.write(tmp_path_factory.mktemp("shapes"), 16)


@pytest.fixture(scope="module")
def run(data):
    rate = {"optimizer.learning_rate": 0.5, "optimizer.weight_decay": 0.1}
    return Run.open(tiny(data, **rate, **{"schedule.warmup_epochs": 0.0, "data.threads": 1}))


class StoppedError(Exception):
    pass


def stop_at(step):
    def watch(run, now, state, writer):
        if now == step:
            raise StoppedError

    return watch


def leaves(tree):
    return flax.traverse_util.flatten_dict(jax.device_get(tree), sep="/")


def lines(directory):
    return (directory / "metrics.jsonl").read_text()


def test_interrupted_equals_uninterrupted(data, tmp_path):
    """Bit for bit: every metric of every step, and the network at the end."""
    config = tiny(data)
    states = {}

    def keep(name):
        return lambda run, step, state, writer: states.update({name: leaves(state.variables)})

    training.train(config, tmp_path / "whole", watch=keep("whole"))
    with pytest.raises(StoppedError):
        training.train(config, tmp_path / "parts", watch=stop_at(4))
    assert json.loads(lines(tmp_path / "parts").splitlines()[-1])["step"] <= 4
    scores = training.train(config, tmp_path / "parts", watch=keep("parts"))
    assert lines(tmp_path / "whole") == lines(tmp_path / "parts")
    assert states["whole"].keys() == states["parts"].keys()
    for name, value in states["whole"].items():
        np.testing.assert_array_equal(value, states["parts"][name], err_msg=name)
    assert {"test/box_ap", "test/mask_ap", "train/loss_mask"} <= scores.keys()


def test_one_device_equals_eight(data):
    """The same losses and parameters but for the order of summation, the same detections.

    With BatchNorm in backbone, pyramid and heads: its statistics are those of the whole batch.
    """
    config = tiny(data, "tiny", **{"objective.detection.precise_bn_batches": 0})
    whole = Run.open(config)
    results, given = [], None
    for count in (1, 8):
        run = whole.on_mesh(distributed.make_mesh(jax.devices()[:count]))
        state = run.init_state()
        batch = distributed.to_devices(run.mesh, without_damage(run.host_batch(1)))
        state, metrics = train_step(state, batch)
        given = given or jax.device_get(state.variables)
        placed = jax.device_put(given, distributed.replicated(run.mesh))
        found = run.evaluators[0].evaluate(run, placed, print)
        results.append((jax.device_get(metrics), leaves(state.params), found))
    (one, params, found), (eight, others, again) = results
    for name, value in one.items():
        np.testing.assert_allclose(eight[name], value, rtol=2e-4, err_msg=name)
    for name, value in params.items():
        np.testing.assert_allclose(others[name], value, rtol=2e-3, atol=2e-5, err_msg=name)
    # AP is 0 after a step, whatever is found.
    ours, theirs = (
        sorted((x["image_id"], x["category_id"], x["score"]) for x in each.found)
        for each in (found, again)
    )
    assert len(ours) == len(whole.dataset.test) * config.objective.detection.detections
    assert [x[:2] for x in ours] == [x[:2] for x in theirs]
    np.testing.assert_allclose([x[2] for x in ours], [x[2] for x in theirs], atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_c4_trains_goes_on_and_is_evaluated(data, tmp_path, dtype):
    """Two steps with a stop after the first are the two steps without; parameters stay float32."""
    fields = {"steps": 2, "model.dtype": dtype, "checkpoint.every_epochs": 0.5}
    config = tiny(data, "c4,own,tiny", **fields, **{"evaluation.every_epochs": 0.0})
    states = {}

    def keep(name):
        return lambda run, step, state, writer: states.update({name: leaves(state.variables)})

    whole = training.train(config, tmp_path / "whole", watch=keep("whole"))
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    shutil.rmtree(tmp_path / "parts" / "checkpoints" / "2")
    console = Console(file=io.StringIO(), width=300)
    parts = training.train(config, tmp_path / "parts", console, keep("parts"))
    assert "2 steps from step 1" in console.file.getvalue()
    assert lines(tmp_path / "whole") == lines(tmp_path / "parts")
    assert np.isfinite(whole["train/loss"])
    assert whole == parts
    assert {"test/box_ap", "test/mask_ap"} <= whole.keys()
    for name, value in states["whole"].items():
        assert value.dtype == np.float32, name
        np.testing.assert_array_equal(value, states["parts"][name], err_msg=name)


def without_damage(batch):
    return {name: value for name, value in batch.items() if name != "damaged"}


def test_constants_stay_and_everything_else_moves(run):
    """Frozen stages and norms keep their values, weight decay included."""
    state = run.init_state()
    before = leaves(state.params)
    batch = distributed.to_devices(run.mesh, without_damage(run.host_batch(1)))
    after, _ = train_step(state, batch)
    for name, value in leaves(after.params).items():
        norm = name.startswith("backbone/") and ("bn" in name)
        constant = norm or name.startswith(("backbone/conv1", "backbone/layer1"))
        if constant or name.endswith("kernel"):
            assert np.array_equal(value, before[name]) == constant, name


def test_batches_of_two_shapes_are_never_mixed(data):
    transforms = ("short_side(48, 64, step=16, longest=96)", "flip", "pad(64, 96, objects=5)")
    config = tiny(
        data,
        **{
            "data.train_transforms": transforms,
            "data.test_transforms": transforms[::2],
            "data.image_size": 96,
            "data.last_batch": "drop",
            "data.holdout": 0.1,
            "evaluation.batch_size": 4,
            "batch_size": 3,
        },
    )
    source = datasets.open_split(config.data, "train")
    batches = datasets.train_batches(config, source, num_steps=12)
    order = batches.order
    upright = [source.objects(index).size[0] > 48 for index in range(len(source))]
    assert order.epoch_length == sum(
        n // 3 * 3 for n in (sum(upright), len(upright) - sum(upright))
    )
    seen = set()
    for step in range(6):
        batch = batches[step]
        kinds = {upright[record] for record in batch["id"].tolist()}
        assert len(kinds) == 1
        assert batch["image"].shape[1:3] == ((96, 64) if kinds.pop() else (64, 96))
        seen |= set(batch["id"].tolist())
        again = datasets.train_batches(config, source, num_steps=12)[step]
        assert all(np.array_equal(value, again[name]) for name, value in batch.items())
    assert len(seen) > 6
    evaluated = datasets.eval_batches(config, source)
    rows = [evaluated[index] for index in range(len(evaluated))]
    ids = np.concatenate([batch["id"][batch["mask"]] for batch in rows])
    assert sorted(ids.tolist()) == list(range(len(source)))


def test_each_padded_shape_is_compiled_once(tmp_path):
    """Two epochs of pictures that lie and pictures that stand: two programs."""
    fields = {
        "data.train_transforms": ("short_side(48, 64, step=16, longest=96)", "pad(64, 96)"),
        "data.test_transforms": ("short_side(48, longest=96)", "pad(64, 96)"),
        "data.image_size": 96,
        "data.last_batch": "drop",
        "data.holdout": 0.04,
        "data.threads": 1,
        "steps": 8,
    }
    run = Run.open(tiny(shapes.write(tmp_path / "shapes", 36), **fields))
    state, before = run.init_state(), train_step._cache_size()
    seen = []
    for batch, _ in zip(run.train_stream(0, print), range(6), strict=False):
        seen.append(batch["image"].shape[1:3])
        state, metrics = train_step(state, batch)
        assert np.isfinite(metrics["loss"])
    assert all(seen.count(shape) >= 2 for shape in ((64, 96), (96, 64))), seen
    assert train_step._cache_size() == before + 2


@pytest.mark.parametrize(("options", "warned"), [("own,tiny", True), ("tiny", False)])
def test_layers_that_would_stay_random_are_warned_of(data, options, warned):
    said = []
    loop._look_before_training(Run.open(tiny(data, options)), said.append)
    assert any("init_from is empty" in line for line in said) == warned


def test_precise_statistics_are_those_of_all_pictures_of_the_batches(data):
    """Of two batches as if they were one: the variance between them is in it."""
    from cone_jax.evaluation import detection

    config = tiny(data, "tiny", **{"objective.detection.precise_bn_batches": 2})
    run = Run.open(config)
    state = run.init_state()
    precise = detection.with_precise_statistics(run, state.variables)
    encoder = run.learner.encoder
    batches = datasets.train_batches(run.config, run.dataset.train, 2, run.share)
    images, sizes = (np.concatenate([batches[i][x] for i in (0, 1)]) for x in ("image", "size"))
    images = images.astype(np.float32) / 255
    images = (images - np.array(run.learner.mean)) / np.array(run.learner.std)
    for image, (height, width) in zip(images, sizes, strict=True):
        image[height:] = image[:, width:] = 0
    _, captured = encoder.apply(
        state.variables, images.astype(np.float32), sizes, capture_intermediates=True
    )
    conv = captured["intermediates"]["backbone"]["conv1"]["__call__"][0]
    found = precise["batch_stats"]["backbone"]["bn1"]
    np.testing.assert_allclose(found["mean"], np.mean(conv, (0, 1, 2)), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found["var"], np.var(conv, (0, 1, 2)), rtol=2e-2, atol=1e-4)


def test_the_variance_between_batches_is_in_precise_statistics():
    from cone_jax.evaluation.detection import over_batches

    rng = np.random.default_rng(0)
    batches = rng.normal(size=(3, 50, 4)) + np.array([0.0, 5.0, 9.0])[:, None, None]
    each = [{"bn": {"mean": batch.mean(0), "var": batch.var(0)}} for batch in batches]
    found = over_batches(each)["bn"]
    together = batches.reshape(-1, 4)
    np.testing.assert_allclose(found["mean"], together.mean(0), rtol=1e-5)
    np.testing.assert_allclose(found["var"], together.var(0), rtol=1e-5)


def as_classifier(variables):
    """The tensors of a torchvision ResNet with the backbone's weights."""
    from cone_jax.interop import torchvision_detector

    settings = variables["settings"]
    flat = flax.traverse_util.flatten_dict(variables["variables"])
    return {
        entry.theirs.removeprefix("backbone.body."): entry.write(np.asarray(flat[entry.ours]))
        for entry in torchvision_detector.backbone_entries(settings)
    }


@pytest.mark.parametrize("naming", ["torchvision", "released", "detectron2", "own"])
def test_a_backbone_starts_from_weights_under_any_of_its_names(run, naming, tmp_path):
    from cone_jax.interop import detectron2, files

    given = run.on_mesh(run.mesh)
    other = dataclasses.replace(given, config=given.config.copy_and_resolve_references())
    variables = jax.device_get(run.init_state().variables)
    changed = jax.tree.map(lambda value: value + 1.0, variables)
    settings = run.learner.encoder.settings
    tensors = as_classifier({"settings": settings, "variables": changed})
    tensors |= {"fc.weight": np.zeros((10, 64), np.float32), "bn1.num_batches_tracked": np.zeros(1)}
    if naming == "released":
        tensors = {f"module.encoder_q.net.{name}": value for name, value in tensors.items()}
    if naming == "detectron2":
        tensors = {
            f"backbone.bottom_up.{detectron2.to_detectron2(name)}": value
            for name, value in tensors.items()
            if not name.startswith("fc")
        }
    if naming == "own":
        flat = flax.traverse_util.flatten_dict(changed, sep="/")
        tensors = {name: value for name, value in flat.items() if "/backbone/" in name}
        tensors["params/classifier/bias"] = np.zeros(10, np.float32)
    path = tmp_path / "weights.safetensors"
    files.write_safetensors(path, {k: np.asarray(v) for k, v in tensors.items()}, {})
    other.config.unlock().init_from = str(path)
    state, account = pretrained.load(other, lambda line: None)
    after = leaves(state.variables)
    for name, value in leaves(changed).items():
        if "/backbone/" in name:
            np.testing.assert_array_equal(after[name], value, err_msg=name)
    assert all("/backbone/" not in name for name in account.reinitialised)
    assert account.reinitialised
    assert not account.missing
    if naming == "detectron2":
        wide = "backbone.bottom_up.stem.conv1.norm.running_var"
        files.write_safetensors(path, {**tensors, wide: 1e8 * tensors[wide]}, {})
        with pytest.raises(UserError, match=r"takes BGR from 0 to 255 .*; give weights for"):
            pretrained.load(other, lambda line: None)
    lacking = dict(list(tensors.items())[3:])
    files.write_safetensors(path, {k: np.asarray(v) for k, v in lacking.items()}, {})
    with pytest.raises(UserError, match="missing"):
        pretrained.load(other, lambda line: None)


def test_a_method_and_data_that_do_not_fit_are_refused(data):
    config = tiny(data)
    config.objective.name = "cross_entropy"
    config.evaluation.evaluators, config.checkpoint.best_metric = ("classification",), "test/top1"
    with pytest.raises(UserError, match=r"objective.name \('cross_entropy'\) .* has objects"):
        Run.open(config)
    for fields, said in (
        ({"data.image_size": 96}, r"data.image_size \(96\) must be 64"),
        ({"model.name": "deit_tiny"}, r"model.name \('deit_tiny'\) is not a detector's"),
        ({"evaluation.evaluators": ("classification",)}, "cannot evaluate detection; .*detection"),
        ({"data.train_transforms": ("flip",)}, "must end with pad"),
        ({"data.train_transforms": ("short_side(96)", "pad(64, 64)")}, "does not fit into pad"),
        ({"data.train_transforms": ("crop(3)", "pad(32, 32)")}, "no operation on pictures"),
        ({"data.train_transforms": ("pad(30, 32)",)}, "multiple of 32, not 30|at least 32"),
        ({"data.source": "digits"}, "one class per image"),
        ({"data.folds": 2}, r"data.folds \(2\) must be 0 for pictures with objects"),
        ({"data.sampling": "balanced"}, r"data.sampling \('balanced'\) must be 'uniform'"),
        ({"data.imbalance": 10.0}, r"data.imbalance \(10.0\) must be 1.0"),
        ({"data.corrections": "labels.csv"}, r"data.corrections \('labels.csv'\) must be ''"),
    ):
        with pytest.raises(UserError, match=said):
            Run.open(tiny(data, **fields))
