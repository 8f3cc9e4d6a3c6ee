"""The wording of findings about counts of a process that only grow, and about caches that fill."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import ClassVar, Final

import msgspec

from hybridbench.analysis.drivers.doubts import LEAST_S, LEAST_TIMED_S, WINDOW
from hybridbench.analysis.drivers.growing import Doubt, Sort
from hybridbench.analysis.facts.window import LEAK_WITHOUT_STEADY_S
from hybridbench.analysis.findings.growth import odds_text
from hybridbench.analysis.findings.handles import HANDLES
from hybridbench.analysis.findings.words import bare_rate_text, driver_evidence, for_each, times
from hybridbench.analysis.trend.reasons import KvCacheIsFilling, WithinBudget
from hybridbench.foundation.metrics import MEMORY, Unit, declared
from hybridbench.foundation.units import format_bytes, format_duration
from hybridbench.records.events import BYTES, PAGE
from hybridbench.records.finding import Basis, Evidence, Finding, Rate, Words
from hybridbench.records.rates import number, per_text

_LEVELS_NAMED: Final = 5
# The first and the last idle point may each be a minute from the ends of the judged window.
_AROUND_S: Final = 120.0

_WORDS: Final = {
    Sort.ENTRIES: "entries of {name}",
    Sort.OBJECTS: "{name} objects",
    Sort.BLOCKS: "blocks of Python's allocator",
    Sort.BYTES: "from malloc",
    Sort.HANDLES: "{name}",
}
# Counts of bytes that have no path.
_IN_BYTES: Final = {MEMORY: "private memory", "malloc_in_use_bytes": "malloc"}

_DOUBTS: Final[Mapping[Doubt, str]] = {
    Doubt.PACE: "it may still be a cache that fills ever more slowly",
    Doubt.CLOCK: (
        "no counter of work (--metrics) explains it, and it may be a cache that fills under rising "
        f"traffic: at least {format_duration(LEAST_TIMED_S)} of growth is needed to rule that out"
    ),
    Doubt.PARTS: (
        f"the rate per event is not a whole number, so at least {format_duration(LEAST_S)} of "
        "growth is needed to rule out a filling cache"
    ),
    Doubt.GARBAGE: (
        "they may be in reference cycles that the garbage collector has not yet freed: only an "
        "idle point with a collection tells, and there is none without a counter of work "
        "(--metrics), or in a process whose collector is disabled or whose heap is large"
    ),
    Doubt.MANY: (
        "the number of containers grew with the entries: whatever holds the containers keeps the "
        "entries"
    ),
    Doubt.WINDOW: (
        f"it may be a window of recent events: more than {number(WINDOW)} events would rule that "
        "out"
    ),
    Doubt.CACHE: "it may stop growing once the server's KV cache is full",
    Doubt.UNNAMED: (
        "whatever holds them has no name, and may be a cache that fills at a constant speed: only "
        f"{format_duration(LEAK_WITHOUT_STEADY_S)} would rule that out"
    ),
    Doubt.LIMIT: (
        "it may be a cache that is less than half full: it, its owner or the code that shortens it "
        "has a limit of {limit}, which may apply to it"
    ),
    Doubt.EXPIRY: (
        "code or timers remove old entries, by age or by a limit other than their number: "
        f"only {format_duration(LEAK_WITHOUT_STEADY_S)} would rule out that this has yet to begin"
    ),
    Doubt.EARLIER: "in an earlier process of this role the same count stopped growing",
    Doubt.STOPPED: "after the last idle point it did not grow with its event",
}
# For the same doubt after idle points.
_UNCOLLECTED: Final = (
    "they may be in reference cycles: the process's garbage collector is disabled, or its heap is "
    "so large that no collection was requested at the idle points"
)


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """Another count that shows the same leak, with its gain per event or per hour.

    ``sort`` is its unit: bytes for memory, malloc, and the container at ``name`` if it is a buffer.
    """

    sort: str
    name: str
    value: float
    per: str

    def text(self) -> str:
        """Return a clause such as ``Request objects: 1.00 per request``."""
        rate = Rate(self.value, self.value, self.value, self.sort, self.per)
        if self.sort == Sort.BYTES.value:
            what = _IN_BYTES.get(self.name, self.name)
            return f"{what}: {format_bytes(self.value)}{per_text(self.per)}"
        what = _words(Sort(self.sort), self.name)
        return f"{what}: {bare_rate_text(replace(rate, lower=0.0))}"


class Held(Basis, frozen=True, kw_only=True):
    """A count in one process's heap that only grows.

    Attributes:
        role: the process's role.
        name: the attribute path, or the type.
        last: the final count.
        at_idle: the counts at the compared idle points; empty if only traffic was evaluated.
        rounds: rounds of traffic between the last of these points that were compared.
        collected: whether garbage was collected at these points.
        counted: whether each of those rounds kept exactly as much as its events explain, so that
            doubts about the samples in between do not matter.
        censuses: heap scans compared under traffic.
        early, late: the rate in the first and the second half of the time.
        odds: p-value of the second half's growth, if only traffic was evaluated.
        alike: whether the rounds agree; otherwise each gained, but by varying amounts.
        doubt: why the finding is open; empty if it is not.
        beside: other counts of the process that show the same growth.
        budget: the declared cache that it may be, while that is not full.
        limit: the number of entries that may be its limit, if that is why the finding is open.
        kv_cache: the server's KV cache, if that is why the finding is open.
    """

    evidence = Evidence.STATISTICAL
    names_mechanism = True
    sort: ClassVar[Sort]

    role: str
    name: str
    last: float
    at_idle: tuple[float, ...] = ()
    collected: bool = True
    rounds: int = 0
    alike: bool = True
    counted: bool = False
    doubt: str = ""
    censuses: int = 0
    early: float
    late: float
    odds: float | None = None
    beside: tuple[Beside, ...] = ()
    budget: WithinBudget | None = None
    limit: int | None = None
    kv_cache: KvCacheIsFilling | None = None

    @property
    def is_exact(self) -> bool:
        return self.counted

    @property
    def needed_s(self) -> float | None:
        if self.doubt in (Doubt.UNNAMED, Doubt.EXPIRY):
            return LEAK_WITHOUT_STEADY_S + _AROUND_S
        if self.doubt == Doubt.CLOCK:
            return LEAST_TIMED_S + _AROUND_S
        return LEAST_S + _AROUND_S if self.doubt == Doubt.PARTS else None

    def words(self, found: Finding) -> Words:
        keeps = "may keep" if self.doubt else "keeps"
        cache = self.budget or self.kv_cache
        limit = "" if self.limit is None else number(self.limit)
        cause = _DOUBTS[Doubt(self.doubt)].format(limit=limit) if self.doubt else self._cause
        cause = _UNCOLLECTED if self.doubt == Doubt.GARBAGE and self.rounds else cause
        return Words(
            f"{self.role} {keeps} {_each(found.rates[0], self._what)}",
            cause=cause if cache is None else cache.text(),
            evidence=(*self._evidence(found), *driver_evidence(found)),
        )

    @property
    def _what(self) -> str:
        return _words(self.sort, self.name)

    @property
    def _cause(self) -> str:
        raise NotImplementedError(type(self).__name__)

    def _evidence(self, found: Finding) -> Iterable[str]:
        per, unit = found.rates[0].per, found.rates[0].unit
        if self.rounds:
            write = format_bytes if unit == Unit.BYTES else number
            levels = ", ".join(map(write, self.at_idle[-_LEVELS_NAMED:]))
            how = "agree" if self.alike else "each added some, and do not agree on how many"
            collected = ", after a collection" if self.collected else ""
            yield (
                f"held at idle{collected}: {levels}; the last {self.rounds} rounds of "
                f"traffic between two idle points {how}"
            )
            if self.censuses:
                yield f"{self.censuses} heap scans under traffic agree"
        else:
            yield (
                f"{self.censuses} heap scans under traffic: {_amount(self.early, unit)}"
                f"{per_text(per)} in the first half, {_amount(self.late, unit)} in the second"
            )
        if self.odds is not None:
            yield f"false-alarm probability of the second half: {odds_text(self.odds)}"
        yield from (one.text() for one in self.beside)


class EntriesKept(Held, frozen=True, kw_only=True):
    """A container that is never emptied, or ``several`` of one name that multiply.

    ``holds`` is the type of most values; if it is ``BYTES``, the entries are bytes.
    """

    kind = "entries-kept"
    meaning = "A container of a watched process keeps entries forever."
    question = "no container of the process keeps entries forever"
    sort = Sort.ENTRIES

    holds: str = ""
    several: bool = False

    @property
    def _what(self) -> str:
        if self._noun == BYTES:
            return f"of {self.name}"
        return f"series of {self.name}" if self.role == PAGE else super()._what

    @property
    def _noun(self) -> str:
        return BYTES if self.holds == BYTES else "entries"

    @property
    def _cause(self) -> str:
        if self.role == PAGE:
            return f"a label of {self.name} gets new values, and their series are never removed"
        entries = f"entries ({self.holds})" if self.holds not in ("", BYTES) else self._noun
        if self.several:
            return f"more and more containers of this name stay alive, with their {entries}"
        return f"{entries} are added to {self.name} and never removed"

    def advice(self, found: Finding) -> str:
        event = for_each(found)
        if self.role == PAGE:
            return f"Find the label of {self.name} that gets a new value{event}."
        if self.several:
            return f"Find what still refers to the owners of {self.name} (gc.get_referrers)."
        return (
            f"Find where {self._noun} are added to {self.name}{event} and which exit path does not "
            "remove them. If it is a cache with a limit that was not reached, say so with "
            f"--cache-budget {self.name}=SIZE. If its {self._noun} expire, run for longer than "
            "they live."
        )


class ObjectsKept(Held, frozen=True, kw_only=True):
    """Objects of one type that stay alive, without a known container that holds them."""

    kind = "objects-kept"
    meaning = "Objects of one type stay alive in a watched process."
    question = "no type of object of the process only grows"
    sort = Sort.OBJECTS

    @property
    def _cause(self) -> str:
        return "something that is in use still refers to them: a collection keeps them"

    @property
    def needs_longer_run(self) -> bool:
        return self.doubt != Doubt.GARBAGE

    def advice(self, found: Finding) -> str:
        if self.doubt == Doubt.GARBAGE and self.rounds:
            return (
                f"Call gc.collect() in the process: if {self.name} objects stay, something still "
                "refers to them; if not, they are in reference cycles, and stay for as long as "
                "the collector is disabled."
            )
        if self.rounds:
            return f"Find what still refers to {self.name} objects (gc.get_referrers)."
        return (
            "Repeat the run with --metrics and --idle-every, which collects garbage before it "
            "counts."
        )


class BlocksKept(Held, frozen=True, kw_only=True):
    """Blocks from Python's allocator that increase at each idle point, without a known use."""

    kind = "blocks-kept"
    meaning = "A watched process holds more Python objects at each idle point."
    question = "the process holds no more Python objects at each idle point"
    sort = Sort.BLOCKS
    advised = "Repeat the run with a heap scan at each idle point, which names what grows."

    @property
    def _cause(self) -> str:
        return "Python objects stay alive that no heap scan counts by name, such as strings"


