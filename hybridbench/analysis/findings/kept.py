"""Findings about what a process keeps: entries of containers, objects, blocks and bytes of its
heap, open files, threads, child processes and zombies; and caches that fill.

One leak shows in many counts: the container, its objects, their own lists, the allocator's blocks,
and memory.  Each container that stays the same throughout is a finding, with the rest as its
evidence; if no container grows, the objects come first, then the allocators.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Final, NamedTuple

import msgspec

from hybridbench.analysis.drivers.heap_growth import (
    LEAST_S,
    WINDOW,
    Doubt,
    Growing,
    GrowthKind,
    Sort,
)
from hybridbench.analysis.drivers.search import TIME, explained
from hybridbench.analysis.facts.counters import singular
from hybridbench.analysis.findings.growth import Growth, odds_text
from hybridbench.analysis.findings.words import bare_rate_text, driver_evidence, times
from hybridbench.analysis.trend.allowance import Allowance
from hybridbench.analysis.trend.reasons import KvCacheIsFilling, WithinBudget
from hybridbench.foundation.labels import labelled, labels_of, unlabelled
from hybridbench.foundation.metrics import MEMORY, Unit, declared
from hybridbench.foundation.units import format_bytes, format_duration
from hybridbench.records.codes import Evidence
from hybridbench.records.events import PAGE
from hybridbench.records.finding import Basis, Words
from hybridbench.records.rates import number, per_text
from hybridbench.records.verdict import Finding, MetricResult, Rate, VerdictKind

_NAMED: Final = 4
_LEVELS_NAMED: Final = 5
# Of its length, in the second half of the run: a cache that grows by less is practically full.
_MATTERS: Final = 0.05

_WORDS: Final = {
    Sort.ENTRIES: "entries of {name}",
    Sort.OBJECTS: "{name} objects",
    Sort.BLOCKS: "blocks of Python's allocator",
    Sort.BYTES: "bytes from malloc",
    Sort.HANDLES: "{name}",
}


_DOUBTS: Final[Mapping[Doubt, str]] = {
    Doubt.PACE: "it may still be a cache that fills ever more slowly",
    Doubt.PARTS: (
        "where no whole number comes with each event, "
        f"{format_duration(LEAST_S)} are needed: it may be a cache that fills"
    ),
    Doubt.GARBAGE: (
        "they may be in reference cycles that the garbage collector has not yet freed: only an "
        "idle point with a collection tells, and there is none in a process whose collector is "
        "disabled or whose heap is large"
    ),
    Doubt.MANY: "new containers came with the entries: whatever holds those keeps the entries",
    Doubt.WINDOW: (
        f"it may be a window of recent events: more than {number(WINDOW)} events would show that "
        "it is none"
    ),
    Doubt.CACHE: "it may grow with the server's KV cache, as long as that fills",
    Doubt.EARLIER: "in an earlier process of this role the same count stopped growing",
    Doubt.STOPPED: "after the last idle point it did not grow with its event",
}


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """Another count that shows the same leak, with its gain per event or second."""

    sort: str
    name: str
    value: float
    per: str

    def text(self) -> str:
        """``Request objects: 1.00 per request``."""
        rate = Rate(self.value, self.value, self.value, self.sort, self.per)
        what = _words(Sort(self.sort), self.name)
        if self.sort == Sort.BYTES.value:
            what = "private memory" if self.name == MEMORY else "malloc"
            return f"{what}: {format_bytes(self.value)}{per_text(self.per)}"
        return f"{what}: {bare_rate_text(replace(rate, lower=0.0))}"


class Held(Basis, frozen=True, kw_only=True):
    """A count in one process's heap that only grows.

    Attributes:
        role: of the process.
        name: the attribute path, or the type.
        last: the final count.
        at_idle: the counts at the last idle points, of which ``rounds`` were equal; empty if only
            traffic was evaluated.
        collected: whether garbage was collected at these points.
        counted: each of those rounds kept exactly as much as its events explain, so that doubts
            about the samples in between do not matter.
        censuses: heap scans compared under traffic.
        early, late: the rate in the first and the second half of the time.
        odds: p-value of the second half's growth, if only traffic was evaluated.
        alike: whether the rounds agree; otherwise each gained, but by varying amounts.
        doubt: why the finding is open; empty if it is not.
        beside: other counts of the process that show the same growth.
        budget: the cache that it may be, as long as that is not full.
        kv_cache: the server's KV cache, if that is the doubt.
    """

    evidence: ClassVar[Evidence] = Evidence.STATISTICAL
    names_mechanism: ClassVar[bool] = True
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
    kv_cache: KvCacheIsFilling | None = None

    @property
    def is_exact(self) -> bool:
        return self.counted

    def words(self, found: Finding) -> Words:
        keeps = "may keep" if self.doubt else "keeps"
        cache = self.budget or self.kv_cache
        cause = _DOUBTS[Doubt(self.doubt)] if self.doubt else self._cause
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
        per = found.rates[0].per
        if self.rounds:
            write = format_bytes if self.sort is Sort.BYTES else number
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
                f"{self.censuses} heap scans under traffic: {_bare(self.early)}{per_text(per)} in "
                f"the first half, {_bare(self.late)} in the second"
            )
        if self.odds is not None:
            yield f"false-alarm probability of the second half: {odds_text(self.odds)}"
        yield from (one.text() for one in self.beside)


class EntriesKept(Held, frozen=True, kw_only=True):
    """A container that is never emptied, or ``several`` of one name, of which there are more and
    more; ``holds`` is the type of most values.
    """

    kind: ClassVar[str] = "entries-kept"
    meaning: ClassVar[str] = "A container of a watched process keeps entries for good."
    question: ClassVar[str] = "no container of the process keeps entries for good"
    sort: ClassVar[Sort] = Sort.ENTRIES

    holds: str = ""
    several: bool = False

    @property
    def _what(self) -> str:
        return f"series of {self.name}" if self.role == PAGE else super()._what

    @property
    def _cause(self) -> str:
        if self.role == PAGE:
            return f"a label of {self.name} gets new values, and their series are never removed"
        values = f" ({self.holds})" if self.holds else ""
        if self.several:
            return f"more and more containers of this name stay alive, with their entries{values}"
        return f"entries{values} are added to {self.name} and never removed"

    def advice(self, found: Finding) -> str:
        event = _for_each(found)
        if self.role == PAGE:
            return f"Find the label of {self.name} that gets a new value{event}."
        if self.several:
            return f"Find what still refers to the owners of {self.name} (gc.get_referrers)."
        return (
            f"Find where entries are added to {self.name}{event} and which exit path does not "
            "remove them. If it is a cache with a limit that was not reached, say so with "
            f"--cache-budget {self.name}=SIZE."
        )


class ObjectsKept(Held, frozen=True, kw_only=True):
    """Objects of one type that stay alive, without a known container that holds them."""

    kind: ClassVar[str] = "objects-kept"
    meaning: ClassVar[str] = "Objects of one type stay alive in a watched process."
    question: ClassVar[str] = "no type of object of the process only grows"
    sort: ClassVar[Sort] = Sort.OBJECTS

    @property
    def _cause(self) -> str:
        return "something that is in use still refers to them: a collection keeps them"

    def advice(self, found: Finding) -> str:
        del found
        if self.doubt == Doubt.GARBAGE and self.rounds:
            return f"Call gc.collect() in the process: if {self.name} objects stay, they leak."
        if self.rounds:
            return f"Find what still refers to {self.name} objects (gc.get_referrers)."
        return "Repeat the run with --idle-every, which collects garbage before it counts."


class BlocksKept(Held, frozen=True, kw_only=True):
    """More blocks from Python's allocator at each idle point, with no name for their use."""

    kind: ClassVar[str] = "blocks-kept"
    meaning: ClassVar[str] = "A watched process holds more Python objects at each idle point."
    question: ClassVar[str] = "the process holds no more Python objects at each idle point"
    sort: ClassVar[Sort] = Sort.BLOCKS

    @property
    def _cause(self) -> str:
        return "Python objects stay alive that no heap scan counts by name, such as strings"

    def advice(self, found: Finding) -> str:
        del found
        return "Repeat the run with a heap scan at each idle point, which names what grows."


