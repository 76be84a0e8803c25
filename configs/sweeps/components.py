"""What each part of the method adds: 5 cells.

    python main.py --mode=sweep --sweep=configs/sweeps/components.py --config.data.path=DATA_DIR
    python main.py --mode=sweep --sweep=configs/sweeps/components.py:digits

A ResNet-50 on ImageNet for 100 epochs in each cell, or a small network on digits. The paper's row
with L_sup_out is the best of a search over temperature and weight whose grid is not given, and its
anchors are not stated; here it has the recipe's (`objective.cone.anchors = bank`: every row). With
`:digits,3seeds` each cell is trained three times.
"""

from cone_jax.sweeps import Cell, Sweep, paper_sweep

CELLS = (
    Cell("CE", options="cross_entropy"),
    Cell("CE + head", options="cross_entropy,projection"),
    Cell("CE + head + L_sup_in", options="no_dc"),
    Cell("CE + head + L_sup_out", options="no_dc,sup_out"),
    Cell("CE + head + L_sup_in + L_dc"),
)


def get_sweep(options: str = "") -> Sweep:
    return paper_sweep(
        options,
        title="Components of the method",
        table="effect",
        cells=CELLS,
        row_name="components",
    )
