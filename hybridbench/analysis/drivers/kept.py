"""What a process keeps per event, from heap counts and counters of work.

There are two methods.  At an idle point nothing is in flight and all garbage has been collected, so
whatever was added since the last point was kept (``at_idle``).  Under traffic a count includes
requests in flight, so lines are fitted to it (``under_traffic``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hybridbench.analysis.drivers.search import TIME, Driver
from hybridbench.analysis.record import FloatArray

# Probability of any false alarm in a run, over all names of all its processes.
ALPHA: Final = 1e-3
# Fewer entries may be a registry of types, or leftovers of the scan itself.
FEWEST_KEPT: Final = 24
FEWEST_PARTS: Final = 100  # FEWEST_KEPT if the rate per event is not a whole number
SLOWER: Final = 0.95  # share of the first half's rate; growth significantly below it slows down
KEEPS: Final = 0.9  # minimum of the second half's rate, as a share of the first half's
KEEPS_SURELY: Final = 0.75  # the same, for the lower end of its interval
# One-sided confidence of that interval; high, because a run has thousands of counts, and many of
# them fill or drift.
KEEPS_ODDS: Final = 0.995
KEEPS_ERRORS: Final = NormalDist().inv_cdf(KEEPS_ODDS)
MUST_KEEP: Final = 0.8  # minimum share of the first half's rate; anything below is a fill
TIMELY: Final = 1.5  # a driver whose errors are smaller by this factor fits clearly better
# Rank of time among drivers: ahead of uninformative counters that fit no better.
_CLOCK: Final = 1_000


def of_bytes(counter: str) -> bool:
    """Whether a counter counts bytes; a single event can add thousands of them."""
    return "_bytes" in counter


@dataclass(frozen=True)
class Work:
    """Possible drivers of a count, at the times it was read: [readings, names], time last."""

    names: tuple[str, ...]
    columns: FloatArray
    telling: Mapping[str, int]  # rank of the counters that describe the work done
    main: frozenset[str]  # the counters of the common work: requests and tokens

    def rank(self, name: str, *, whole: bool) -> int:
        """Return the rank of ``name`` among drivers that fit equally well; the lowest is named.

        Drivers with a ``whole`` number of entries per event come first, and counters that are less
        informative than the clock come last.
        """
        said = _CLOCK if name == TIME else self.telling.get(name, 2 * _CLOCK)
        said += of_bytes(name)  # bytes come with events, which are more informative
        return said - 4 * _CLOCK if whole else said

    def rows(self, keep: NDArray[np.bool_]) -> Work:
        """Select readings, with the counters that moved during them."""
        columns = self.columns[keep]
        moved = np.ptp(columns, axis=0) >= 3.0 if columns.size else np.zeros(0, dtype=np.bool_)
        names = tuple(n for n, yes in zip(self.names, moved.tolist(), strict=True) if yes)
        return replace(self, names=names, columns=columns[:, moved])


@dataclass(frozen=True)
class Kept:
    """What is kept per event, or per second if no event explains it.

    Attributes:
        early, late: the rate in the first and in the second half.
        slows: whether the second rate is significantly lower, as for a cache that fills.
        steady: whether the second rate is shown to be about as high as the first, as for a leak.
            If neither holds, the growth stays open.
        odds: p-value of the second half's growth; 0 if it was counted at idle points.
        rounds: number of rounds between idle points; 0 if only readings under traffic were used.
        alike: whether these rounds agree; otherwise each gained, but by varying amounts.
        whole: whether each event keeps a whole number of entries; no cache that fills does so for
            long.
        counted: whether each round kept exactly what events explain: one entry in every so many, or
            a whole number per event that lies between two counters.
    """

    driver: Driver
    early: float
    late: float
    slows: bool
    steady: bool
    odds: float
    rounds: int = 0
    alike: bool = True
    whole: bool = False
    counted: bool = False

    @property
    def timed(self) -> bool:
        """Whether only the clock explains the growth, so that the rate is per second."""
        return self.driver.counter == TIME