class BytesKept(Held, frozen=True, kw_only=True):
    """Bytes from malloc that increase at each idle point, not explained by Python objects."""

    kind = "bytes-kept"
    meaning = "A watched process holds more memory from malloc at each idle point."
    question = "the process holds no more memory from malloc at each idle point"
    sort = Sort.BYTES
    advised = (
        "If no Python object grows beside it, look at extension modules: run the command under a "
        "native heap profiler."
    )

    @property
    def _cause(self) -> str:
        return "native code, or large Python objects such as arrays and strings, keep memory"


class HandlesKept(Held, frozen=True, kw_only=True):
    """Open files, threads, child processes or zombies that increase at each idle point."""

    kind = "handles-kept"
    meaning = "A watched process keeps files open, or threads or children never end."
    question = "the process holds no more files, threads and children at idle points"
    sort = Sort.HANDLES

    @property
    def _cause(self) -> str:
        return HANDLES[self.name].cause

    def advice(self, found: Finding) -> str:
        return HANDLES[self.name].advice(found)


class CacheFills(Basis, frozen=True, kw_only=True):
    """A container whose growth slows down: a cache that is not yet full.

    Attributes:
        size: final number of entries, or of bytes, in the largest of ``caches`` containers.
        early, late: the rate in the first and the second half of the time.
    """

    kind = "cache-fills"
    meaning = "A container of a watched process still fills like a cache."
    evidence = Evidence.STATISTICAL
    leads_to = "INCONCLUSIVE"
    advised = "Run until it is full, or start the target with a smaller cache."

    role: str
    path: str
    size: float
    caches: int
    early: float
    late: float

    def words(self, found: Finding) -> Words:
        more = f" and {times(self.caches - 1, 'container')} more" if self.caches > 1 else ""
        per, unit = per_text(found.rates[0].per), found.rates[0].unit
        early, late = _amount(self.early, unit), _amount(self.late, unit)
        pace = f"ever more slowly: from {early} to {late}{per}"
        if self.late >= self.early:
            pace = f"by other counters of work more slowly, {late}{per}"
        size = format_bytes(self.size)
        if unit != Unit.BYTES:
            size = f"{number(self.size)} {noun(unit)}"
        return Words(
            f"{self.role} still fills {self.path} ({size}){more}, {pace}",
            cause="it grows like a cache, and no limit of it is known",
        )


