"""One table: every mode of ``main.py``, called on digits as a user would.

A program stands for training where a mode starts processes for it, an answer for the compiler's,
a number for the slow probes, and two corruptions for all. What each mode finds and writes is
tested beside this file.
"""

import contextlib
import functools
import io
import json
import shutil
import sys
from http.server import ThreadingHTTPServer
from pathlib import Path
from unittest import mock

import pytest
import tensorflow_datasets as tfds
from PIL import Image

from cone_jax.compilation import compiler, environment
from cone_jax.data import sources
from cone_jax.evaluation.robustness import Robustness
from cone_jax.modes import MODES, probe, robustness
from cone_jax.sweeps import runner
from cone_jax.training import pretrained

ROOT = Path(__file__).parent.parent.parent
TINY = (
    "--config.model.name=two_layers",
    "--config.model.options.width=16",
    "--config.model.head_hidden=16",
    "--config.model.embedding_dim=8",
    "--config.batch_size=64",
    "--config.bank.size=64",
    "--config.objective.cone.neighbours=8",
    "--config.steps=2",
    "--config.data.holdout=0.2",
    "--config.data.train_split=train[held_out]",
    "--config.data.test_split=test[held_out]",
)
SCORES = json.dumps({"test/top1": 0.5, "test/mean_per_class": 0.5})
TRAINING = f"import pathlib, sys; pathlib.Path(sys.argv[1], 'result.json').write_text({SCORES!r})"

COMPILED = {
    "state": {"parameters": 100},
    "limit": 1000,
    "arguments": 100,
    "results": 1,
    "temporaries": 200,
    "program": 10,
    "flops": 1e9,
    "bytes_accessed": 1e9,
    "collectives": [],
    "state_copies": [],
    "estimate_ms": 2.5,
    "estimate_ms_by_part": {"gradient": 2.5},
}

# Of each mode: its flags, and a file that it leaves. `run` is a trained run and `copy` another,
# `png` a folder of pictures, `tfds` a prepared set, `out` a place to write to.
TABLE = {
    "train": ((*TINY, "--workdir={}/run"), "run/report.html"),
    "preview": (("--workdir={}/out",), "out/preview.png"),
    "check": (
        ("--config=configs/folder.py", "--config.data.path={}/png", "--workdir={}/out"),
        "out/check.html",
    ),
    "prepare": (
        ("--config=configs/cifar.py:10", "--config.data.name=few_digits"),
        "tfds/few_digits",
    ),
    "pack": (
        ("--config=configs/folder.py", "--config.data.path={}/png", "--output={}/out/packed"),
        "out/packed",
    ),
    "compile": (("--topology=v5e:1x1", "--workdir={}/out"), "out/compile.md"),
    "evaluate": (("--workdir={}/run", "--step=best"), "run/evaluation.json"),
    "label_errors": (("--workdir={}/run", "--folds=2"), "run/label_errors.csv"),
    "robustness": (("--workdir={}/run",), "run/evaluation/robustness/errors.csv"),
    "probe": (("--workdir={}/run",), "run/probe.json"),
    "transfer": (
        (
            "--config=configs/transfer.py:pets,folder,small,32px",
            "--config.data.path={}/png",
            "--config.init_from={}/run",
            "--workdir={}/out",
        ),
        "out/transfer.md",
    ),
    "weights": (("--model=mobilenet",), ""),
    "export": (("--workdir={}/run", "--format=orbax"), "run/exports/orbax"),
    "predict": (("--workdir={}/run", "--images={}/png/test"), "run/predictions.csv"),
    "serve": (("--workdir={}/run", "--address=127.0.0.1:0"), ""),
    "report": (("--workdir={}/run",), "run/report.html"),
    "analyze": (("--workdir={}/run",), "run/figures"),
    "compare": (("--workdirs={}/run,{}/copy", "--workdir={}/out"), "out/comparison.html"),
    "sweep": (("--sweep=configs/sweeps/momentum.py:digits", "--workdir={}/out"), "out/table.md"),
}
# They end with what to do next, or with what there is now.
OTHER_LAST_LINES = {
    "serve": "http://127.0.0.1:",
    "train": "--mode=predict",
    "prepare": "is ready in",
    "pack": "packed ",
    "weights": "--model=WEIGHTS to predict",
}


