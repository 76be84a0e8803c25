"""``--mode=compile`` with the real compilers of TPUs and GPUs; nothing runs on a device."""

import json

import pytest

from cone_jax.compilation import compiler, environment, programs
from cone_jax.compilation.accelerators import parse_topology
from cone_jax.errors import UserError
from tests.conftest import ROOT

# A tiny network and a large bank whose width is not a multiple of a TPU's 128 lanes.
ROWS, CLASSES, DIM = 16384, 1000, 32
STEP = [
    "--config=cifar",
    "--config.data.path=/nowhere",
    f"--config.data.num_classes={CLASSES}",
    "--config.model.name=resnet8",
    "--config.model.options.width=8",
    f"--config.model.embedding_dim={DIM}",
    "--config.model.head_hidden=32",
    "--config.model.dtype=bfloat16",
    "--config.data.image_size=16",
    "--config.data.train_transforms=('random_crop(16, padding=2)',)",
    "--config.data.test_transforms=('centre_crop(16)',)",
    "--config.batch_size=16",
    "--config.evaluation.batch_size=16",
    f"--config.bank.size={ROWS}",
]
CONVOLUTIONS = 9 * 4 - 1  # query and key forward, two gradients; none for the pixels


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.chdir(ROOT)
        yield


def needs(kind):
    try:
        environment.install(kind, print)
    except environment.NoSuchPackage as error:
        pytest.skip(str(error))


@pytest.fixture
def compile_step(main, tmp_path):
    def run(topology, *more):
        needs(parse_topology(topology).accelerator.kind)
        flags = [f"--topology={topology}", f"--workdir={tmp_path}"]
        code = main(["compile", *STEP, *flags, *more])
        return code, json.loads((tmp_path / "compile.json").read_text())

    return run


def test_a_tpu_s_program_copies_nothing_of_the_state(compile_step, tmp_path, capsys):
    code, found = compile_step("v5e:1x1")
    assert code == 0
    assert found["fits"]
    assert found["state_copies"] == []
    bank = ROWS * (DIM + CLASSES + 1 + 1) * 4 + 8
    memory = found["memory"]
    assert memory["bank"] == bank
    assert memory["limit"] == 15.75 * 2**30
    held = sum(size for part, size in memory.items() if part not in ("needed", "limit"))
    assert memory["needed"] == held > bank
    assert memory["temporaries"] < bank  # nothing as large as the bank comes beside it
    assert found["convolutions"] >= CONVOLUTIONS
    assert 0.05 < found["estimate_ms"] < 5
    assert found["flops"] > 0
    assert found["bytes_accessed"] > bank  # which is read once
    assert found["steps"] == 50_000 // 16 * 1000
    text = (tmp_path / "compile.md").read_text()
    assert "It fits" in text
    assert "sorts, collectives and the host are not in it" in text
    assert text in capsys.readouterr().out
    # The same question again is answered from the cache.
    (answer, *_) = (
        path
        for path in compiler._cache_folder().iterdir()
        if json.loads(path.read_text())["estimate_ms"] == found["estimate_ms"]
    )
    changed = json.loads(answer.read_text()) | {"estimate_ms": 4321.0}
    answer.write_text(json.dumps(changed))
    assert compile_step("v5e:1x1")[1]["estimate_ms"] == 4321.0


def test_a_gpu_s_program_calls_cudnn_and_copies_nothing(compile_step):
    code, found = compile_step("h100:2")
    assert code == 0
    assert found["devices"] == 2
    assert found["convolutions"] == CONVOLUTIONS
    assert found["state_copies"] == []
    assert found["estimate_ms"] is None
    kinds = {each["kind"] for each in found["collectives"]}
    assert {"all-reduce", "all-gather"} <= kinds


def test_two_slices_are_one_mesh(compile_step):
    """For which `jax.make_mesh` has an error."""
    code, found = compile_step("v5e:2x2", "--slices=2")
    assert code == 0
    assert (found["devices"], found["slices"]) == (8, 2)
    assert found["state_copies"] == []
    assert {"all-reduce", "all-reduce between slices"} <= {
        each["kind"] for each in found["collectives"]
    }