HELD: Final[dict[Sort, type[Held]]] = {
    Sort.ENTRIES: EntriesKept,
    Sort.OBJECTS: ObjectsKept,
    Sort.BLOCKS: BlocksKept,
    Sort.BYTES: BytesKept,
    Sort.HANDLES: HandlesKept,
}


def noun(unit: str) -> str:
    """Return what a container has: ``entries``, or ``bytes`` if it is a buffer."""
    return BYTES if unit == Unit.BYTES else unit


def _each(rate: Rate, what: str) -> str:
    """Return a phrase such as ``1.00 (0.99 to 1.01) entries of app.kept per request``."""
    value, low, high = (_amount(x, rate.unit) for x in (rate.value, rate.lower, rate.upper))
    if rate.lower == rate.upper:
        return f"exactly {value} {what}{per_text(rate.per)}"
    return f"{value} ({low} to {high}) {what}{per_text(rate.per)}"


def _words(sort: Sort, name: str) -> str:
    return _WORDS[sort].format(name=declared(name).label if sort is Sort.HANDLES else name)


def _amount(value: float, unit: str) -> str:
    """Format a value without its unit, except bytes."""
    if unit == Unit.BYTES:
        return format_bytes(value)
    return bare_rate_text(Rate(value, value - 1.0, value + 1.0, Unit.COUNT.value, ""))
