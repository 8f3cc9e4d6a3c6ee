"""Reasons why a metric's trend is a leak, bounded, or undecided, as one record type each."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from hybridbench.foundation.metrics import Unit
from hybridbench.foundation.units import format_bytes, format_duration, format_percent
from hybridbench.records.codec import from_json
from hybridbench.records.finding import LowerEnd, UpperEnd
from hybridbench.records.rates import TINY, amount
from hybridbench.records.verdict import MetricResult, Reason, Why

_DAY_S: Final = 86_400.0
# Sources of the bound that a metric meets.
_SOURCES: Final[Mapping[str, str]] = {
    "threshold": "the threshold",
    "profile": "the profile's limit",
    "margin": "the tolerance",
}


class _OfMetric(Reason, frozen=True, kw_only=True):
    """Base of reasons whose numbers are growth per hour in ``unit``, the metric's unit."""

    unit: str


class EveryModelGrows(_OfMetric, frozen=True, kw_only=True):
    """A leak: growth above ``faster_than`` in all models that fit well; ``model`` fits best."""

    code = "every-model-grows"

    model: str
    faster_than: float

    def text(self) -> str:
        floor = _hourly(self.faster_than, self.unit)
        return (
            f"all well-fitting models show growth above {floor} (best fit: {self.model}), and it "
            "is not slowing down"
        )


class Bounded(_OfMetric, frozen=True, kw_only=True):
    """CLEAN: growth of at most ``upper`` is below ``bound``, which ``source`` set."""

    code = "bounded"

    upper: UpperEnd
    bound: float
    source: Literal["threshold", "profile", "margin"]

    def text(self) -> str:
        growth = "no growth"
        if self.upper > TINY:
            growth = f"growth of at most {_hourly(self.upper, self.unit)}"
        return f"{growth} (95%), below {_SOURCES[self.source]} of {_hourly(self.bound, self.unit)}"


class OfFloors(_OfMetric, frozen=True, kw_only=True):
    """Garbage levels after each of ``collections`` full collections."""

    collections: int
    upper: UpperEnd
    bound: float


class FloorsRise(OfFloors, frozen=True, kw_only=True):
    """A leak: the level after collections keeps rising."""

    code = "floors-rise"

    def text(self) -> str:
        return f"the level after each of {self.collections} full collections keeps rising"


class FloorsBounded(OfFloors, frozen=True, kw_only=True):
    """CLEAN: the level after collections grows by at most ``upper``."""

    code = "floors-bounded"

    def text(self) -> str:
        upper = _hourly(self.upper, self.unit)
        return f"growth of at most {upper} (95%) from collection to collection"


class FewCollections(OfFloors, frozen=True, kw_only=True):
    """Undecided: the collections do not rule out growth of up to ``upper``."""

    code = "few-collections"

    def text(self) -> str:
        return (
            f"{self.collections} full collections cannot rule out growth up to "
            f"{_hourly(self.upper, self.unit)} (limit {_hourly(self.bound, self.unit)})"
        )


class Growing(_OfMetric, frozen=True, kw_only=True):
    """Undecided: significant growth; a longer run must show whether it continues."""

    code = "growing"

    value: float
    lower: LowerEnd
    upper: UpperEnd

    def text(self) -> str:
        lower, value, upper = (
            _hourly(end, self.unit) for end in (self.lower, self.value, self.upper)
        )
        return f"growing by {value} ({lower} to {upper})"


class BelowFloor(Growing, frozen=True, kw_only=True):
    """Permanently undecided: significant growth below ``floor``, where a leak begins."""

    code = "below-floor"

    floor: float

    def text(self) -> str:
        floor = _hourly(self.floor, self.unit)
        return (
            f"{super().text()}, below the {floor} from which growth counts as a leak; a longer "
            "run would not decide this, but a threshold would"
        )


class NoSteadyState(Growing, frozen=True, kw_only=True):
    """Undecided: growth in every model, as during a warm-up."""

    code = "no-steady-state"

    def text(self) -> str:
        return f"{super().text()}, but without a steady event this may still be warm-up"


