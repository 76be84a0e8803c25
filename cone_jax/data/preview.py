"""A sheet of training samples as the network will see them, with their class names.

Wrong labels, crops that miss the object and augmentations gone wild are seen in a second here,
and in a week of training otherwise.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from cone_jax import atomic_file
from cone_jax.data import datasets
from cone_jax.data.contact_sheet import contact_sheet
from cone_jax.errors import UserError


def write_training_samples(
    config: ConfigDict, path: str | os.PathLike[str], limit: int = 64
) -> Path:
    """Writes the first `limit` samples that training with `config` will see. Returns the path."""
    source = datasets.open_split(config.data, config.data.train_split)
    config = config.copy_and_resolve_references()
    # The order of samples does not depend on how they are batched.
    config.batch_size = min(limit, len(source))
    batch = datasets.train_batches(config, source, num_steps=1)[0]
    return write(path, batch["image"], [source.class_names[label] for label in batch["label"]])


def write(path: str | os.PathLike[str], images: np.ndarray, captions: Sequence[str]) -> Path:
    """Writes the contact sheet of a batch as a PNG file; returns its path."""
    target = Path(path).expanduser()
    sheet = contact_sheet(images, captions)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file.replacing(target) as file:
            sheet.save(file, "PNG")
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}") from error
    return target
