"""CoNe beside other methods that look for neighbours in a bank: 5 cells.

    python main.py --mode=sweep --sweep=configs/sweeps/neighbour_methods.py \\
        --config.data.path=DATA_DIR
    python main.py --mode=sweep --sweep=configs/sweeps/neighbour_methods.py:digits

A ResNet-50 on ImageNet for 100 epochs in each cell, or a small network on digits. CMSF alone trains
for 200 epochs and then its linear classifier; that number is the CMSF paper's, not this one's. The
last row is read as CoNe without L_dc, from its value. How the paper built CMSF and NNCLR beside
cross-entropy is not stated: here they have CoNe's bank and key network, one view, and weight 1.
With `:digits,3seeds` each cell is trained three times.
"""

from cone_jax.sweeps import Cell, Sweep, paper_sweep

_TWICE = {"epochs": 200}
_DIGITS_TWICE = {"epochs": 16}


def get_sweep(options: str = "") -> Sweep:
    full, small = _cells(_TWICE), _cells(_DIGITS_TWICE)
    title = "Other methods with neighbours"
    return paper_sweep(
        options, title=title, table="other_nn", row_name="method", cells=full, digits_cells=small
    )


def _cells(twice: dict[str, int]) -> tuple[Cell, ...]:
    return (
        Cell("CE", options="cross_entropy"),
        Cell("CMSF", options="cmsf", settings=twice),
        Cell("CMSF + CE", options="cmsf,with_ce"),
        Cell("NNCLR + CE", options="nnclr,with_ce"),
        Cell("CoNe, no L_dc", options="no_dc"),
    )
