"""The loop that the documentation shows."""

from examples import own_loop


def test_it_learns_digits(capsys):
    assert own_loop.train(steps=200) > 0.95
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("step 100: loss")
    assert second.startswith("step 200: loss")
