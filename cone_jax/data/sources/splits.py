"""What parts of a data set are called on disk, and which images form a hold-out.

Folders and files name the same part differently (``val``, ``valid``, ``validation``); many data
sets come without a part to test on. Both are settled here, once for all sources.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Literal

from cone_jax.errors import UserError

Part = Literal["train", "held-out"]

_TRAIN = ("train", "training")
_VALIDATION = ("validation", "val", "valid")
_TEST = ("test", "testing")


def part(split: str) -> Part:
    """Whether `split` names the images to train on or images held out from training.

    >>> part("train"), part("val")
    ('train', 'held-out')
    """
    if split.lower() in _TRAIN:
        return "train"
    if split.lower() in _VALIDATION + _TEST:
        return "held-out"
    known = ", ".join(_TRAIN + _VALIDATION + _TEST)
    raise UserError(
        f"data.train_split or data.test_split ({split!r}) is not a part of this data set; known "
        f"names: {known}"
    )


def match(split: str, present: Iterable[str]) -> str | None:
    """The name in `present` that stands for `split`, or None. Case does not matter.

    The name itself wins, then another spelling of it. A data set with only one held-out part is
    tested on that part, whether it is called validation or test.

    >>> match("test", ["train", "val"]), match("val", ["Train", "Validation", "test"])
    ('val', 'Validation')
    """
    wanted = split.lower()
    groups: list[tuple[str, ...]] = [(wanted,)]
    if wanted in _TRAIN:
        groups += [_TRAIN]
    elif wanted in _VALIDATION:
        groups += [_VALIDATION, _TEST]
    elif wanted in _TEST:
        groups += [_TEST, _VALIDATION]
    spelt = {name.lower(): name for name in sorted(present, reverse=True)}
    return next((spelt[name] for group in groups for name in group if name in spelt), None)


def check_holdout(holdout: float, split: str, where: str) -> None:
    """Refuses a fraction that leaves nothing to train on, or nothing to test on when asked to."""
    if not 0.0 <= holdout < 1.0:
        raise UserError(f"data.holdout ({holdout}) must be at least 0 and less than 1")
    if holdout == 0.0 and part(split) == "held-out":
        raise UserError(
            f"{where} has no part to test on and data.holdout is 0; "
            "set data.holdout (such as 0.1) or add a test folder"
        )


def held_out(keys: Sequence[bytes], fraction: float, seed: int) -> set[int]:
    """Positions in `keys` of the images of one class that are held out.

    The number is `fraction` of the class, at least one, and never all of it: one image alone is
    for training. Which ones follows from a hash of (seed, key), so images added to the
    class later move at most a few of the others, and other classes not at all.
    """
    if fraction == 0.0 or len(keys) < 2:
        return set()
    count = min(len(keys) - 1, max(1, int(fraction * len(keys) + 0.5)))
    salt = seed.to_bytes(8, "little", signed=True)

    def rank(position: int) -> tuple[bytes, bytes]:
        key = keys[position]
        return hashlib.blake2b(key, digest_size=8, key=salt).digest(), key

    return set(sorted(range(len(keys)), key=rank)[:count])