class BytesKept(Held, frozen=True, kw_only=True):
    """More bytes from malloc at each idle point, not explained by Python objects."""

    kind: ClassVar[str] = "bytes-kept"
    meaning: ClassVar[str] = "A watched process holds more memory from malloc at each idle point."
    question: ClassVar[str] = "the process holds no more memory from malloc at each idle point"
    sort: ClassVar[Sort] = Sort.BYTES

    @property
    def _cause(self) -> str:
        return "native code, or large Python objects such as arrays and strings, keep memory"

    def advice(self, found: Finding) -> str:
        del found
        return (
            "If no Python object grows beside it, look at extension modules: run the command under "
            "a native heap profiler."
        )


class HandlesKept(Held, frozen=True, kw_only=True):
    """Open files, threads, child processes or zombies that are more at each idle point."""

    kind: ClassVar[str] = "handles-kept"
    meaning: ClassVar[str] = "A watched process keeps files open, or threads or children never end."
    question: ClassVar[str] = "the process holds no more files, threads and children at idle points"
    sort: ClassVar[Sort] = Sort.HANDLES

    @property
    def _cause(self) -> str:
        return _HANDLES[self.name].cause

    def advice(self, found: Finding) -> str:
        return _HANDLES[self.name].advice.format(event=_for_each(found))


