"""Weight and temperature of distributional consistency, L_sup_in at its best: 12 cells.

    python main.py --mode=sweep --sweep=configs/sweeps/dc_weight_temperature.py \\
        --config.data.path=DATA_DIR
    python main.py --mode=sweep --sweep=configs/sweeps/dc_weight_temperature.py:digits

A ResNet-50 on ImageNet for 100 epochs in each cell, or a small network on digits. The recipe's
contrastive term has the paper's weight 0.7 and temperature 0.1. With `:digits,3seeds` each cell is
trained three times.
"""

from cone_jax.sweeps import Axis, Sweep, paper_grid

WEIGHTS = Axis("λ_d", "objective.cone.dc_weight", (0.2, 0.4, 0.6))
TEMPERATURES = Axis("τ_d", "objective.cone.dc_temperature", (0.05, 0.07, 0.1, 0.2))


def get_sweep(options: str = "") -> Sweep:
    title = "Weight and temperature of L_dc"
    return paper_grid(options, title, "sweep_dc", WEIGHTS, TEMPERATURES)
