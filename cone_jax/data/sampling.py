"""The order of training when rare classes are to be seen more often than they occur.

An epoch still has as many samples as there are records. How many of them a class gets is
proportional to its number of records to the power 0 (``balanced``: all the same) or 1/2 (``sqrt``).
Inside a class every record comes as often as any other, give or take one. All of it is a function
of (seed, epoch), so a run resumes anywhere and the number of processes changes nothing.
"""

import dataclasses
import functools

import numpy as np

from cone_jax.data.pipeline import Draw, TrainOrder

POWERS = {"balanced": 0.0, "sqrt": 0.5}


@dataclasses.dataclass(frozen=True, eq=False)
class SampledOrder(TrainOrder):
    """`TrainOrder` with the classes in other proportions.

    >>> labels = np.array([0, 0, 0, 0, 0, 1])
    >>> order = SampledOrder(6, 2, seed=0, labels=labels, sampling="balanced")
    >>> sorted(labels[order[position].record].item() for position in range(6))
    [0, 0, 0, 1, 1, 1]
    """

    labels: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    sampling: str = "balanced"

    def __getitem__(self, position: int) -> Draw:
        epoch, index = divmod(position, self.epoch_length)
        records, repeats = self._drawn(epoch)
        return Draw(int(records[index]), epoch, int(repeats[index]))

    @functools.cached_property
    def _classes(self) -> list[np.ndarray]:
        """The records of each class that has any."""
        return [
            np.flatnonzero(self.labels == label)
            for label in np.unique(self.labels[self.labels >= 0])
        ]

    @functools.cached_property
    def _kept(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        return {}

    def _drawn(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The records of an epoch, in order, and how often each has been drawn before in it."""
        # Threads that come here together store equal values; they work on two epochs at most.
        if epoch not in self._kept:
            while len(self._kept) > 3:
                self._kept.pop(next(iter(self._kept)), None)
            self._kept[epoch] = self._draw(epoch)
        return self._kept[epoch]

    def _draw(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng((self.seed, epoch))
        sizes = np.array([len(members) for members in self._classes], np.float64)
        shares = sizes ** POWERS[self.sampling]
        # Systematic rounding: every class gets its quota, up or down, and the sum is exact.
        ends = np.cumsum(shares / shares.sum()) * self.num_records
        ends[-1] = self.num_records
        quotas = np.diff(np.floor(ends + rng.random()), prepend=0.0).astype(int)
        quotas[-1] += self.num_records - quotas.sum()
        records, repeats = [], []
        for members, quota in zip(self._classes, quotas.tolist(), strict=True):
            times, rest = divmod(quota, len(members))
            some = rng.permutation(members)[:rest]
            records += [*[members] * times, some]
            repeats += [np.full(len(members), turn) for turn in range(times)]
            repeats.append(np.full(rest, times))
        order = rng.permutation(self.num_records)
        return np.concatenate(records)[order], np.concatenate(repeats)[order]
