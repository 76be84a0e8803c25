"""The command line: what works, and one clear line with exit code 2 for what does not."""

import errno
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from cone_jax import console, modes, runtime, workdir
from cone_jax.data.sources import tfds
from cone_jax.errors import UserError
from cone_jax.modes import command_line
from tests import tiny_run

ROOT = Path(__file__).parents[2]
MODES = {"train": "train something", "evaluate": "score it"}

TINY = ("--config.steps=2", *tiny_run.FLAGS)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--config.bank.sizee=1"], ["bank.sizee", "did you mean 'size'"]),
        (["--config.bankk.size=1"], ["bankk", "did you mean 'bank'"]),
        (["--config.bank.size.x=1"], ["bank.size.x", "not a section; set --config.bank.size="]),
        (["--config.bank.size=many"], ["bank.size ('many')", "a whole number"]),
        (["--config.bank.size=1.5"], ["bank.size ('1.5')", "a whole number"]),
        (["--config.bank.size"], ["--config.bank.size has no value", "give --config.bank.size="]),
        (["--config.bank.exclude_self=maybe"], ["bank.exclude_self ('maybe')", "true or false"]),
        (["--config.ema.momentum=high"], ["ema.momentum ('high')", "a number"]),
        (["--config.data.mean=grey"], ["data.mean (('grey',))", "three values"]),
        (["--config.bank.size=100"], ["bank.size (100)", "at least the global batch (128)"]),
        (["--config.objective.name=conne"], ["objective.name ('conne')", "did you mean 'cone'"]),
        (["--config.objective.cone.neighbours=2000"], ["neighbours (2000)", "bank.size (1024)"]),
        (["--config.objective.cone.sup_temperature=0"], ["sup_temperature (0.0)", "positive"]),
        (["--config.objective.cone.contrast=sup"], ["objective.cone.contrast ('sup')", "sup_in"]),
        (["--config.model.name=resnet81"], ["model.name ('resnet81')", "did you mean"]),
        (["--config.model.stem=cifr"], ["model.stem ('cifr')", "did you mean 'cifar'"]),
        (["--config.model.dtype=float16"], ["model.dtype ('float16')", "bfloat16"]),
        (["--config.data.source=digit"], ["data.source ('digit')", "did you mean 'digits'"]),
        (
            ["--config.data.train_transforms=('flipp',)"],
            ["data.train_transforms", "'flipp'", "closest is flip("],
        ),
        (["--config.data.image_size=9"], ["data.image_size (9)", "8 x 8"]),
        (["--config.data.num_classes=7"], ["data.num_classes (7)", "10"]),
        (["--config.data.stage=gs://b/x"], ["data.stage (gs://b/x)", "must be a local folder"]),
        (["--config=gs://b/mine.py"], ["--config (gs://b/mine.py)", "must be a local file"]),
        (
            ["--mode=sweep", "--sweep=s3://b/mine.py"],
            ["--sweep (s3://b/mine.py)", "must be a local file"],
        ),
        (["--config.data.mean=(0.5,)"], ["data.mean", "three values"]),
        (["--config.batch_size=0"], ["batch_size (0)", "at least 1"]),
        (["--config.batch_size=2000", "--config.bank.size=4096"], ["batch_size (2000)", "1437"]),
        (["--config.epochs=0"], ["epochs (0)", "positive"]),
        (["--config.ema.momentum=1.5"], ["ema.momentum (1.5)", "between 0.0 and 1.0"]),
        (["--config.optimizer.name=adamm"], ["optimizer.name ('adamm')", "did you mean 'adamw'"]),
        (["--config.optimizer.learning_rate=nan"], ["optimizer.learning_rate (nan)", "at least 0"]),
        (["--config.schedule.unit=day"], ["schedule.unit ('day')", "epoch, step"]),
        (["--config.seed=-1"], ["seed (-1)", "between 0"]),
        (
            ["--config=configs/digit.py"],
            ["--config (configs/digit.py)", "not a file", "did you mean 'configs/digits.py'"],
        ),
        (["--config=configs/digits.py:papper"], ["'papper'", "did you mean 'paper'"]),
        (["--config=Makefile"], ["Makefile", "Python file"]),
        (["--mode=trian"], ["--mode ('trian')", "did you mean 'train'"]),
        (["--wrkdir=x"], ["--wrkdir", "did you mean 'workdir'"]),
        (["x"], ["'x'", "--name=value"]),
        (["--mode=evaluate", "--workdir=no/such"], ["no/such", "config.json"]),
        (["--mode=report", "--coordinator=h:1"], ["--mode=report takes one process", "alone"]),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(refusal, tmp_path, arguments, parts):
    if not any(argument.startswith("--workdir") for argument in arguments):
        arguments = [f"--workdir={tmp_path / 'run'}", *arguments]
    captured = refusal(arguments)
    assert captured.out == ""
    for part in parts:
        assert part in captured.err
    assert not (tmp_path / "run").exists()