class Open(Reason, frozen=True, kw_only=True):
    """Undecided for a specific cause; ``growing`` gives the rate if growth is also significant."""

    growing: Growing | None = None

    def cause(self) -> str:
        """Why it is undecided, without the rate of growth."""
        return self.said

    def text(self) -> str:
        return "; ".join([self.cause(), *([] if self.growing is None else [self.growing.text()])])


class StillFilling(Open, frozen=True, kw_only=True):
    """Growth per hour in the first and the second half of the window."""

    code = "still-filling"

    early: float
    late: float
    unit: str

    def cause(self) -> str:
        early, late = _hourly(self.early, self.unit), _hourly(self.late, self.unit)
        if self.late <= 0.0:
            return f"growth of {early} in the first half, none in the second"
        return f"still filling: growth went from {early} to {late} in the second half"


class TooShort(Open, frozen=True, kw_only=True):
    """Growth of ``upper`` is possible, but CLEAN allows only ``bound``."""

    code = "too-short"

    upper: UpperEnd
    bound: float
    unit: str

    def cause(self) -> str:
        upper, bound = _hourly(self.upper, self.unit), _hourly(self.bound, self.unit)
        return f"growth up to {upper} cannot be ruled out (limit {bound})"


class LoadClimbs(Open, frozen=True, kw_only=True):
    """Growth may come from more requests in flight."""

    code = "load-climbs"
    said = "the number of requests in flight rose with it; repeat the run at constant load"


class FewCycles(Open, frozen=True, kw_only=True):
    """A sawtooth with too few teeth."""

    code = "few-cycles"
    said = "too few troughs to measure growth under the sawtooth"


class OneCycle(Open, frozen=True, kw_only=True):
    """A rise like an earlier one that was freed, such as that of a daily load cycle."""

    code = "one-cycle"
    said = (
        "it rose as high and as slowly before, and all of that was freed; only a run of two "
        "full cycles would show whether it leaks"
    )


class LowsRise(Open, frozen=True, kw_only=True):
    """Growth per hour from the lowest level before a peak to the lowest after it."""

    code = "lows-rise"

    value: float
    unit: str

    def cause(self) -> str:
        rise = _hourly(self.value, self.unit)
        return (
            f"from the low before a peak to the low after it, it rises by {rise}; only a run of "
            "two full cycles would show whether it leaks"
        )


class FewSteps(Open, frozen=True, kw_only=True):
    """A staircase with too few steps."""

    code = "few-steps"
    said = "it grew in too few steps to tell whether they continue"


class TooFewSamples(_OfMetric, frozen=True, kw_only=True):
    """Undecided: no model can be fitted."""

    code = "too-few-samples"

    samples: int
    judged_s: float
    samples_needed: int

    def text(self) -> str:
        judged = format_duration(self.judged_s)
        return f"too few samples ({self.samples} of {self.samples_needed} in {judged})"


class YoungRun(Reason, frozen=True, kw_only=True):
    """Undecided so far, in the live view."""

    code = "young-run"
    said = "it grows, but the run is too short to tell whether that continues"


class NoLimit(_OfMetric, frozen=True, kw_only=True):
    """Undecided: there is no limit for a run of any length."""

    code = "no-limit"

    upper: UpperEnd

    def text(self) -> str:
        upper = _hourly(self.upper, self.unit)
        return f"the profile sets no limit (growth of up to {upper} is possible)"


class LimitNotMeasured(NoLimit, frozen=True, kw_only=True):
    """Undecided: only longer runs have a limit."""

    code = "limit-not-measured"

    def text(self) -> str:
        return (
            "the profile has no limit for so short a window (growth of up to "
            f"{_hourly(self.upper, self.unit)} is possible)"
        )


