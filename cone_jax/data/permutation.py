"""A pseudo-random permutation of the records of an epoch: Grain's `index_shuffle`.

Grain walks through a block cipher (Simon, four rounds) until it meets a number below the count.
Its block has 16 bits at the least: of a thousand records each takes some sixty steps, which is
more work than all that is done to a digit of 8x8 pixels, and no other thread runs meanwhile. Up to
65,536 records the whole permutation is therefore made at once, in NumPy, within a millisecond or
two. Above that Grain computes number by number, and nothing is stored. Both are the same
permutation.
"""

import functools

import numpy as np
from grain.experimental import index_shuffle

_ROUNDS = 4  # what Grain's own shuffle uses
TABLE_LIMIT = 1 << 16  # the records of the smallest block
_BITS_32 = 0xFFFFFFFF


def permuted(index: int, count: int, seed: int) -> int:
    """The number at position `index` of the permutation of ``range(count)`` that `seed` names.

    >>> sorted(permuted(index, 5, seed=1) for index in range(5))
    [0, 1, 2, 3, 4]
    """
    if count <= TABLE_LIMIT:
        return int(_table(count, seed)[index])
    return index_shuffle(index, max_index=count - 1, seed=seed, rounds=_ROUNDS)


@functools.lru_cache(maxsize=4)  # threads that read ahead work on two epochs at the most
def _table(count: int, seed: int) -> np.ndarray:
    """All of the permutation, [count]."""
    block = np.arange(TABLE_LIMIT)
    left, right = (block >> 8).astype(np.uint8), block.astype(np.uint8)
    keys = [np.uint8(key & 0xFF) for key in _round_keys(seed)]
    for first, second in zip(keys[::2], keys[1::2], strict=True):
        left ^= _round(right) ^ first
        right ^= _round(left) ^ second
    following = left.astype(np.int64) << 8 | right
    # Number by number a walk may take thousands of steps. `ahead` doubles its stride each time,
    # and stays where it is once it is below the count.
    numbers, ahead = following[:count], np.where(block < count, block, following)
    while numbers.max() >= count:
        numbers, ahead = ahead[numbers], ahead[ahead]
    return numbers


def _round(half: np.ndarray) -> np.ndarray:
    """Simon's round function; in a word of 8 bits its rotation by 8 leaves the word as it is."""
    once = half << 1 | half >> 7
    twice = half << 2 | half >> 6
    return once & half ^ twice


def _round_keys(seed: int) -> list[int]:
    """The first four words that C++'s ``std::seed_seq{seed}`` generates, [rand.util.seedseq]."""
    words = [0x8B8B8B8B] * 4
    for k in range(4):
        after, opposite = (k + 1) % 4, (k + 2) % 4
        word = _scrambled(words[k] ^ words[after] ^ words[k - 1], 1664525)
        added = word + (1, 1 + seed, 2, 3)[k] & _BITS_32
        words[after] = words[after] + word & _BITS_32
        words[opposite] = words[opposite] + added & _BITS_32
        words[k] = added
    for k in range(4):
        after, opposite = (k + 1) % 4, (k + 2) % 4
        word = _scrambled(words[k] + words[after] + words[k - 1] & _BITS_32, 1566083941)
        words[after] ^= word
        words[opposite] ^= word - k & _BITS_32
        words[k] = word - k & _BITS_32
    return words


def _scrambled(value: int, factor: int) -> int:
    return factor * (value ^ value >> 27) & _BITS_32