class _Handle(NamedTuple):
    cause: str
    advice: str


_HANDLES: Final[Mapping[str, _Handle]] = {
    "open_fds": _Handle(
        "files, pipes or sockets are opened and never closed",
        "Find what is opened{event} (ls -l /proc/PID/fd) and which exit path does not close it.",
    ),
    "threads": _Handle(
        "threads are started and never end",
        "Find which threads are started{event} and what they wait for (py-spy dump, gdb).",
    ),
    "children": _Handle(
        "child processes are started and never end",
        "Find which processes are started{event} (ps --ppid PID) and what should end them.",
    ),
    "zombies": _Handle(
        "child processes end, and the process never waits for them",
        "Wait for each child that is started{event}, or ignore SIGCHLD if no status is needed.",
    ),
}


class CacheFills(Basis, frozen=True, kw_only=True):
    """A container whose growth slows down: a cache that is not yet full.

    Attributes:
        size: final number of entries in the largest of ``caches`` containers.
        early, late: the rate in the first and the second half of the time.
    """

    kind: ClassVar[str] = "cache-fills"
    meaning: ClassVar[str] = "A container of a watched process still fills like a cache."
    evidence: ClassVar[Evidence] = Evidence.STATISTICAL
    leads_to: ClassVar[str] = "INCONCLUSIVE"

    role: str
    path: str
    size: float
    caches: int
    early: float
    late: float

    def words(self, found: Finding) -> Words:
        more = f" and {times(self.caches - 1, 'container')} more" if self.caches > 1 else ""
        per = per_text(found.rates[0].per)
        pace = f"ever more slowly: from {_bare(self.early)} to {_bare(self.late)}{per}"
        if self.late >= self.early:
            pace = f"by other counters of work more slowly, {_bare(self.late)}{per}"
        return Words(
            f"{self.role} still fills {self.path} ({number(self.size)} entries){more}, {pace}",
            cause="it grows like a cache, and no limit of it is known",
        )

    def advice(self, found: Finding) -> str:
        del found
        return "Run until it is full, or start the target with a smaller cache."


