"""The size K of the memory bank: 4 cells.

    python main.py --mode=sweep --sweep=configs/sweeps/bank_size.py --config.data.path=DATA_DIR
    python main.py --mode=sweep --sweep=configs/sweeps/bank_size.py:digits

A ResNet-50 on ImageNet for 100 epochs in each cell; or a small network on digits, with a 128th of
each K. At 262,144 rows the bank takes 1.3 GB on each device; `--config.bank.probs_dtype=bfloat16`
makes that 0.8. With `:digits,3seeds` each cell is trained three times.
"""

from cone_jax.sweeps import Axis, Sweep, paper_grid

SIZES = Axis("K", "bank.size", (16384, 65536, 131072, 262144))
DIGITS_SIZES = Axis(
    "K",
    "bank.size",
    (128, 512, 1024, 2048),
    ("128 for 16384", "512 for 65536", "1024 for 131072", "2048 for 262144"),
)


def get_sweep(options: str = "") -> Sweep:
    title = "Size of the memory bank"
    return paper_grid(options, title, "bank", SIZES, digits_rows=DIGITS_SIZES)
