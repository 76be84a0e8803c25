"""Augmentation on the host, image by image: named in a config, exact in its pixels, repeatable.

    pipeline = transforms.parse(("random_resized_crop(224, scale=(0.08, 1))", "flip"))
    array = pipeline(decode.open_image(data), rng)          # uint8 [224, 224, 3]

`parsing.OPERATIONS` lists the operations, `recipes` the combinations that papers use.
"""

from cone_jax.data.transforms import recipes
from cone_jax.data.transforms.parsing import Pipeline, parse

__all__ = ["Pipeline", "parse", "recipes"]