_KINDS: Final[dict[Sort, type[Held]]] = {
    Sort.ENTRIES: EntriesKept,
    Sort.OBJECTS: ObjectsKept,
    Sort.BLOCKS: BlocksKept,
    Sort.BYTES: BytesKept,
    Sort.HANDLES: HandlesKept,
}
_UNNAMED: Final = (Sort.BLOCKS, Sort.BYTES)
# Which count leads if one leak shows in several.
_ORDER: Final = (Sort.ENTRIES, Sort.OBJECTS, Sort.BLOCKS, Sort.BYTES, Sort.HANDLES)
# Containers of weak references: they are as long as others keep what they list.
_WEAK: Final = frozenset(
    {
        "_weakrefset.WeakSet.data",
        "weakref.WeakKeyDictionary.data",
        "weakref.WeakValueDictionary.data",
    }
)


def kept_findings(
    growing: Sequence[Growing],
    metrics: Sequence[MetricResult] = (),
    allowed: Allowance | None = None,
) -> list[Finding]:
    """Return one finding for each container that keeps entries, and for other growth in processes
    without such a container.
    """
    found = []
    for own in _by_heap(growing):
        in_heap = [one for one in own if one.sort is not Sort.HANDLES]
        kept = [one for one in in_heap if one.kind is GrowthKind.KEPT]
        opened = [one for one in in_heap if one.kind is GrowthKind.OPEN]
        leaders = _leaders(kept) or _leaders(opened)[:1]
        containers = [
            one for one in own if one.sort is Sort.ENTRIES and one.kind is GrowthKind.FILLS
        ]
        leaders = _unless_explained(leaders, opened, containers)
        filling = [one for one in containers if _matters(one)]
        led = set(map(id, leaders))
        beside = [
            one
            for one in own
            if id(one) not in led and one.kind in (GrowthKind.KEPT, GrowthKind.OPEN)
        ]
        for place, leader in enumerate(leaders):
            others = _besides(leader, beside, metrics) if place == 0 else ()
            found.append(_finding(leader, others, allowed or Allowance()))
        most = sorted(filling, key=lambda one: -one.last)
        found += [_fills(one, len(most)) for one in most[:1]]
        found += _handles(own, leaders)
    return found


def _handles(own: Sequence[Growing], leaders: Sequence[Growing]) -> list[Finding]:
    """Return what is kept open, unless the first leader is a leak that names it as evidence.  What
    is undecided has a finding by its trend.
    """
    kept = [one for one in own if one.sort is Sort.HANDLES and one.kind is GrowthKind.KEPT]
    if leaders and leaders[0].kind is GrowthKind.KEPT:
        kept = [one for one in kept if not _events(one) & _events(leaders[0])]
    return [_finding(one, (), Allowance()) for one in sorted(kept, key=_place)]


def _unless_explained(
    leaders: list[Growing], opened: Sequence[Growing], caches: Sequence[Growing]
) -> list[Growing]:
    """Return ``leaders``, or the container that grows in step with the leader and explains it: the
    finding is as open as that container.  Empty if a bounded cache explains it.
    """
    if not leaders or (leaders[0].sort is Sort.ENTRIES and leaders[0].one):
        return leaders
    leader = leaders[0]
    if any(one.bound and _in_step(one, leader) for one in caches):
        return []
    before = _ORDER[: _ORDER.index(leader.sort)]
    named = [
        one
        for one in opened
        if one.sort in before
        and _in_step(one, leader)
        and (leader.sort is not Sort.OBJECTS or _holds(one))
    ]
    return _leaders(named)[:1] or leaders


def without_parts(findings: Sequence[Finding], kept: Sequence[Finding]) -> list[Finding]:
    """Drop the growth of memory from ``findings`` for processes whose kept entries are known, and
    the trends of what is known to be kept open.
    """
    leaks = [one for one in kept if one.verdict is VerdictKind.LEAK]
    named = {_owner(one.subject) for one in leaks}
    opened = {labelled(name, dict(_owner(one.subject))) for one in leaks for name in _opened(one)}
    return [
        finding
        for finding in findings
        if finding.subject not in opened
        and not (
            isinstance(finding.basis, Growth)
            and unlabelled(finding.subject) == MEMORY
            and _owner(finding.subject) in named
        )
    ]


