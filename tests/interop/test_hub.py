"""Weights by name through the hub's own client, against a stand-in on loopback."""

import csv
import dataclasses
import functools
import hashlib
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from cone_jax import interop, models
from cone_jax.data import transforms
from cone_jax.errors import UserError
from cone_jax.interop import hub, metadata, published, pushing
from cone_jax.interop.metadata import ExportMetadata
from tests.detection import torchvision_oracle  # noqa: F401 - before timm
from tests.interop import stand_in_hub
from tests.models import random_variables

import timm  # isort: skip
import timm.data

ROOT = Path(__file__).parents[2]
NAME = "mobilenetv2_100.ra_in1k"
_PATIENCE = "120"  # seconds for an answer; a busy machine may not have one in the library's ten


@functools.cache
def network():
    """timm's, with statistics that matter."""
    torch.manual_seed(0)
    model = timm.create_model("mobilenetv2_100").eval()
    for name, tensor in model.state_dict().items():
        if name.endswith("running_var"):
            tensor.uniform_(0.5, 1.5)
        elif name.endswith("running_mean"):
            tensor.normal_(std=0.1)
    return model


def add_other_forms(running, content, described):
    """Repositories that say what they need otherwise than timm does today."""
    # timm's form before 0.9, without a part of its own for the input.
    flat = {"architecture": "mobilenetv2_100", **described, "labels": ["ant", "bee"]}
    flat |= {"mean": [0.4, 0.5, 0.6], "num_classes": 2}
    running.add("old/flat", model__safetensors=content, config__json=json.dumps(flat).encode())
    vit = {"model_type": "vit", "id2label": {"0": "ant", "1": "bee"}}
    pixels = {"image_processor_type": "ViTImageProcessor", "resample": 2}
    pixels |= {"size": {"height": 96, "width": 96}, "image_mean": [0.5] * 3}
    running.add(
        "me/vit",
        model__safetensors=content,
        config__json=json.dumps(vit).encode(),
        preprocessor_config__json=json.dumps({**pixels, "image_std": [0.5] * 3}).encode(),
    )


@pytest.fixture(scope="module")
def server():
    content = safetensors.torch.save(network().state_dict())
    found = timm.models.get_pretrained_cfg(NAME)
    described = {
        name: getattr(found, name)
        for name in ("input_size", "crop_pct", "interpolation", "mean", "std", "num_classes")
    }
    config = {"architecture": "mobilenetv2_100", "num_classes": 1000, "pretrained_cfg": described}
    with stand_in_hub.serving() as running:
        running.add(
            f"timm/{NAME}", model__safetensors=content, config__json=json.dumps(config).encode()
        )
        for mode in ("squash", "border"):
            changes = {"crop_mode": mode, "crop_pct": 1.0}
            running.add(
                f"me/{mode}",
                model__safetensors=content,
                config__json=json.dumps(
                    {**config, "pretrained_cfg": {**described, **changes}}
                ).encode(),
            )
        running.add(
            "me/damaged", model__safetensors=content, config__json=b'{"pretrained_cfg": {}}'
        )
        running.add("me/no_weights", README__md=b"nothing")
        running.add("me/bare", model__safetensors=content)
        caffe = {"model_type": "resnet", "downsample_in_bottleneck": True}
        for name, size in (("resnet", 224), ("resnet_384", {"shortest_edge": 384})):
            prepared = {"size": size, "crop_pct": 0.875, "resample": 3}
            prepared |= {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.25]}
            running.add(
                f"old/{name}",
                model__safetensors=content,
                config__json=json.dumps(caffe).encode(),
                preprocessor_config__json=json.dumps(prepared).encode(),
            )
        changed = {
            "tensorflow": {"architecture": "tf_efficientnet_b0"},
            "relu": {"model_args": {"act_layer": "relu"}},
            "maximum": {"model_args": {"global_pool": "max"}},
        }
        for name, change in changed.items():
            running.add(
                f"me/{name}",
                model__safetensors=content,
                config__json=json.dumps({**config, **change}).encode(),
            )
        add_other_forms(running, content, described)
        yield running


