"""Momentum of the key network: 4 cells.

    python main.py --mode=sweep --sweep=configs/sweeps/momentum.py --config.data.path=DATA_DIR
    python main.py --mode=sweep --sweep=configs/sweeps/momentum.py:digits

A ResNet-50 on ImageNet for 100 epochs in each cell, or a small network on digits. As in the
released code (`ema.schedule = official_auto`), 0.999 stays constant while the others rise to 1;
whether the paper's table was made so is not stated. With `:digits,3seeds` each cell is trained
three times.
"""

from cone_jax.sweeps import Axis, Sweep, paper_grid

MOMENTA = Axis("m", "ema.momentum", (0.98, 0.99, 0.996, 0.999))


def get_sweep(options: str = "") -> Sweep:
    return paper_grid(options, "Momentum of the key network", "momentum", MOMENTA)