def _opened(leak: Finding) -> Iterable[str]:
    """Yield the metrics of what ``leak`` keeps open, as its subject or as evidence."""
    basis = leak.basis
    if isinstance(basis, HandlesKept):
        yield basis.name
    if isinstance(basis, Held):
        yield from (one.name for one in basis.beside if one.sort == Sort.HANDLES.value)


def _owner(subject: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels_of(subject).items()))


def _by_heap(growing: Sequence[Growing]) -> list[list[Growing]]:
    heaps: dict[int, list[Growing]] = {}
    for one in growing:
        heaps.setdefault(id(one.heap), []).append(one)
    return list(heaps.values())


def _leaders(kept: Sequence[Growing]) -> list[Growing]:
    """Return every container that holds what is kept; if none, the first other growing count."""
    containers = [one for one in kept if _holds(one)]
    if containers:
        return sorted(containers, key=_place)
    return sorted(kept, key=_place)[:1]


def _holds(one: Growing) -> bool:
    """Whether it is a container that stayed the same and keeps its entries alive."""
    return one.sort is Sort.ENTRIES and one.one and one.name not in _WEAK


def _place(one: Growing) -> tuple[int, int, bool, float, str]:
    driver = one.kept.driver
    whole = abs(driver.per_event - 1.0) < 0.02
    timed = driver.counter == TIME
    sort, told = _ORDER.index(one.sort), 0
    if one.sort is Sort.ENTRIES and not _holds(one):
        # More and more containers: the objects that own them say more, if their class has a name.
        sort, told = _ORDER.index(Sort.OBJECTS), 3 if one.name in _WEAK else 1
    elif one.sort is Sort.OBJECTS and _is_builtin(one.name):
        told = 2
    return sort, told, timed, 0.0 if whole else 1.0, one.name


def _is_builtin(kind: str) -> bool:
    """Whether objects of this type are part of any program, such as ``builtins.list``."""
    module = kind.partition(".")[0]
    return module in ("builtins", "weakref") or (module[:1] == "_" and module[:2] != "__")


def _besides(
    leader: Growing, others: Sequence[Growing], metrics: Sequence[MetricResult]
) -> tuple[Beside, ...]:
    """Return what grows with the event of ``leader``, or with an indistinguishable one."""
    shown = sorted((one for one in others if _events(one) & _events(leader)), key=_place)
    # What is kept open has no finding of its own then, so it is always named.
    shown.sort(key=lambda one: one.sort is not Sort.HANDLES)
    found = [
        Beside(
            sort=one.sort.value,
            name=one.name,
            value=one.kept.driver.per_event * _same_event(one, leader),
            per=_event(leader),
        )
        for one in shown
    ]
    return (*found[:_NAMED], *_memory(leader, metrics))


def _in_step(cache: Growing, other: Growing) -> bool:
    """Whether both grow with the same event, or with indistinguishable ones."""
    return not cache.kept.slows and bool(_events(cache) & _events(other))


def _events(one: Growing) -> set[str]:
    """Return the event that it grows with, and its rivals."""
    return {one.kept.driver.counter, *one.kept.driver.rivals}


def _same_event(one: Growing, leader: Growing) -> float:
    """Return events of ``one``'s driver per event of the leader's: 1 if they are the same."""
    own, other = one.kept.driver, leader.kept.driver
    return 1.0 if own.counter == other.counter else own.events / max(other.events, 1.0)


def _memory(leader: Growing, metrics: Sequence[MetricResult]) -> Iterable[Beside]:
    subject = leader.heap.subject(MEMORY)
    for result in metrics:
        rate = result.rate_per_hour
        if result.metric == subject and rate is not None and rate.lower > 0:
            events = leader.kept.driver.events
            hours = (leader.until_s - leader.since_s) / 3600.0
            value = rate.value * hours / events if _event(leader) and events else rate.value
            yield Beside(sort="B", name=MEMORY, value=value, per=_event(leader) or "h")


def _event(one: Growing) -> str:
    counter = one.kept.driver.counter
    return "h" if counter == TIME else singular(counter)