def client(server, folder, *arguments, **environment):
    """The answer of a process of its own; the hub is all that it can reach."""
    command = [sys.executable, "-m", "tests.interop.hub_client", *arguments]
    # Without the user's own cache, token and switches.
    others = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    own = {
        "HF_ENDPOINT": server.endpoint,
        "HF_HOME": str(folder),
        "HF_HUB_ETAG_TIMEOUT": _PATIENCE,
        "HF_HUB_DOWNLOAD_TIMEOUT": _PATIENCE,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "NO_PROXY": "*",
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**others, **own, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_files_come_through_redirects_ranges_and_the_cache(server, tmp_path):
    content = server.repositories[f"timm/{NAME}"]["model.safetensors"]
    digest = hashlib.sha256(content).hexdigest()
    server.break_off.add(digest)
    server.requests.clear()
    references = [f"hf://timm/{NAME}", f"timm:{NAME}", f"hf://timm/{NAME}@v1", "hf://old/resnet"]
    answers = [json.loads(line) for line in client(server, tmp_path, "fetch", *references)]
    assert [Path(answer["path"]).read_bytes() == content for answer in answers] == [True] * 4
    parts = [asked for _, path, asked in server.requests if path == f"/store/{digest}"]
    assert any(part.startswith("bytes=") for part in parts)  # it went on where it broke off
    downloads = [entry for entry in server.requests if entry[:2] == ("GET", f"/store/{digest}")]
    assert len(downloads) <= 3  # two parts, and once more for the other repository
    hub_says, table_says, revised, old = answers
    assert hub_says["transforms"] == table_says["transforms"] == revised["transforms"]
    assert hub_says["transforms"] == ["resize(256, interpolation='bicubic')", "centre_crop(224)"]
    assert hub_says["metadata"]["class_names"][:1] == ["tench"]
    assert old["options"] == {"stride_in_1x1": True}
    assert old["transforms"] == hub_says["transforms"]
    assert old["metadata"]["mean"] == [0.4, 0.5, 0.6]
    for name, size in (("me/squash", 224), ("old/resnet_384", 384)):
        (line,) = client(server, tmp_path, "fetch", f"hf://{name}")
        steps = [f"resize(({size}, {size}), interpolation='bicubic')", f"centre_crop({size})"]
        assert json.loads(line)["transforms"] == steps
    names = ("hf://old/flat", "hf://me/vit", "hf://me/bare@main/")
    flat, vit, bare = map(json.loads, client(server, tmp_path, "fetch", *names))
    assert bare["transforms"] is None
    assert flat["transforms"] == hub_says["transforms"]
    assert flat["metadata"]["mean"] == [0.4, 0.5, 0.6]
    assert vit["transforms"] == ["resize((96, 96), interpolation='bilinear')", "centre_crop(96)"]
    assert flat["metadata"]["class_names"] == vit["metadata"]["class_names"] == ["ant", "bee"]
    server.requests.clear()
    names = (f"timm:{NAME}", "hf://timm/x", f"hf://timm/{NAME}", "hf://me/bare")
    offline = client(server, tmp_path, "fetch", *names, HF_HUB_OFFLINE="1")
    first, second, third, bare = map(json.loads, offline)
    assert first["path"] == table_says["path"]
    assert "its model.safetensors is not in the cache, and HF_HUB_OFFLINE is set" in second["error"]
    assert third["transforms"] == table_says["transforms"]
    assert bare["transforms"] is None
    assert not server.requests
    # The table says what its rows need; a repository's own word is not taken for absent.
    other = tmp_path / "other_home"
    client(server, other, "fetch", f"timm:{NAME}")
    (line,) = client(server, other, "fetch", f"hf://timm/{NAME}", HF_HUB_OFFLINE="1")
    assert "its config.json is not in the cache" in json.loads(line)["error"]


def test_what_goes_wrong_is_told_in_one_line(server, tmp_path):
    cases = {
        "hf://me/absent": "does not exist, or is private",
        "hf://me/tensorflow": "is tf_efficientnet_b0, which has the names and sh",
        "hf://me/maximum": "changes timm's mobilenetv2_100 by global_pool='max', which",
        "hf://me/relu": "changes timm's mobilenetv2_100 by act_layer='relu', whi",
        "hf://me/damaged": "its config.json is damaged (KeyError('input_size'))",
        "hf://me/border": "prepares pictures by crop_mode 'border', which",
        "hf://gated/model": "is gated; accept its terms",
        "hf://me/no_weights": "has no model.safetensors",
        f"hf://timm/{NAME}@v9": "has no revision 'v9'",
        "hf://busy/model": "too many requests (429)",
        "hf://name": "write hf://OWNER/NAME",
        "hf://-me/name": "hf://-me/name is not a repository: Repo id must",
        "timm:resnet51": "did you mean 'timm:resnet5",
        "timm:resnet50": "has been published",
    }
    # Without a token the hub says 401 where it would say 403 or 404 to one who has logged in.
    for token, gated, absent in ((None, 401, 401), (stand_in_hub.TOKEN, 403, 404)):
        server.answers.clear()
        own = {"HF_TOKEN": token} if token else {}
        answers = map(json.loads, client(server, tmp_path, "fetch", *cases, **own))
        for (reference, text), answer in zip(cases.items(), answers, strict=True):
            kind = "DownloadFailed" if reference == "hf://busy/model" else "UserError"
            assert answer.get("kind") == kind, (reference, answer)
            assert text in answer["error"]
            assert "\n" not in answer["error"]
        assert (f"/gated/model/resolve/main/{hub.WEIGHTS_FILE}", gated) in server.answers
        assert (f"/me/absent/resolve/main/{hub.WEIGHTS_FILE}", absent) in server.answers


def test_a_network_by_name_predicts_as_timm_does_and_goes_back_to_timm(server, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (12, 16, 3), np.uint8)
    picture = Image.fromarray(pixels).resize((400, 300), Image.Resampling.BICUBIC)
    picture.save(tmp_path / "picture.png")
    commands = []
    for model, file in ((f"timm:{NAME}", "first.csv"), ("hf://me/mine", "second.csv")):
        images, output = f"--images={tmp_path / 'picture.png'}", f"--output={tmp_path / file}"
        commands.append(["predict", f"--model={model}", images, output])
    push = ["export", f"--model=timm:{NAME}", "--push=hf://me/mine"]
    commands[1:1] = [push, [*push, "--yes"]]
    printed = client(
        server, tmp_path / "home", "cone", json.dumps(commands), HF_TOKEN=stand_in_hub.TOKEN
    )
    assert [line for line in printed if line.startswith("exit")] == [
        "exit 0",
        "exit 2",
        "exit 0",
        "exit 0",
    ]
    assert any(line.startswith(f"pushed: {server.endpoint}/me/mine") for line in printed)
    model = network()
    transform = timm.data.create_transform(
        **timm.data.resolve_data_config(
            {}, pretrained_cfg=timm.models.get_pretrained_cfg(NAME).to_dict()
        )
    )
    with torch.inference_mode():
        expected = model(transform(picture)[None]).softmax(-1)[0].numpy()
    for file in ("first.csv", "second.csv"):
        with (tmp_path / file).open() as opened:
            (row,) = csv.DictReader(opened)
        best = int(expected.argmax())
        assert row["class_1"] == published.class_names()[best]
        assert float(row["probability_1"]) == pytest.approx(expected[best], rel=1e-4)
    check_pushed(server, tmp_path, model)


def check_pushed(server, folder, model):
    """timm makes the same network of what was pushed, with nothing but its name."""
    files = server.repositories["me/mine"]
    assert set(files) == {
        "README.md",
        "config.json",
        "export.json",
        "model.safetensors",
        "preprocessor_config.json",
    }
    card = files["README.md"].decode()
    assert card.startswith("---\nlicense: apache-2.0\n")
    assert 'timm.create_model("hf-hub:me/mine"' in card
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    np.save(folder / "images.npy", images.numpy())
    arguments = ("hf-hub:me/mine", str(folder / "images.npy"), str(folder / "logits.npy"))
    *_, line = client(server, folder / "other_home", "timm", *arguments)
    with torch.inference_mode():
        np.testing.assert_array_equal(np.load(folder / "logits.npy"), model(images).numpy())
    read = json.loads(line)
    assert read["mean"] == [0.485, 0.456, 0.406]
    assert read["label_names"][1] == "goldfish"
    assert read["license"] == "apache-2.0"
    resolved = timm.data.resolve_data_config({}, pretrained_cfg=read)
    assert (resolved["crop_pct"], resolved["interpolation"]) == (0.875, "bicubic")


@pytest.fixture(scope="module")
def export_with_head(tmp_path_factory):
    """A network that timm does not have: CoNe's projection head is on it."""
    head = models.Projection(dim=8, hidden=8)
    encoder = models.create("resnet8", 3, projection=head, width=16)
    data = ExportMetadata(
        class_names=("ant", "bee", "cat"),
        image_size=32,
        mean=(0.4, 0.5, 0.6),
        std=(0.2, 0.3, 0.25),
        transforms=("resize(32)", "centre_crop(32)"),
        origin={"step": 7},
    )
    folder = tmp_path_factory.mktemp("exports")
    return interop.export("safetensors", random_variables.draw(encoder, 32), encoder, data, folder)


def run(server, home, *commands, **environment):
    """What each command printed, as one text, and the code it ended with."""
    printed = client(server, home, "cone", json.dumps(commands), **environment)
    texts = re.split(r"^exit (\d)$", "\n".join(printed), flags=re.MULTILINE)
    return [
        (" ".join(text.split()), int(code))
        for text, code in zip(texts[:-1:2], texts[1::2], strict=True)
    ]


def test_a_network_that_timm_has_not_is_pushed_and_used_by_its_name(
    server, export_with_head, tmp_path
):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    images, output = f"--images={tmp_path / 'picture.png'}", f"--output={tmp_path / 'p.csv'}"
    push = ["export", f"--model={export_with_head}", "--push=hf://me/cone", "--yes"]
    unlicensed, before, licensed, after, wrong, useless = run(
        server,
        tmp_path,
        push,
        ["predict", f"--workdir={export_with_head}", images, output],
        [*push, "--license=cc-by-4.0"],
        ["predict", "--model=hf://me/cone", images, output],
        [*push, "--license=apache"],
        ["export", f"--model={export_with_head}", "--license=mit"],
        HF_TOKEN=stand_in_hub.TOKEN,
    )
    assert [code for _, code in (unlicensed, before, licensed, after)] == [0] * 4
    assert "licence unknown" in unlicensed[0]
    assert "choose a licence: --license=apache-2.0" in unlicensed[0]
    assert "choose a licence" not in licensed[0]
    found = [re.search(r"picture.png: ?(.+%)", text)[1] for text in (before[0], after[0])]
    assert found[0] == found[1]
    files = server.repositories["me/cone"]
    assert files["README.md"].startswith(b"---\nlicense: cc-by-4.0\n")
    config = json.loads(files["config.json"])
    assert config["pretrained_cfg"]["license"] == "cc-by-4.0"
    assert "architecture" not in config
    assert wrong[1] == useless[1] == 2
    assert "--license (apache) is not an identifier of the hub's; did you mean" in wrong[0]
    assert "--license (mit) is of what is pushed; add --push=" in useless[0]


def test_who_may_not_write_is_told_so_and_nothing_changes(server, export_with_head, tmp_path):
    push = ["export", f"--model={export_with_head}", "--push=hf://me/refused", "--yes"]
    server.answers.clear()
    ((text, code),) = run(server, tmp_path, push, HF_TOKEN="hf_of_somebody_else")
    assert code == 2
    assert "--push (hf://me/refused) is not allowed (401); log in with a token" in text
    assert ("/api/repos/create", 401) in server.answers
    ((text, code),) = run(server, tmp_path, push)
    assert code == 2
    assert "hf auth login" in text
    assert "me/refused" not in server.repositories


def test_warnings_of_the_library_are_printed_once(main, monkeypatch, capsys):
    assert main(["weights", "--model=mobilenetv2"]) == 0
    handlers = logging.getLogger("huggingface_hub").handlers
    assert [type(handler) for handler in handlers].count(logging.StreamHandler) == 1  # not pytest's
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.StreamHandler(sys.stderr)])
    logging.getLogger("huggingface_hub.utils").warning("Retrying")
    assert "Retrying" not in capsys.readouterr().err


