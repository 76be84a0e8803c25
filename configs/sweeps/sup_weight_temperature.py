"""Weight and temperature of the contrastive term, without L_dc: 12 cells.

    python main.py --mode=sweep --sweep=configs/sweeps/sup_weight_temperature.py \\
        --config.data.path=DATA_DIR
    python main.py --mode=sweep --sweep=configs/sweeps/sup_weight_temperature.py:digits

A ResNet-50 on ImageNet for 100 epochs in each cell, or a small network on digits. With
`:digits,3seeds` each cell is trained three times: one seed does not resolve a tenth of a percent.
"""

from cone_jax.sweeps import Axis, Sweep, paper_grid

WEIGHTS = Axis("λ_s", "objective.cone.sup_weight", (0.3, 0.7, 1.0))
TEMPERATURES = Axis("τ_s", "objective.cone.sup_temperature", (0.05, 0.07, 0.1, 0.2))


def get_sweep(options: str = "") -> Sweep:
    title = "Weight and temperature of L_sup_in, without L_dc"
    return paper_grid(options, title, "sweep_sup", WEIGHTS, TEMPERATURES, recipe_options="no_dc")