def _budget_of(one: Growing, allowed: Allowance) -> WithinBudget | None:
    """Return what is left of the cache that ``one`` may be; unnamed counts may be any cache."""
    return allowed.budget if one.sort in _UNNAMED or allowed.covers(one.name) else None


def _finding(one: Growing, beside: tuple[Beside, ...], allowed: Allowance) -> Finding:
    kept, kind = one.kept, _KINDS[one.sort]
    budget = _budget_of(one, allowed)
    unit = declared(one.name).label if one.sort is Sort.HANDLES else one.sort.value
    values = {
        "role": one.heap.role,
        "name": one.name,
        "last": one.last,
        "at_idle": one.at_idle,
        "collected": one.collected,
        "rounds": kept.rounds,
        "alike": kept.alike,
        "counted": kept.driver.exact,
        "doubt": one.doubt.value,
        "censuses": one.censuses,
        "early": kept.early * _scale(one),
        "late": kept.late * _scale(one),
        "odds": None if kept.rounds else kept.odds,
        "beside": beside,
        "budget": budget,
    }
    if one.doubt is Doubt.CACHE:
        values["kv_cache"] = allowed.kv_caches.get(one.heap.subject(""))
    if one.sort is Sort.ENTRIES:
        values["holds"] = one.heap.holds.get(one.name, "")
        values["several"] = not one.one
    found = Finding(
        msgspec.convert(values, kind),
        VerdictKind.LEAK
        if one.kind is GrowthKind.KEPT and budget is None
        else VerdictKind.INCONCLUSIVE,
        one.heap.subject(one.name if one.sort is not Sort.ENTRIES else f"entries of {one.name}"),
        since_s=one.since_s,
    )
    if kept.timed:
        driver = kept.driver
        value, low, high = (3600.0 * x for x in (driver.per_event, driver.lower, driver.upper))
        return replace(found, rates=(Rate(value, low, high, unit, "h"),))
    return explained(found, kept.driver, unit)


def _scale(one: Growing) -> float:
    return 3600.0 if one.kept.timed else 1.0


def _matters(one: Growing) -> bool:
    """Whether a filling cache grows enough to leave the run undecided.

    Many containers at one path are not a cache: their holder is, and has a name of its own.
    """
    if one.bound is not None or not one.one:
        return False
    kept = one.kept
    share = kept.late / max(kept.early + kept.late, 1e-300)
    return share * kept.driver.rise >= _MATTERS * max(one.last, 1.0)


def _fills(one: Growing, caches: int) -> Finding:
    kept = one.kept
    basis = CacheFills(
        role=one.heap.role,
        path=one.name,
        size=one.last,
        caches=caches,
        early=kept.early * _scale(one),
        late=kept.late * _scale(one),
    )
    rate = Rate(basis.late, basis.late, basis.late, one.sort.value, _event(one))
    return Finding(
        basis,
        VerdictKind.INCONCLUSIVE,
        one.heap.subject(f"entries of {one.name}"),
        rates=(rate,),
        since_s=one.since_s,
    )


def _each(rate: Rate, what: str) -> str:
    """``1.00 (0.99 to 1.01) entries of app.kept per request``."""
    value = format_bytes(rate.value) if rate.unit == Unit.BYTES else _bare(rate.value)
    if rate.unit == Unit.BYTES:
        what = "from malloc"
    if rate.lower == rate.upper:
        return f"exactly {value} {what}{per_text(rate.per)}"
    ends = (rate.lower, rate.upper)
    if rate.unit == Unit.BYTES:
        low, high = map(format_bytes, ends)
    else:
        low, high = map(_bare, ends)
    return f"{value} ({low} to {high}) {what}{per_text(rate.per)}"


def _for_each(found: Finding) -> str:
    return "" if found.driver is None else f" for each {singular(found.driver)}"


def _words(sort: Sort, name: str) -> str:
    return _WORDS[sort].format(name=declared(name).label if sort is Sort.HANDLES else name)


def _bare(value: float) -> str:
    rate = Rate(value, value - 1.0, value + 1.0, Unit.COUNT.value, "")
    return bare_rate_text(rate)