def test_a_push_that_cannot_get_there_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "*")
    with pytest.raises(hub.DownloadFailed, match=r"--push \(hf://me/mine\): .*refused"):
        pushing.push(tmp_path, "hf://me/mine")
    with pytest.raises(UserError, match=r"--push \(hf://-me/mine\) is not a repository: Repo id"):
        pushing.push(tmp_path, "hf://-me/mine")


@pytest.mark.parametrize(("resize", "mode"), [(40, "center"), ((40, 40), "squash")])
def test_what_is_pushed_prepares_pictures_as_the_network_does(export_with_head, resize, mode):
    _, spec, described = metadata.read(export_with_head)
    steps = published.evaluation_transforms(resize, 32, "bicubic")
    data = dataclasses.replace(described, transforms=steps)
    config = pushing._config("resnet18", spec, data, "mit")["pretrained_cfg"]
    transform = timm.data.create_transform(
        **timm.data.resolve_data_config({}, pretrained_cfg=config)
    )
    pixels = np.random.default_rng(0).integers(0, 256, (50, 70, 3), np.uint8)
    pipeline = transforms.parse(steps, pixels="exact")
    ours = np.asarray(pipeline(pixels, np.random.default_rng(0)), np.float32) / 255
    ours = (ours - described.mean) / described.std
    theirs = transform(Image.fromarray(pixels)).permute(1, 2, 0).numpy()
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert config["crop_mode"] == mode