def test_help_lists_modes_and_flags(main, capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for word in ("train", "evaluate", "--config", "--workdir", "MODE --help", "runs/<recipe>"):
        assert word in text
    assert len(text.splitlines()) < 48  # a screen


@pytest.mark.parametrize("name", modes.MODES)
def test_the_help_of_a_mode_names_the_flags_it_reads_and_a_command(name, main, capsys, monkeypatch):
    """The flags against the sources: what the mode's file, or one it calls, looks up."""
    monkeypatch.chdir(ROOT)
    assert main([name, "--help"]) == 0
    text = capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["main.py"])
    assert main([f"--mode={name}", "--help"]) == 0
    assert text.splitlines()[0] == capsys.readouterr().out.splitlines()[0]
    assert (ROOT / modes.MODES[name].page).is_file()
    assert all(len(line) <= 100 for line in text.splitlines())
    given = command_line.parse([name, *modes.MODES[name].example.split()], modes.MODES)
    changed = {each for each, value in given.flags.items() if value != command_line.FLAGS[each][0]}
    assert changed <= set(modes.MODES[name].flags)
    assert "--config.FIELD=VALUE" in text
    for flag in (*changed, *modes.MODES[name].flags):
        assert f"\n  --{flag} " in text


def test_every_flag_belongs_to_a_mode():
    """And each mode that reads one through its own file says so."""
    processes = {"coordinator", "num_processes", "process_id"}
    named = {flag for mode in modes.MODES.values() for flag in mode.flags}
    assert named | processes == set(command_line.FLAGS)
    for name, mode in modes.MODES.items():
        function = inspect.getsource(mode.run)
        read = set(re.findall(r'flags\["(\w+)"\]', function))
        read |= {f for f in ("output", "workdirs") if f"arguments.{f}" in function}
        assert read <= set(mode.flags), name


def test_help_says_what_a_flag_means_in_this_mode(main, capsys):
    for mode, flag, meaning in (
        ("weights", "--model", "any part of a name"),
        ("predict", "--model", "weights instead of a run"),
    ):
        assert main([mode, "--help"]) == 0
        assert re.search(rf"{flag} +{meaning}", capsys.readouterr().out), mode


def test_help_may_be_cut_short():
    """As by ``| head``: no traceback where nobody reads on."""
    command = [sys.executable, "main.py", "--help"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe) as program:
        program.stdout.close()
        assert program.stderr.read() == b""
    assert program.returncode == 0


def test_workdir_is_named_after_the_recipe(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert command_line.parse([], MODES).workdir == Path("runs/digits")
    arguments = command_line.parse(["--config", "configs/digits.py:cross_entropy,paper"], MODES)
    assert arguments.workdir == Path("runs/digits-cross_entropy-paper")
    assert arguments.config.objective.name == "cross_entropy"
    assert not arguments.config.model.projection


@pytest.mark.parametrize("flags", [(), ("--mode=evaluate",), ("-mode", "evaluate")])
def test_the_first_word_is_a_short_form_of_the_mode(flags):
    given = command_line.parse(["evaluate", "--workdir=here", *flags], MODES)
    assert given == command_line.parse(["--mode=evaluate", "--workdir=here"], MODES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evalute"], "mode ('evalute') is unknown; did you mean 'evaluate'? Valid: "),
        (["evaluate", "--mode=train"], "mode ('evaluate') and --mode ('train') differ; give one"),
        (["evaluate", "train"], "argument ('train') is not understood; flags are --name=value"),
    ],
)
def test_a_first_word_that_does_not_fit_is_refused(refusal, arguments, message):
    assert message in refusal(arguments).err


