"""With and without a contrastive view among the anchors, for four augmentations: 8 cells.

    python main.py --mode=sweep --sweep=configs/sweeps/contrastive_view.py \\
        --config.data.path=DATA_DIR
    python main.py --mode=sweep --sweep=configs/sweeps/contrastive_view.py:digits

Two views of each picture, the first for the query, the second for the key, no L_dc. A ResNet-50 on
ImageNet for 100 epochs in each cell; or a small network on digits, with crops by a pixel and no
mirroring. Design choices, which the paper leaves open: the own key is one more anchor, and the
strengths of `cone_jax/data/transforms/recipes.py`. With `:digits,3seeds` each cell is trained three
times.
"""

from collections.abc import Mapping

from cone_jax.data.transforms import recipes
from cone_jax.sweeps import Cell, Sweep, paper_sweep

AUGMENTATIONS = {
    "Standard": recipes.standard(),
    "AutoAug": recipes.auto_augment(),
    "RandAug": recipes.rand_augment(),
    "SimCLR": recipes.simclr(),
}
_SHIFT = "random_crop(8, padding=1)"
# The operations after crop and flip, on digits.
DIGITS_AUGMENTATIONS = {
    name: (_SHIFT, *specs[len(recipes.standard()) :]) for name, specs in AUGMENTATIONS.items()
}


def get_sweep(options: str = "") -> Sweep:
    return paper_sweep(
        options,
        title="Contrastive view among the anchors, without L_dc",
        table="contra_view",
        cells=_cells(AUGMENTATIONS),
        digits_cells=_cells(DIGITS_AUGMENTATIONS),
        row_name="contrastive view",
        column_name="augmentation",
    )


def _cells(augmentations: Mapping[str, tuple[str, ...]]) -> tuple[Cell, ...]:
    return tuple(
        Cell(row, column, options, {"data.views": 2, "data.train_transforms": specs})
        for column, specs in augmentations.items()
        for row, options in (("with", "no_dc,contrastive_view"), ("without", "no_dc"))
    )
