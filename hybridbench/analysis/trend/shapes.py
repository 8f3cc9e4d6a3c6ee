"""The shapes of memory over time from which a trend must be distinguished.

Every candidate is a level [+ load] + at most one warm-up shape + at most one trend; ``gls`` adds up
to three steps (detection.md, "Shapes").  Time runs from 0 to 1 over the judged window.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hybridbench.analysis.record import FloatArray

# The grid is fine enough that data can place a knee or time constant between two of its points.
KNEES = (0.05, 0.1, 0.17, 0.25, 0.35, 0.5, 0.65, 0.8)
TIME_CONSTANTS = (0.01, 0.02, 0.04, 0.06, 0.09, 0.13, 0.19, 0.28, 0.5, 0.8, 1.3)
SLOWEST = TIME_CONSTANTS[-1]
LOG_SCALES = (0.003, 0.012, 0.05)
ONSETS = (0.2, 0.35, 0.5, 0.6)
POWERS = (1.5, 2.0)

# Up to this time constant the exponential bends enough for data to place it between grid points.
_DERIVATIVE_UP_TO = 0.45
_BREAK_PARAMETERS = 3  # a step or an onset costs its height, its position, and the search for it


class Warmup(StrEnum):
    """How a process behaves before it settles."""

    NONE = "level"
    RAMP = "ramp, then flat"
    EXPONENTIAL = "saturating"
    LOG = "ever slower (log)"


class Trend(StrEnum):
    """How memory develops afterwards."""

    NONE = "no trend"
    TIME = "trend in time"
    WORK = "trend with work done"
    ONSET = "trend that sets in late"
    FASTER = "trend that gets faster"
    WORK_ONSET = "trend with work done that sets in late"
    WORK_FASTER = "trend with work done that gets faster"


# Columns, and what they cost in the BIC.
_Extra: TypeAlias = tuple[tuple[int, ...], int]
_Warmup: TypeAlias = tuple[Warmup, tuple[int, ...], int]


@dataclass(frozen=True)
class Candidate:
    """One model without its steps: which columns it has and what they cost in the BIC."""

    warmup: Warmup
    trend: Trend
    columns: tuple[int, ...]  # without the level, which every model has
    trend_column: int | None
    parameters: int
    beside: int = 0  # how many of the first columns never count as growth
    work: int | None = None  # which work the trend follows; None for time

    @property
    def label(self) -> str:
        """The model in words."""
        if self.trend is Trend.NONE:
            return self.warmup.value if self.warmup is not Warmup.NONE else "flat"
        if self.warmup is Warmup.NONE:
            return self.trend.value
        return f"{self.warmup.value} + {self.trend.value}"


@dataclass(frozen=True, eq=False)
class Group:
    """The candidates with the same number of columns."""

    candidates: tuple[Candidate, ...]
    places: NDArray[np.int64]  # [candidates, columns]: the columns of each
    cost: FloatArray  # [candidates]: the parameters of each


@dataclass(frozen=True)
class Shapes:
    """All columns of all candidates at the blocks' times, and each candidate's indices.

    ``growth`` is how much one unit of a column adds over the last quarter of the window, scaled to
    a whole window; for work it covers the whole window, because the rate is per unit of work.
    """

    x: FloatArray  # [blocks]
    columns: FloatArray  # [blocks, columns]
    growth: FloatArray  # [columns]
    groups: tuple[Group, ...]
    steps: FloatArray  # [blocks, blocks - 1]: one step up before each block but the first

    @property
    def candidates(self) -> Iterator[Candidate]:
        """All candidates, those with the same number of columns together."""
        return (candidate for group in self.groups for candidate in group.candidates)


@dataclass(frozen=True)
class Beside:
    """Zero-mean columns that a model may include whatever its shape, and that are not growth."""

    columns: tuple[FloatArray, ...]
    parameters: int


def build_shapes(
    x: FloatArray,
    works: Sequence[FloatArray] = (),
    beside: Sequence[Beside] = (),
    slowest: float = SLOWEST,
) -> Shapes:
    """Build columns and candidates for blocks at times ``x``; ``works`` rise from 0 to 1.

    Ramps and exponentials slower than ``slowest``, a share of the window, are not tried.
    """
    book = _Columns(x)
    warmups = tuple(_warmups(book, slowest))
    trends = tuple(_trends(book, works))
    extras: list[_Extra] = [((), 0)]
    for one in beside:
        added = tuple(book.add(column, 0.0) for column in one.columns)
        extras += [(have + added, cost + one.parameters) for have, cost in extras]
    groups = _combined(tuple(extras), warmups, trends)
    steps = (np.arange(x.size)[:, None] >= np.arange(1, x.size)[None, :]).astype(np.float64)
    return Shapes(x, np.column_stack(book.columns), np.array(book.growth), groups, steps)


# The columns of one run's metrics have the same indices, and a run has dozens of metrics.
@lru_cache(maxsize=64)
def _combined(
    extras: tuple[_Extra, ...], warmups: tuple[_Warmup, ...], trends: tuple[_Trend, ...]
) -> tuple[Group, ...]:
    """Combine each of ``extras`` with each warm-up and each trend."""
    groups: dict[int, list[Candidate]] = {}
    for extra, extra_cost in extras:
        for warmup, columns, cost in warmups:
            for trend in trends:
                candidate = Candidate(
                    warmup,
                    trend.kind,
                    extra + columns + (() if trend.column is None else (trend.column,)),
                    trend.column,
                    1 + extra_cost + cost + trend.parameters,
                    len(extra),
                    trend.work,
                )
                groups.setdefault(len(candidate.columns), []).append(candidate)
    return tuple(
        Group(
            tuple(group),
            np.array([c.columns for c in group], dtype=np.int64).reshape(len(group), size),
            np.array([c.parameters for c in group], dtype=np.float64),
        )
        for size, group in groups.items()
    )


class _Columns:
    """The columns added so far, each with its growth over the last quarter."""

    def __init__(self, x: FloatArray) -> None:
        self.x = x
        self.columns: list[FloatArray] = []
        self.growth: list[float] = []

    def add(self, column: FloatArray, growth: float) -> int:
        self.columns.append(column)
        self.growth.append(growth)
        return len(self.columns) - 1


def _warmups(book: _Columns, slowest: float) -> Iterable[_Warmup]:
    yield Warmup.NONE, (), 0
    for knee in KNEES:
        if knee <= slowest:
            last = max(0.0, (min(1.0, knee) - 0.75) / 0.25) / knee
            yield Warmup.RAMP, (book.add(np.minimum(book.x / knee, 1.0), last),), 2
    for tau in TIME_CONSTANTS:
        if tau <= slowest:
            yield _exponential(book, tau)
    for scale in LOG_SCALES:
        last = (np.log1p(1.0 / scale) - np.log1p(0.75 / scale)) / 0.25
        main = book.add(np.log1p(book.x / scale), float(last))
        # The derivative with respect to the scale lets data place it between two grid points.
        bend = 1.0 / (scale + 1.0) - 0.75 / (scale + 0.75)
        yield Warmup.LOG, (main, book.add(book.x / (scale + book.x), bend / 0.25)), 3


def _exponential(book: _Columns, tau: float) -> _Warmup:
    decay = np.exp(-book.x / tau)
    ends = np.exp(-np.array([0.75, 1.0]) / tau)
    main = book.add(1.0 - decay, float(ends[0] - ends[1]) / 0.25)
    if tau > _DERIVATIVE_UP_TO:
        return Warmup.EXPONENTIAL, (main,), 2
    slope_ends = np.array([0.75, 1.0]) / tau * ends
    slope = book.add(book.x / tau * decay, float(slope_ends[1] - slope_ends[0]) / 0.25)
    return Warmup.EXPONENTIAL, (main, slope), 3


@dataclass(frozen=True)
class _Trend:
    kind: Trend
    column: int | None
    parameters: int
    work: int | None = None


def _trends(book: _Columns, works: Sequence[FloatArray]) -> Iterable[_Trend]:
    yield _Trend(Trend.NONE, None, 0)
    yield _Trend(Trend.TIME, book.add(book.x, 1.0), 1)
    yield from _changing(book, book.x, None)
    for place, work in enumerate(works):
        yield _Trend(Trend.WORK, book.add(work, 1.0), 1, place)
        yield from _changing(book, work, place)


def _changing(book: _Columns, progress: FloatArray, work: int | None) -> Iterable[_Trend]:
    """Yield trends that set in late, and trends that accelerate with progress."""
    onset_kind, faster_kind = (
        (Trend.ONSET, Trend.FASTER) if work is None else (Trend.WORK_ONSET, Trend.WORK_FASTER)
    )
    for onset in ONSETS:
        column = book.add(np.maximum(0.0, progress - onset), 1.0)
        yield _Trend(onset_kind, column, _BREAK_PARAMETERS, work)
    for power in POWERS:
        last = (1.0 - 0.75**power) / 0.25
        column = book.add(np.maximum(progress, 0.0) ** power, last)
        yield _Trend(faster_kind, column, 2, work)
