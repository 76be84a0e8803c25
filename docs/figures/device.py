"""What one device holds of the state, for ResNet-50 on ImageNet: counted from its shapes."""

import math

import jax

import cone_jax
from cone_jax import memory_bank, models
from docs.figures.drawing import Drawing

DEVICES = 8
PARTS = (
    ("parameters", "blue"),
    ("optimiser", "pink"),
    ("momentum network", "green"),
    ("bank: embeddings", "yellow"),
    ("bank: predictions", "orange"),
)


def mebibytes(tree: object) -> float:
    leaves = jax.tree.leaves(tree)
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves) / 2**20


def forms() -> dict[str, list[float]]:
    """MiB of each part on one of eight devices, by how the state is kept."""
    config = cone_jax.load_recipe("imagenet", "resnet50")
    head = models.Projection(dim=config.model.embedding_dim)
    encoder = models.create(config.model.name, 1000, projection=head)
    variables = models.abstract_variables(encoder, config.data.image_size)
    network = mebibytes(variables["params"])

    def bank(dtype: str = "float32", classes: int = 1000) -> list[float]:
        made = jax.eval_shape(
            lambda: memory_bank.init(config.bank.size, config.model.embedding_dim, classes, dtype)
        )
        return [mebibytes(made.features), mebibytes(made.probs)]

    whole = [network, network, network]
    return {
        "as the recipe has it": [*whole, *bank()],
        "bank.probs_dtype=bfloat16": [*whole, *bank("bfloat16")],
        "bank.probs=recomputed": [*whole, *bank(classes=0)],
        "bank.sharding=sharded": [*whole, *(part / DEVICES for part in bank())],
        "… and model.sharding=sharded": [part / DEVICES for part in (*whole, *bank())],
    }


def draw() -> str:
    found = forms()
    drawing = Drawing("device", 820, 300)
    scale = 500 / sum(next(iter(found.values())))
    for index, (name, sizes) in enumerate(found.items()):
        y, x = 18 + 44 * index, 236.0
        drawing.text(228, y + 18, name, size=12.5, anchor="end")
        for (_, colour), size in zip(PARTS, sizes, strict=True):
            drawing.box(x, y, max(size * scale - 1, 0), 28, colour, rx=2.0)
            if size * scale > 36:
                middle = x + size * scale / 2
                drawing.text(middle, y + 18, f"{size:.0f}", "paper", 12, anchor="middle")
            x += size * scale
        drawing.text(x + 6, y + 18, f"{sum(sizes):.0f} MiB", "muted", 12.5)
    for index, (name, colour) in enumerate(PARTS):
        x = 40 + 156 * index
        drawing.box(x, 252, 12, 12, colour, rx=2.0)
        drawing.text(x + 18, 262, name, "muted", 12.5)
    return drawing.file()