def test_what_cannot_fit_is_called_impossible(compile_step, capsys):
    code, found = compile_step("v5e:1x1", "--config.bank.size=8388608")
    assert code == 1
    assert not found["fits"]
    assert found["memory"]["needed"] > found["memory"]["limit"]
    fields = [cure["field"] for cure in found["cures"]]
    assert fields[0] == "bank.probs_dtype"
    assert "bank.size" in fields
    assert "batch_size" in fields
    assert "does not fit" in capsys.readouterr().err


def test_every_cure_is_compiled_on_request(main, tmp_path, monkeypatch):
    """With a compiler that asks for a GiB per image and nothing else beside the state."""

    def ask(config, program, topology, data, progress):
        progress(program, 0.0)
        state = dict.fromkeys(programs.PARTS.values(), 0) | {"bank": config.bank.size * 2**10}
        return {
            "state": state,
            "limit": topology.accelerator.memory,
            "arguments": state["bank"],
            "temporaries": config.batch_size * 2**30,
            **dict.fromkeys(("results", "program", "flops", "bytes_accessed"), 0),
            "estimate_ms": 1.0,
            "estimate_ms_by_part": {},
        }

    monkeypatch.setattr(compiler, "ask", ask)
    monkeypatch.setattr(environment, "install", lambda kind, say: None)
    flags = ["--topology=v5e:1x1", "--cures=compile", f"--workdir={tmp_path}"]
    assert main(["compile", *STEP, *flags]) == 1
    found = json.loads((tmp_path / "compile.json").read_text())
    saved = {cure["field"]: (cure["saves"], cure["fits"]) for cure in found["cures"]}
    assert all(cure["compiled"] for cure in found["cures"])
    assert saved["batch_size"] == (8 * 2**30, True)
    assert saved["model.options.remat"] == (0, False)
    assert saved["bank.size"] == (ROWS // 2 * 2**10, False)
    text = (tmp_path / "compile.md").read_text()
    assert "| batch_size | 8 | 8.0 GiB, and then it fits |" in text
    assert "| bank.size | 8192 | 8.0 MiB, which is not enough |" in text


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--topology=v5f:2x2"], ["v5f", "did you mean"]),
        (["--topology=v5e:2x2x2"], ["v5e:2x2x2", "4x4"]),
        (["--topology=h100:12"], ["multiple of 8"]),
        (["--topology=h100:8", "--slices=2"], ["--slices (2) is for TPUs"]),
        (["--topology=v5e:2x2", "--slices=none"], ["--slices ('none')"]),
        ([], ["--topology is not given"]),
        (["--topology=v5e:2x4", "--cures=all"], ["--cures ('all')"]),
        (["--topology=v5e:3x2"], ["batch_size (16)", "6 devices"]),
        (["--topology=v5e:2x4", "--train_images=many"], ["--train_images ('many')"]),
        (
            ["--topology=v5e:2x4", "--config.data.num_classes=0", "--config.data.name=my_set"],
            ["data.num_classes (0) must be given", "my_set"],
        ),
    ],
)
def test_wrong_input_is_refused_before_anything_is_compiled(refusal, flags, words):
    said = refusal(["compile", *STEP, *flags]).err
    assert all(word in said for word in words), said


def test_the_classes_of_a_set_that_is_not_here_are_those_of_its_description():
    from cone_jax import config as config_lib

    config = config_lib.load_recipe("imagenet").unlock()
    config.data.path = "/nowhere"
    assert compiler.describe_data(config, "") == (1000, 1_281_167)
    assert compiler.describe_data(config, "77") == (1000, 77)


def test_a_slice_has_as_many_devices_as_its_shape_says():
    assert parse_topology("v5e:16x16", "4").num_devices == 1024
    assert parse_topology("v4:2x2x1").num_devices == 8  # two cores per chip
    with pytest.raises(UserError):
        parse_topology("v5e")