class WithinBudget(Reason, frozen=True, kw_only=True):
    """Undecided: memory growth is still within the cache sizes that the user declared.

    Attributes:
        budget: bytes by which the ``caches`` may grow together.
        grown: growth of the target's memory so far, in bytes.
        per_s: growth of memory in bytes per second, all processes together.
        full_in_s: seconds until the budget is used up, at ``full_wall_s`` if the run's wall clock
            is known.
    """

    code = "within-budget"

    caches: tuple[str, ...]
    budget: int
    grown: float
    per_s: float
    full_in_s: float
    full_wall_s: float | None = None

    def text(self) -> str:
        names, size = " and ".join(self.caches), format_bytes(self.budget)
        until = f" in {format_duration(self.full_in_s)}"
        if self.full_wall_s is not None:
            until += f": {_moment(self.full_wall_s, self.full_in_s)}"
        return (
            f"at {format_bytes(self.per_s)}/s the {names} cache{'s' * (len(self.caches) > 1)} of "
            f"{size} {'are' if len(self.caches) > 1 else 'is'} full{until}; growth so far is "
            f"{format_bytes(self.grown)}"
        )


class CacheIsFilling(Reason, frozen=True, kw_only=True):
    """Undecided: a bounded container of the process is still filling, until ``full_in_s``.

    ``size`` and ``bound`` are numbers of entries, or of bytes if that is its ``unit``.
    """

    code = "cache-fills"

    path: str
    size: float
    bound: int
    unit: str = "entries"
    full_in_s: float | None = None

    def text(self) -> str:
        until = "" if self.full_in_s is None else f", full in {format_duration(self.full_in_s)}"
        size, bound = f"{self.size:,.0f}", f"{self.bound:,} {self.unit}"
        if self.unit == Unit.BYTES:
            size, bound = format_bytes(self.size), format_bytes(self.bound)
        return (
            f"{self.path} still fills ({size} of at most {bound}{until}), and memory grows with it"
        )


class KvCacheIsFilling(Reason, frozen=True, kw_only=True):
    """Undecided: the process's KV cache may still be filling.

    Attributes:
        tokens: its size; None if unknown.
        computed: tokens computed so far.
        full_in_s: seconds until it is certainly full; None if unknown.
    """

    code = "kv-cache-fills"

    tokens: float | None
    computed: float
    full_in_s: float | None = None

    def text(self) -> str:
        if self.tokens is None:
            return (
                "the size of the server's KV cache is unknown, so it may still be filling: "
                "--metrics URL gives the size, --reset-cache URL empties it at each idle point"
            )
        until = "" if self.full_in_s is None else f", in {format_duration(self.full_in_s)}"
        return (
            f"the server's KV cache of {self.tokens:,.0f} tokens may still fill: "
            f"{self.computed:,.0f} tokens were computed, and after twice its size it is full{until}"
        )


class _OfSegments(Reason, frozen=True, kw_only=True):
    """The combined results of ``segments`` segments of a resumed run."""

    segments: int


class LeakingSegments(_OfSegments, frozen=True, kw_only=True):
    """A leak in ``leaking`` segments; ``last`` is the reason in the last of them."""

    code = "leaking-segments"

    leaking: int
    last: Why | None

    def text(self) -> str:
        last = "" if self.last is None else self.last.text
        return f"in {self.leaking} of {self.segments} segments: {last}"


class GrowingSegments(_OfSegments, frozen=True, kw_only=True):
    """Undecided: the segments grow together, but none is a leak alone."""

    code = "growing-segments"

    def text(self) -> str:
        return (
            f"over {self.segments} segments together, growth is significant, but none is a leak "
            "alone"
        )


class LeakTogether(_OfSegments, frozen=True, kw_only=True):
    """A leak that no segment shows alone."""

    code = "leak-together"

    def text(self) -> str:
        return f"no segment is long enough alone; all {self.segments} grow, confirmed together"


class BoundedTogether(_OfSegments, frozen=True, kw_only=True):
    """CLEAN: growth is below ``bound``, if there is one, or each segment is clean."""

    code = "bounded-together"

    bound: float | None

    def text(self) -> str:
        return f"no growth above the limit over {self.segments} segments"


class OpenSegments(_OfSegments, frozen=True, kw_only=True):
    """Undecided for the reason of the last segment, ``last``."""

    code = "open-segments"

    last: Why | None

    def text(self) -> str:
        last = "" if self.last is None else self.last.text
        return f"over {self.segments} segments: {last}"