class FewDigits(tfds.core.GeneratorBasedBuilder):
    """Pictures of digits by path, which TFDS prepares without TensorFlow."""

    VERSION = tfds.core.Version("1.0.0")
    pictures: tuple[Path, ...] = ()

    def _info(self):
        features = {
            "image": tfds.features.Image(shape=(None, None, 3)),
            "label": tfds.features.ClassLabel(num_classes=10),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {part: self._generate_examples() for part in ("train", "test")}

    def _generate_examples(self):
        for number, path in enumerate(self.pictures):
            yield number, {"image": path, "label": int(path.parent.name)}


def call(main, mode, place):
    """The exit code, and what was printed."""
    flags, _ = TABLE[mode]
    printed, complaints = io.StringIO(), io.StringIO()
    argv = [f"--mode={mode}", *(flag.replace("{}", str(place)) for flag in flags)]
    if mode == "prepare":
        argv.append(f"--config.data.path={place}/tfds")
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complaints):
        code = main(argv)
    return code, printed.getvalue(), complaints.getvalue()


@pytest.fixture(scope="module")
def place(tmp_path_factory, main, small_network):
    """A folder with digits as pictures and as a TFDS set."""
    place = tmp_path_factory.mktemp("modes")
    for part in ("train", "test"):
        source = sources.create("digits", part)
        for index in range(40):
            record = source[index]
            folder = place / "png" / part / str(record.label)
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(record.image).convert("RGB").save(folder / f"{index}.png")
    FewDigits.pictures = tuple(sorted((place / "png" / "test").rglob("*.png")))
    builder = FewDigits(data_dir=place / "tfds", file_format="array_record")
    config = tfds.download.DownloadConfig(try_download_gcs=False)
    tfds.disable_progress_bar()
    builder.download_and_prepare(download_config=config)
    return place


@pytest.fixture(scope="module")
def trained(place, main):
    """What ``--mode=train`` printed; the other modes look at the run."""
    with contextlib.chdir(ROOT):
        outcome = call(main, "train", place)
    shutil.copytree(place / "run", place / "copy")
    return outcome


def test_the_table_has_every_mode():
    assert set(TABLE) == set(MODES)


@pytest.mark.parametrize("mode", TABLE)
def test_modes_end_well_and_say_what_they_wrote(mode, main, place, trained, monkeypatch):
    monkeypatch.chdir(ROOT)
    command = (sys.executable, "-c", TRAINING)
    monkeypatch.setattr(runner, "carry_out", functools.partial(runner.carry_out, command=command))
    for slow in ("linear_scores", "few_shot_scores"):
        monkeypatch.setattr(probe, slow, lambda *sets, **options: {"slow/top1": 0.5})
    monkeypatch.setattr(environment, "install", lambda kind, say: None)
    monkeypatch.setattr(compiler, "ask", lambda *question: COMPILED)
    fewer = functools.partial(Robustness, corruptions=("fog", "snow"))
    monkeypatch.setattr(robustness, "Robustness", fewer)
    monkeypatch.setattr(ThreadingHTTPServer, "serve_forever", lambda server: None)
    monkeypatch.setattr(pretrained, "check_weights", lambda config: "weights: fine")
    shutil.rmtree(place / "out", ignore_errors=True)
    code, printed, complaints = trained if mode == "train" else call(main, mode, place)
    assert (code, complaints) == (0, "")
    last = [line for line in printed.splitlines() if line.strip()][-1]
    if mode in OTHER_LAST_LINES:
        assert OTHER_LAST_LINES[mode] in last
    else:
        assert last.startswith("written: ")
    if not TABLE[mode][1]:  # it only prints
        return
    left = place / TABLE[mode][1]
    assert left.exists()
    assert str(left.parent) in last or str(left.with_suffix("")) in printed


def test_help_has_a_line_for_every_mode(main):
    printed = io.StringIO()
    with mock.patch.object(sys, "stdout", printed):
        assert main(["--help"]) == 0
    lines = printed.getvalue().splitlines()
    listing = lines[lines.index("modes") + 1 : lines.index("flags of all modes") - 1]
    assert [line.split()[0] for line in listing] == list(MODES)
    assert all(len(line) <= 100 and len(line.split()) > 3 for line in listing)
    assert "Exit codes: 0 done, 1 failed, 2 wrong input." in printed.getvalue()