@pytest.mark.parametrize(
    ("started", "words"),
    [
        ("/usr/bin/cone", "cone"),
        ("main.py", "python main.py"),
        ("/x/cone_jax/__main__.py", "python -m cone_jax"),
        ("/x/notebook.py", "python -m cone_jax"),
    ],
)
def test_hints_say_the_command_that_the_user_used(main, monkeypatch, capsys, started, words):
    monkeypatch.setattr(sys, "argv", [started, "--help"])
    assert main(["--help"]) == 0
    assert f"  {words} evaluate --workdir=runs/digits --step=best\n" in capsys.readouterr().out
    assert tfds.prepare_command("dtd", "").startswith(f"{words} --mode=prepare ")


def test_overrides_keep_their_type(monkeypatch):
    monkeypatch.chdir(ROOT)
    config = command_line.parse(
        ["--config.optimizer.learning_rate=1", "--config.data.train_transforms=('flip',)"], MODES
    ).config
    assert config.optimizer.learning_rate == 1.0
    assert isinstance(config.optimizer.learning_rate, float)
    assert config.data.train_transforms == ("flip",)


def test_a_recipe_without_get_config_is_refused(tmp_path):
    path = tmp_path / "recipe.py"
    path.write_text("x = 1\n")
    with pytest.raises(UserError, match="must define get_config"):
        command_line.load_recipe(str(path))


def test_train_then_evaluate_as_a_user_would(tmp_path):
    """In a process of its own, on the machine's own devices, without TensorFlow."""
    run = tmp_path / "run"
    program = (
        "import sys, main; code = main.main(sys.argv[1:]); "
        "assert 'tensorflow' not in sys.modules; sys.exit(code)"
    )

    def call(*arguments):
        return subprocess.run(
            [sys.executable, "-W", "error", "-c", program, f"--workdir={run}", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
        )

    trained = call(*TINY)
    assert trained.returncode == 0, trained.stderr
    assert trained.stderr == ""
    for text in ("test top-1", "images/s", "eta", "--mode=evaluate"):
        assert text in trained.stdout
    ends = trained.stdout.partition("finished at step")[2]
    for name in ("top-1", "top-5"):
        assert re.search(rf"test {name} +[\d.]+% \([\d.]+ to [\d.]+%\)", ends)
    total, parts = re.search(r"parameters: ([\d,]+) \((.*)\)", trained.stdout).groups()
    counts = dict(re.findall(r"(\w+) ([\d,]+)", parts))
    assert counts.keys() == {"backbone", "projection", "classifier"}
    in_all = sum(int(count.replace(",", "")) for count in counts.values())
    assert in_all == int(total.replace(",", ""))
    assert {"config.json", "metrics.jsonl", "checkpoints"} <= {path.name for path in run.iterdir()}
    assert workdir.load_config(run).bank.size == 64

    scored = call("--mode=evaluate", "--step=best")
    assert scored.returncode == 0, scored.stderr
    assert "360" in scored.stdout
    for name in ("top1", "top5"):
        assert re.search(rf"{name}, 95% interval +[\d.]+ to [\d.]+%", scored.stdout)
    assert (run / "evaluation.json").exists()


def test_fast_convolutions_never_override_the_user(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_experimental_ynn_fusion_type=mine")
    runtime.use_fast_cpu_convolutions()
    assert runtime.os.environ["XLA_FLAGS"] == "--xla_cpu_experimental_ynn_fusion_type=mine"
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=x")
    runtime.use_fast_cpu_convolutions()
    assert runtime.os.environ["XLA_FLAGS"].startswith("--xla_dump_to=x --xla_cpu_experimental")


def test_compiled_programs_are_kept_in_the_users_cache_directory(tmp_path):
    program = (
        "from cone_jax import runtime; runtime.use_compilation_cache()\n"
        "import jax; jax.jit(lambda x: x + 1)(1.0)"
    )
    always = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    environment = {**os.environ, **always, "XDG_CACHE_HOME": str(tmp_path / "user")}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)  # the tests' own
    for chosen in ({}, {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "mine")}):
        subprocess.run(
            [sys.executable, "-c", program], env=environment | chosen, cwd=ROOT, check=True
        )
        directory = tmp_path / ("mine" if chosen else "user/cone_jax/xla")
        assert any(directory.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="the C library of other systems differs")
