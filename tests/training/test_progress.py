"""What a person sees: everything promised, on a terminal and in a log file."""

import io

from rich.console import Console

from cone_jax.training.train_log import ProgressDisplay

METRICS = {"loss": 1.5, "loss_ce": 1.0, "loss_sup_in": 0.5, "loss_dc": 0.25, "top1": 0.75, "x": 1}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def show(*, terminal: bool) -> tuple[str, float]:
    clock, output = Clock(), io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=160, highlight=False)
    with ProgressDisplay(
        console, total_steps=40, steps_per_epoch=10, batch_size=64, first_step=0, clock=clock
    ) as display:
        clock.now = 2.0
        display.advance(20)
        rate = display.report(20, METRICS)
    return output.getvalue(), rate


def test_terminal_shows_epoch_step_terms_rate_and_time_left():
    text, rate = show(terminal=True)
    assert rate == 640.0
    for part in ("epoch 3/4", "20/40", "loss 1.500", "sup_in 0.500", "640 images/s", "eta"):
        assert part in text
    assert "x 1" not in text


def test_log_file_gets_plain_lines_with_the_same():
    text, _ = show(terminal=False)
    assert text.startswith("step 20/40 epoch 3/4 640 images/s loss 1.500 ce 1.000")
    assert text.endswith("top1 0.750 eta 2 s\n")
    assert "\x1b" not in text


def test_evaluation_does_not_count_as_training_time():
    clock = Clock()
    console = Console(file=io.StringIO())
    with ProgressDisplay(
        console, total_steps=40, steps_per_epoch=10, batch_size=10, first_step=0, clock=clock
    ) as display:
        clock.now = 100.0
        display.restart_clock(10)
        clock.now = 101.0
        assert display.report(20, METRICS) == 100.0