# Reasons for an undecided column of an external file.


class AnalysisFailed(Reason, frozen=True, kw_only=True):
    """Undecided: the analysis raised; ``error`` is the exception's type and message."""

    code = "analysis-failed"

    error: str

    def text(self) -> str:
        return f"the analysis failed: {self.error}; this is a bug in hybridbench, please report it"


class Unreadable(Reason, frozen=True, kw_only=True):
    """Undecided: ``samples`` samples exceed ``beyond``, which no measurement can."""

    code = "unreadable"

    samples: int
    beyond: float

    def text(self) -> str:
        exceed = "sample exceeds" if self.samples == 1 else "samples exceed"
        return f"{self.samples} {exceed} {self.beyond:g}, which no measurement can"


class NoNumber(Reason, frozen=True, kw_only=True):
    """Undecided: the column measures memory in a form that is not read; ``cell`` is the first."""

    code = "no-number"

    cell: str
    line: int

    def text(self) -> str:
        return f"{self.cell!r} in line {self.line} is not read as a number"


class ContainsCache(Reason, frozen=True, kw_only=True):
    """The column's total includes the page cache; record ``instead``."""

    code = "contains-cache"

    column: str
    instead: str

    def text(self) -> str:
        return (
            f"{self.column} contains the page cache, which grows by itself: record {self.instead}"
        )


class MayCount(Reason, frozen=True, kw_only=True):
    """The column may be a count of events, or data on a disk: it only changes one way."""

    code = "may-count"

    column: str

    def text(self) -> str:
        return (
            "it may count events or data on a disk, which grow by themselves; if it shows "
            f"something held, use --metric '{self.column}'"
        )


class FewDigits(Reason, frozen=True, kw_only=True):
    """The column rose by a few steps of ``step`` bytes, its last digit: too coarse for a bound."""

    code = "few-digits"

    step: float

    def text(self) -> str:
        return (
            f"it rises, and is written in steps of {format_bytes(self.step)}, too coarse to bound "
            "its growth; record more digits (`ps -o rss=`) or for longer"
        )


class NoUnit(Reason, frozen=True, kw_only=True):
    """The column is memory that grows, without the unit on which its limit depends."""

    code = "no-unit"

    column: str

    def text(self) -> str:
        return (
            "it grows, and whether too fast depends on its unit, which is unknown: set it with "
            f"--metric '{self.column}:UNIT'"
        )


class FewProcesses(Reason, frozen=True, kw_only=True):
    """The column fell sharply ``falls`` times, and each fall may be a restart."""

    code = "few-processes"

    falls: int

    def text(self) -> str:
        return (
            f"it dropped sharply {self.falls} times, and restarts cannot be distinguished from a "
            "sawtooth; add a column with the process id or a work counter, or pass "
            "--never-restarted"
        )


class Gaps(Reason, frozen=True, kw_only=True):
    """``share`` of the judged time has no samples."""

    code = "gaps"

    share: float

    def text(self) -> str:
        return f"{format_percent(self.share)} of the judged time has no samples"


class _Held(msgspec.Struct, frozen=True):
    """The bound in the data of any reason; None if it has none."""

    bound: float | None = None


def bound_of(result: MetricResult) -> float | None:
    """Return the growth per hour below which ``result`` is CLEAN; None if no bound was applied.

    It is the metric's limit, or else the tolerance.
    """
    if result.limit_per_hour is not None or result.why is None:
        return result.limit_per_hour
    return from_json(result.why.data, _Held).bound


def _moment(wall_s: float, from_now_s: float) -> str:
    """The time of day, with the date if it is a day or more away."""
    form = "%H:%M UTC" if from_now_s < _DAY_S else "%Y-%m-%d %H:%M UTC"
    return datetime.fromtimestamp(wall_s, UTC).strftime(form)


def _hourly(growth: float, unit: str) -> str:
    return f"{amount(growth, unit)}/h"
