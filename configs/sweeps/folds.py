"""Cross-validation: every training image is tested once, by a network that has not seen it.

    python main.py --mode=sweep --sweep=folds --config=folder --config.data.path=FOLDER \\
        --config.data.holdout=0

Five runs, each on four fifths of the training images, tested on the rest; the last row is their
mean and the deviation between folds. A folder without a part to test on holds a tenth of its images
out of training, and so out of the folds, unless `data.holdout` is 0. Works with any recipe.
Options: a number of folds, such as `--sweep=folds:10`.
"""

from cone_jax.errors import UserError
from cone_jax.sweeps import Cell, Sweep


def get_sweep(options: str = "") -> Sweep:
    count = int(options) if options.isdecimal() else 5 if not options else 0
    if count < 2:
        raise UserError(f"--sweep=folds:{options}: the option must be a number of folds from 2")
    cells = tuple(
        Cell(f"fold {fold}", settings={"data.folds": count, "data.fold": fold})
        for fold in range(count)
    )
    return Sweep(
        title=f"{count} folds",
        base="folder",
        cells=cells,
        row_name="tested on",
        mean_row="mean",
    )
