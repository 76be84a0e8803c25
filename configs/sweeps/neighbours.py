"""The number of neighbours N in the contrastive term: 4 cells.

    python main.py --mode=sweep --sweep=configs/sweeps/neighbours.py --config.data.path=DATA_DIR
    python main.py --mode=sweep --sweep=configs/sweeps/neighbours.py:digits

A ResNet-50 on ImageNet for 100 epochs in each cell, with a bank of 65,536; or a small network on
digits, with a bank of 1,024 and a sixteenth of each N. With `:digits,3seeds` each cell is trained
three times.
"""

from cone_jax.sweeps import Axis, Sweep, paper_grid

FIELD = "objective.cone.neighbours"
NEIGHBOURS = Axis("N", FIELD, (128, 256, 512, 1024))
DIGITS_NEIGHBOURS = Axis(
    "N", FIELD, (8, 16, 32, 64), ("8 for 128", "16 for 256", "32 for 512", "64 for 1024")
)


def get_sweep(options: str = "") -> Sweep:
    title = "Number of neighbours"
    return paper_grid(options, title, "topN", NEIGHBOURS, digits_rows=DIGITS_NEIGHBOURS)
