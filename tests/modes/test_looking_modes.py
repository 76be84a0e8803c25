"""The modes that look at runs, from the command line to the files."""

import functools
import json
import re
import sys
from pathlib import Path

import pytest

from cone_jax import workdir
from cone_jax.modes import command_line
from cone_jax.modes.command_line import Arguments
from cone_jax.sweeps import runner
from cone_jax.workdir.metrics import METRICS_FILE
from tests.analysis.test_run_comparison import make_run

ROOT = Path(__file__).parent.parent.parent

SWEEP = """
from cone_jax.sweeps import Cell, Sweep

def get_sweep(options=""):
    return Sweep(
        title="Tiny",
        base="configs/digits.py",
        size={"steps": 1, "batch_size": 16, "model.options.width": 2},
        cells=(Cell("plain", options="cross_entropy", paper=76.9),),
        row_name="objective",
    )
"""


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.fixture
def two_runs(tmp_path):
    return [
        make_run(tmp_path / name, name, top1=top1).path
        for name, top1 in (("cone", 0.9), ("cross_entropy", 0.8))
    ]


def parse(*argv) -> Arguments:
    return command_line.parse(list(argv), {"sweep": "", "compare": "", "analyze": "", "train": ""})


def test_compare_prints_and_writes(main, two_runs, tmp_path, capsys):
    named = ",".join(map(str, two_runs))
    assert main(["--mode=compare", f"--workdirs={named}", f"--workdir={tmp_path}/out"]) == 0
    printed = capsys.readouterr().out
    assert "90.00%" in printed
    assert "80.00%" in printed
    assert re.search(r"run +cone +cross_entropy\s", printed)  # whole, also in 80 columns
    assert (tmp_path / "out" / "comparison.html").exists()


def test_report_of_a_run_without_a_checkpoint(main, two_runs, capsys):
    assert main(["--mode=report", f"--workdir={two_runs[0]}"]) == 0
    assert "report.html" in capsys.readouterr().out
    assert "has no checkpoint" in (two_runs[0] / "report.html").read_text()


def test_analyze_draws_what_is_recorded(main, two_runs, capsys):
    records = [{"step": s, "train/purity": s / 10} for s in (1, 2)]
    (two_runs[0] / METRICS_FILE).write_text("".join(json.dumps(r) + "\n" for r in records))
    assert main(["--mode=analyze", f"--workdir={two_runs[0]}"]) == 0
    names = {path.name for path in (two_runs[0] / "figures").iterdir()}
    assert names == {"neighbour_purity.png", "neighbour_purity.svg"}
    assert "neighbour_purity.svg" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--mode=compare"], ["--workdirs", "two runs or more"]),
        (["--mode=compare", "--workdirs=a,b"], ["(a)", "config.json"]),
        (["--mode=report", "--workdir=no/such"], ["no/such", "config.json"]),
        (["--mode=sweep"], ["--sweep", "configs/sweeps/"]),
        (["--mode=sweep", "--sweep=configs/sweeps/x.py"], ["configs/sweeps/x.py", "not a file"]),
        (["--mode=sweep", "--sweep=configs/sweeps/momentum.py:digts"], ["digts", "digits"]),
        (
            ["--mode=sweep", "--sweep=configs/sweeps/momentum.py:digits", "--jobs=0"],
            ["--jobs (0)", "from 1"],
        ),
        (
            ["--mode=sweep", "--sweep=configs/sweeps/momentum.py", "--config.bank.sizee=1"],
            ["bank.sizee", "did you mean 'size'"],
        ),
        (
            [
                "--mode=sweep",
                "--sweep=configs/sweeps/bank_size.py:digits",
                "--config.batch_size=999",
            ],
            ["bank.size (128)", "999"],
        ),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(refusal, tmp_path, arguments, parts):
    if not any(argument.startswith("--workdir=") for argument in arguments):
        arguments = [*arguments, f"--workdir={tmp_path / 'run'}"]
    captured = refusal(arguments)
    assert captured.out == ""
    for part in parts:
        assert part in captured.err
    assert not (tmp_path / "run").exists()


def test_nothing_to_draw_is_said(main, two_runs, capsys):
    (two_runs[1] / METRICS_FILE).write_text("")
    assert main(["--mode=analyze", f"--workdir={two_runs[1]}"]) == 2
    assert "nothing recorded to draw" in capsys.readouterr().err


def test_the_recipe_of_a_sweep_is_the_recipe(tmp_path):
    arguments = parse("--mode=sweep", "--sweep=configs/sweeps/momentum.py:digits,3seeds")
    assert arguments.recipe == "configs/digits.py"
    assert arguments.config.data.source == "digits"
    assert arguments.workdir == Path("runs/sweeps/momentum-digits-3seeds")
    arguments = parse(
        "--mode=sweep",
        "--sweep=configs/sweeps/momentum.py",
        "--config=configs/cifar.py:10",
        "--config.epochs=7",
    )
    assert (arguments.recipe, arguments.config.epochs) == ("configs/cifar.py:10", 7)
    assert parse("--mode=compare", "--workdirs=a, b").workdirs == (Path("a"), Path("b"))
    assert parse("--mode=compare", "--workdirs=a,b").workdir == Path("runs/compare")


def test_a_sweep_fills_its_table_once(main, tmp_path, capsys, monkeypatch):
    """A program stands for training; the real one is tested in tests/sweeps."""
    program = "import sys; open(sys.argv[1] + '/result.json', 'w').write('{\"test/top1\": 0.5}')"
    command = (sys.executable, "-c", program)
    monkeypatch.setattr(runner, "carry_out", functools.partial(runner.carry_out, command=command))
    (tmp_path / "sweep.py").write_text(SWEEP)
    sweep, runs = f"--sweep={tmp_path / 'sweep.py'}", f"--workdir={tmp_path / 'runs'}"
    arguments = ["--mode=sweep", sweep, runs, "--config.epochs=7", "--jobs=2"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "[1/1] plain finished" in printed
    assert "| plain | 50.00 | 76.9 |" in printed
    assert (tmp_path / "runs" / "table.png").exists()
    config = workdir.load_config(tmp_path / "runs" / "plain")
    assert (config.steps, config.epochs, config.objective.name) == (1, 7, "cross_entropy")
    assert main(arguments) == 0
    assert "1 of 1 runs are finished already" in capsys.readouterr().out


def test_failed_runs_are_exit_code_1_and_the_table_is_written(main, tmp_path, capsys, monkeypatch):
    (tmp_path / "sweep.py").write_text(SWEEP)
    sweep, runs = f"--sweep={tmp_path / 'sweep.py'}", f"--workdir={tmp_path / 'runs'}"

    def fail(planned, **options):
        planned[0].directory.mkdir(parents=True)
        return ["plain: the loss is nan"]

    monkeypatch.setattr(runner, "carry_out", fail)
    assert main(["--mode=sweep", sweep, runs]) == 1
    captured = capsys.readouterr()
    assert captured.err == "failed: 1 of 1 runs; the first was plain: the loss is nan\n"
    assert "| plain | – | 76.9 |" in (tmp_path / "runs" / "table.md").read_text()