@pytest.mark.parametrize("user", [{}, {"MALLOC_ARENA_MAX": "2"}])
def test_memory_is_fetched_from_the_system_once_unless_the_user_says_otherwise(user):
    """Of two equal arrays, one after the other, the second needs no new pages."""
    program = (
        "import resource; from cone_jax import runtime; runtime.ACCELERATOR_PACKAGES = ();"
        "runtime.MEMORY_TO_SPARE = 0; runtime.keep_freed_memory(); import numpy as np\n"
        "def faults():\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    np.ones(10**7)\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before\n"
        "print(faults(), faults())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **user},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    first, second = map(int, done.stdout.split())
    assert second < 100 or (user and second > first / 2)


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/\n", {"memory.max": "8589934592"}, 2**33),
        ("0::/a/b\n", {"a/memory.max": "1024", "a/b/memory.max": "max"}, 1024),
        ("5:cpu,memory:/x\n", {"memory/x/memory.limit_in_bytes": "4096"}, 4096),
        ("0::/\n", {"memory.max": "max"}, 2**63),
        ("", {}, 2**63),
    ],
)
def test_memory_is_what_a_container_may_have(groups, files, limit, tmp_path):
    for name, text in files.items():
        file = tmp_path / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    own = tmp_path / "own"
    own.write_text(groups)
    assert min(runtime._container_limits(own, tmp_path / "cgroup")) == limit


@pytest.mark.parametrize("megabytes", [200, 600])
def test_the_end_of_a_run_tells_the_memory_that_it_took(megabytes):
    """Also in a process that a larger one has started, as this one has."""
    large = np.ones(10**8)  # 800 MB here
    program = (
        "import numpy as np; from pathlib import Path; from rich.console import Console\n"
        "from cone_jax import console\n"
        f"np.ones({megabytes} * 2**17)\n"
        "console.print_training(Console(), {'step': 1}, {}, 1.0, Path('run'))"
    )
    command = [sys.executable, "-c", program]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    told = float(re.search(r"memory +([\d.]+) MiB", said)[1])
    assert megabytes < told < megabytes + 150
    assert large.nbytes == 8 * 10**8


def test_a_field_given_as_a_flag_is_named():
    with pytest.raises(UserError, match=r"--epochs is not a flag; did you mean --config.epochs=V"):
        command_line.parse(["--epochs=10"], MODES)


def test_commands_to_copy_are_quoted(tmp_path, capsys):
    console.print_training(Console(width=300), {"step": 1}, {}, 1.0, tmp_path / "my beasts")
    said = capsys.readouterr().out
    assert f"--mode=evaluate '--workdir={tmp_path}/my beasts' --step=best" in said


def test_what_may_not_be_read_is_one_line(refusal, monkeypatch):
    def denied(*_):
        raise PermissionError(errno.EACCES, "permission denied (no right to)", "gs://bucket/file")

    mode = modes.MODES["evaluate"]._replace(run=denied)
    monkeypatch.setitem(modes.MODES, "evaluate", mode)
    said = refusal(["evaluate"]).err
    assert "gs://bucket/file cannot be used: permission denied (no right to)" in said
