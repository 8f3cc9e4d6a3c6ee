"""Judge every column of a file of series, or of a stored run."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np

from hybridbench.analysis.facts.restarts import (
    Falls,
    changes,
    counter_resets,
    level_falls,
    swapped_out,
)
from hybridbench.analysis.record import Series
from hybridbench.analysis.recorded import (
    ExternalSeries,
    JudgedSeries,
    TrendContext,
    judge_series,
    undecided,
)
from hybridbench.analysis.trend.reasons import NoNumber
from hybridbench.foundation.errors import ConfigError, ErrorCode, UsageError
from hybridbench.foundation.labels import unlabelled
from hybridbench.foundation.metrics import MEMORY, Unit
from hybridbench.foundation.thresholds import ColumnThreshold, parse_column_threshold
from hybridbench.foundation.units import format_duration, parse_duration_s
from hybridbench.records.finding import Finding, VerdictKind
from hybridbench.records.verdict import Failure, precedence
from hybridbench.rundir.layout import MANIFEST
from hybridbench.series.files import SeriesFile, read_series
from hybridbench.series.grid import RawColumn, columns_few
from hybridbench.series.times import BadTimeError, looks_like_time, parse_times, scaled, unit_in
from hybridbench.series.units import (
    FREE_OF_CACHE,
    PROCESS_ID,
    RESTARTED,
    UNITS,
    UPTIME,
    Meaning,
    Role,
    bare_name,
    counts_so_far,
    is_available,
    is_collected,
    is_gated,
    is_memory,
    may_be_held,
    meaning_of,
    parse_unit,
    says_cache,
)

# Preferred counters, best first: finished requests, then requests, then tokens.
_WORKS = ("finish|success|complet", "(?<![a-z])req|iteration|calls", "token", "")
# Memory without the kernel's cache: of the process itself, else of the machine.
_PROCESS_OWN = re.compile(r"anon|rss|private|working_set|^used$", re.I)
# An amount as printed for people, but not a version such as 1.2.3.
_NUMBER_LIKE = re.compile(
    r"(?!\d+(\.\d+){2,}$)[+-]?\d[\d\s.,'\u2019_]*([kKMGTP]?i?[BbOo]\w*|[kKMGTP]|%)?|0x[\da-fA-F]+"
)
_BEGINS_LIKE_NUMBER = re.compile(r"\W*(\w+[=:] ?)?\d")
_NO_STEADY_START = (
    "no start of steady state was given (--steady-at): the first tenth counts as warm-up, and "
    "growth is called a leak only after 45m"
)
_UNREAD_MAX = 3
# The least bytes and the most KiB of a process; the page size, as resident memory is whole pages.
_PROCESS_BYTES, _PROCESS_KIB, _PAGE = 2**23, 2**27, 4096
_OF_TIME = re.compile(r"time|clock|elapsed|duration|since|(^|_)age", re.I)
_OF_CLOCK = 0.95  # share of its steps
_SWAP, _OF_PROCESS = re.compile(r"swap", re.I), re.compile(r'\{(.*, )?p?pid="', re.I)


@dataclass(frozen=True)
class JudgeOptions:
    """The caller's choices, as given on the command line.

    Args:
        metrics: ``NAME`` or ``NAME:unit``; empty for every level.
        works: names of cumulative counters; empty to detect them.
        unit: for columns that give none.
        thresholds: ``NAME<200MiB/h``.
        steady_at: a time in the file, or a duration after its start.
        lower_is_worse: columns that must not fall.
        time_column: the column that holds the times, if its name does not show it.
        interval_s: time between two samples, for a file without times.
        never_restarted: treat every fall as part of a sawtooth.
        only: judge only the columns of ``thresholds`` and ``metrics``.
    """

    metrics: Sequence[str] = ()
    works: Sequence[str] = ()
    unit: str | None = None
    thresholds: Sequence[str] = ()
    steady_at: str | None = None
    lower_is_worse: Sequence[str] = ()
    time_column: str | None = None
    interval_s: float | None = None
    never_restarted: bool = False
    only: bool = False


@dataclass(frozen=True)
class FileVerdict:
    """The verdict on one file; only a stored run has ``findings``."""

    source: str
    kind: VerdictKind
    rows: tuple[JudgedSeries, ...]
    notes: tuple[str, ...] = ()
    not_judged: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    headline: str = ""
    failures: tuple[Failure, ...] = ()


def judge_file(path: str, options: JudgeOptions) -> FileVerdict:
    """Judge every requested column of the file.

    Raises:
        ConfigError: the file cannot be read.
        UsageError: a name or unit in ``options`` does not fit the file.
    """
    if (Path(path) / MANIFEST).is_file():
        return _judge_run(Path(path), options)
    return judge_columns(read_series(path, options.time_column, options.interval_s), options)


def judge_columns(series: SeriesFile, options: JudgeOptions) -> FileVerdict:
    """Judge every requested column of ``series``, which is already read."""
    return _JudgedFile(series, options).judge()


def worst(kinds: Sequence[VerdictKind]) -> VerdictKind:
    """Combine verdicts on several files: no file can refute a finding in another."""
    return min(kinds, key=lambda kind: precedence(kind, exact=True))


def _judge_run(path: Path, options: JudgeOptions) -> FileVerdict:
    if options != JudgeOptions():
        raise UsageError(
            f"{path}: is a run, which its own profile judges; pass {path}/samples.jsonl to judge "
            "single columns.",
            code=ErrorCode.OPTION_CONFLICT,
        )
    from hybridbench.analysis.judge import judge
    from hybridbench.foundation.metrics import declared
    from hybridbench.rundir.reader import read_run

    verdict = judge(read_run(path))
    rows = tuple(
        JudgedSeries(
            name=result.metric,
            verdict=VerdictKind(result.outcome),
            result=result,
            falls_are_bad=not declared(result.metric).higher_is_worse,
            unit_known=True,
            per_work=() if result.rate_per_request is None else (result.rate_per_request,),
        )
        for result in verdict.metrics
    )
    return FileVerdict(
        source=str(path),
        kind=verdict.kind,
        rows=rows,
        notes=(*verdict.notes, verdict.can_rule_out),
        findings=verdict.findings,
        headline=verdict.headline,
        failures=verdict.failures,
    )


@dataclass(frozen=True)
class _Column(Series):
    """A numeric column with times from the file's start, in the unit of its assumed meaning."""

    meaning: Meaning
    raw: RawColumn

    @property
    def is_memory(self) -> bool:
        """Whether it is in bytes and not swap."""
        return self.meaning.unit is Unit.BYTES and not _SWAP.search(self.name)

    def judged(self, falls: Falls, question: TrendContext) -> JudgedSeries | None:
        """Judge the column; None if it has fewer than two readings."""
        has_cache = self.meaning.role is Role.WITH_CACHE
        series = ExternalSeries(
            self.name,
            self.t_s,
            self.value,
            self.meaning.unit,
            unit_known=self.meaning.known,
            higher_is_worse=self.meaning.higher_is_worse,
            decays=self.meaning.decays,
            collected=is_collected(self.name),
            without_cache=FREE_OF_CACHE if has_cache else "",
            may_count=self.meaning.may_count and not self._turns_back(),
            step=self.raw.step * self.meaning.factor * (self.meaning.unit is Unit.BYTES),
            needs_unit=bool(self.meaning.note) and not self.meaning.known,
        )
        return judge_series(series, falls, question)

    def _turns_back(self) -> int:
        """Count the falls, or the rises of what is left, that no restart explains."""
        if self.meaning.higher_is_worse:
            return _dips(self.raw)
        value = self.raw.value[np.isfinite(self.raw.value)]
        return int((np.diff(value) > 0).sum())


@dataclass
class _JudgedFile:
    """One file and the options to judge it with."""

    file: SeriesFile
    options: JudgeOptions
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.notes.extend(self.file.notes)
        self._zero_s = min(float(c.t_s.min()) for c in self.file.columns if c.t_s.size)
        self._absolute = any(c.absolute for c in self.file.columns)
        self._names = self.file.names()
        self._bare_names = frozenset(map(unlabelled, self._names))
        numbers = [c for c in self.file.columns if not c.is_text]
        self._are_bytes = _are_bytes([c for c in numbers if c.usual_unit == "bytes"])
        if self.options.unit is not None:
            # A misspelt unit is refused even if no column needs it.
            with _named("--unit", self.options.unit):
                parse_unit(self.options.unit)
        self._columns = [self._taken(c, m) for c, m in self._meanings(numbers)]
        self._unread = list(self._not_read())[:_UNREAD_MAX]

    def judge(self) -> FileVerdict:
        thresholds = self._thresholds()
        chosen = self._chosen(thresholds)
        limits: dict[str, float] = {}
        for column in chosen:
            if column.name in thresholds:
                threshold = thresholds[column.name]
                with _named("--threshold", threshold.text):
                    limits[column.name] = threshold.per_hour(column.meaning.unit)
        question = TrendContext(self._works(), self._steady_s(), limits)
        question = replace(question, loads=self._loads(question))
        self.notes += [column.meaning.note for column in chosen if column.meaning.note]
        every, open_names = list[JudgedSeries](), list[str]()
        for column in chosen:
            own = [work for work in question.works if self._is_of(work, column)]
            row = column.judged(self._falls(column), replace(question, works=own))
            every += [] if row is None else [row]
            if row and row.verdict is VerdictKind.INCONCLUSIVE and column.name not in limits:
                # With thresholds only decided columns count.
                open_names += [column.name] * (bool(limits) or self._varies(column, row))
        if not every:
            names = columns_few([column.name for column in chosen])
            raise ConfigError(f"{self.file.source}: {names}: fewer than two readings.")
        if not (self.options.metrics or limits):
            # Memory that is not read may leak.
            every += [row for row in self._unread if is_memory(unlabelled(row.name))]
        rows = [row for row in every if row.name not in open_names] or every
        fallen = [row.name for row in rows if row.verdict is VerdictKind.LEAK and row.falls_are_bad]
        if left := list(filter(is_available, fallen)):
            self.notes.append(
                f"{columns_few(left)}: MemAvailable counts page cache as available; what does not "
                f"falls as the cache fills: then judge {FREE_OF_CACHE}"
            )
        if open_names and rows is not every:
            why = "a threshold decides" if limits else "traffic varies"
            names = columns_few(open_names)
            self.notes.append(f"undecided, and not counted because {why}: {names}")
        used = {row.name for row in every}
        self.notes += self._more_notes(question, used)
        used |= {one.name for one in (*question.works, *question.loads)}
        return FileVerdict(
            source=self.file.source,
            kind=worst([row.verdict for row in rows]),
            rows=tuple(rows),
            notes=tuple(dict.fromkeys(self.notes)),
            not_judged=tuple(name for name in self._names if name and name not in used),
            failures=tuple(row.failure for row in rows if row.failure is not None),
        )

    def _varies(self, column: _Column, row: JudgedSeries) -> bool:
        """Return whether traffic explains the undecided ``column``, unless it was asked for.

        Requests in flight do not leak by themselves.  Neither do speeds and delays, which count
        here only if the best estimate is that they became worse.
        """
        rate = row.result.rate_per_hour
        is_steady = column.meaning.decays and rate is not None and rate.value <= 0.0
        return column.meaning.role is Role.LOAD or (is_steady and not self.options.metrics)

    def _more_notes(self, question: TrendContext, judged: Collection[str]) -> Iterator[str]:
        """Yield notes on the whole file: omitted cells, and the columns that explain growth."""
        for column in self.file.columns:
            if column.text_at is not None and not column.is_text:
                line, cell = column.text_at
                yield f"{column.name}: {cell!r} in line {line} is not a number: left out"
        yield from self._cache_note(judged)
        yield from (_said(row) for row in self._unread if row.name not in judged)
        if self.options.steady_at is None:
            yield _NO_STEADY_START
        if question.works:
            yield f"work done is read from {', '.join(w.name for w in question.works[:2])}"
        if question.loads:
            names = ", ".join(load.name for load in question.loads)
            yield f"the effect of requests in flight ({names}) is subtracted"

    def _find(self, option: str, name: str) -> _Column:
        """Find the column called ``name``: exact, or ignoring case, labels and unit."""
        columns, folded = self.file.columns, name.casefold()
        forms = {c.name: (c.name, unlabelled(c.name), bare_name(c.name)) for c in columns}
        alike = [c for c in columns if folded in map(str.casefold, forms[c.name])]
        same = [c for c in columns if c.name == name][:1] or alike
        if len(same) > 1:
            raise UsageError(
                f"{name}: {len(same)} series of {self.file.source} have that name, the "
                f"first is {same[0].name}; name one with its labels.",
                option=option,
            )
        if not same:
            near = difflib.get_close_matches(name, self._names, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"there are {columns_few(self._names)}."
            raise UsageError(
                f"{name}: {self.file.source} has no such column; {hint}",
                code=ErrorCode.UNKNOWN_NAME,
                option=option,
            )
        (column,) = same
        if column.is_text and column.text_at is not None:
            line, cell = column.text_at
            raise ConfigError(
                f"{self.file.source}:{line}: column {column.name}: {cell!r} is not a number; "
                "choose a column of numbers with --metric."
            )
        return next(one for one in self._columns if one.raw is column)

    def _thresholds(self) -> dict[str, ColumnThreshold]:
        found: dict[str, ColumnThreshold] = {}
        for text in self.options.thresholds:
            with _named("--threshold", text):
                threshold = parse_column_threshold(text)
            found[self._find("--threshold", threshold.name).name] = threshold
        return found

    def _chosen(self, thresholds: Mapping[str, ColumnThreshold]) -> list[_Column]:
        lower = {self._find("--lower-is-worse", n).name for n in self.options.lower_is_worse}
        chosen = [self._asked_for(text) for text in self.options.metrics]
        if not chosen and not (self.options.only and thresholds):
            chosen = self._levels()
        for name in dict.fromkeys((*thresholds, *lower)):
            if all(column.name != name for column in chosen):
                chosen.append(_as_level(self._find("--threshold", name)))
        if not chosen:
            more = [*map(_said, self._unread), *self._cache_note(())]
            raise UsageError(
                f"{self.file.source}: no column looks like a level that could leak "
                f"(columns: {columns_few(self._names)}); "
                f"{'; '.join(['choose with --metric NAME', *more])}.",
                code=ErrorCode.OPTION_CONFLICT,
            )
        return [
            replace(c, meaning=replace(c.meaning, higher_is_worse=False, may_count=False))
            if c.name in lower
            else c
            for c in chosen
        ]

    def _levels(self) -> list[_Column]:
        """Return every level; for a run's own samples, only the gating metrics.

        Totals that include the page cache are returned only if no other column but swap is in
        bytes.
        """
        found = [c for c in self._columns if c.name not in self.options.works]
        levels = [c for c in found if c.meaning.role in (Role.LEVEL, Role.LOAD)]
        if not any(c.is_memory for c in levels):
            levels += [c for c in found if c.meaning.role is Role.WITH_CACHE]
        # SQL's count(*) of each group.
        levels = levels or [_as_level(c) for c in found if bare_name(c.name) == "count"]
        # A user's own script may use one of our metric names for a column.
        of_run = any(unlabelled(c.name) == MEMORY for c in levels)
        return [c for c in levels if not of_run or is_gated(c.name)]

    def _not_read(self) -> Iterator[JudgedSeries]:
        """Yield a row for each changing column whose numbers are not read, one of each name."""
        names = set[str]()
        for column in self.file.columns:
            name, (line, cell) = unlabelled(column.name), column.text_at or (0, "")
            measures = column.is_text and not column.is_fixed and _may_measure(name, cell)
            if measures and name not in names and meaning_of(name).role is not Role.SHOWN:
                names.add(name)
                t_s = column.t_s - self._zero_s
                series = ExternalSeries(column.name, t_s, column.value, Unit.COUNT)
                yield undecided(series, NoNumber(cell=cell, line=line))

    def _cache_note(self, judged: Collection[str]) -> Iterator[str]:
        """Say which columns are caches or contain them, and which to judge instead."""
        left = [c for c in self._columns if c.name not in judged]
        cached = [c.name for c in left if c.meaning.role in (Role.CACHE, Role.WITH_CACHE)]
        if not cached or self.options.metrics:
            return
        levels = (c for c in self._columns if c.meaning.role is Role.LEVEL)
        memory = [c.name for c in levels if c.is_memory]
        memory.sort(key=lambda n: (not _PROCESS_OWN.search(n), not is_available(n)))
        best = memory[0] if memory else FREE_OF_CACHE
        yield (
            f"{columns_few(cached)}: page cache, another cache, or free memory that caches fill: "
            f"not judged, judge {best}"
        )

    def _asked_for(self, text: str) -> _Column:
        """Find a column by name or ``NAME:unit``; a label may also contain a colon."""
        head, _, unit = text.rpartition(":")
        if text in self._names or not (head in self._names or unit.strip().lower() in UNITS):
            return _as_level(self._find("--metric", text))
        raw = self._find("--metric", head).raw
        with _named("--metric", text):
            return self._taken(raw, parse_unit(unit))

    def _taken(self, raw: RawColumn, meaning: Meaning) -> _Column:
        value = raw.value * meaning.factor
        return _Column(raw.name, raw.t_s - self._zero_s, value, meaning, raw)

    def _meanings(self, columns: Sequence[RawColumn]) -> Iterator[tuple[RawColumn, Meaning]]:
        """Yield ``columns`` with their meanings; beside a known level, others may be counts."""
        found = [(column, self._meaning(column)) for column in columns]
        levels = [(column, meaning) for column, meaning in found if meaning.role is Role.LEVEL]
        beside = any(meaning.unit is Unit.BYTES or may_be_held(c.name) for c, meaning in levels)
        for column, meaning in found:
            doubtful = beside and meaning.role is Role.LEVEL and not meaning.known
            doubtful = doubtful and not (meaning.is_delay or may_be_held(column.name))
            yield column, replace(meaning, may_count=True) if doubtful else meaning

    def _meaning(self, column: RawColumn) -> Meaning:
        meaning = meaning_of(column.name, self._names)
        if meaning.role is Role.COUNTER and _sinks(column):
            # It is a number of threads, for example, rather than work done.
            meaning = replace(meaning, role=Role.LEVEL)
        so_far = column.counts or counts_so_far(column.name, self._bare_names)
        if so_far and meaning.role is Role.LEVEL and not _dips(column):
            return replace(meaning, role=Role.CUMULATIVE, note="")
        # An uptime shows restarts.
        timed = not meaning.known or meaning.unit in (Unit.SECONDS, Unit.MILLISECONDS)
        timed = timed and meaning.role is not Role.CUMULATIVE
        if timed and (_numbers_rows(column) or _is_clock(column)):
            return replace(meaning, role=Role.SHOWN, note="")
        if column.in_bytes and meaning.role not in (Role.SHOWN, Role.LOAD):
            role = Role.LEVEL if meaning.role is Role.COUNTER else meaning.role
            role = Role.CACHE if role is Role.LEVEL and says_cache(column.name) else role
            return replace(meaning, role=role, unit=Unit.BYTES, factor=1.0, known=True, note="")
        if meaning.known or meaning.role is Role.SHOWN:
            return meaning
        word = column.usual_unit if self._are_bytes or column.usual_unit != "bytes" else ""
        if meaning.role is Role.LEVEL and self.options.unit is not None:
            word = self.options.unit
        elif not word:
            return meaning
        with _named("--unit", word):
            unit = parse_unit(word)
        # A person who gives the unit of bare numbers knows what they are.
        may_count = meaning.may_count and column.name != "number"
        return replace(
            meaning, unit=unit.unit, factor=unit.factor, known=True, note="", may_count=may_count
        )

    def _works(self) -> list[_Column]:
        if self.options.works:
            named = [self._find("--work-column", name) for name in self.options.works]
            works = [self._taken(c.raw, Meaning(Role.COUNTER, Unit.COUNT)) for c in named]
        else:
            counters = [c for c in self._columns if c.meaning.role is Role.COUNTER]
            works = _best_first([c for c in counters if c.meaning.unit is Unit.COUNT])
        return [one for one in works if np.any(np.diff(one.value[np.isfinite(one.value)]) > 0)]

    def _loads(self, question: TrendContext) -> list[_Column]:
        """Return the columns of requests in flight, or none if they grow (stuck requests)."""
        loads = [column for column in self._columns if column.meaning.role is Role.LOAD]
        rows = (load.judged(Falls(self._restarts(load)[0]), question) for load in loads)
        rates = (row.result.rate_per_hour for row in rows if row is not None)
        return [] if any(rate is not None and rate.lower > 0 for rate in rates) else loads

    def _is_of(self, one: Series, column: _Column) -> bool:
        """Return whether ``one`` describes the same process as ``column``."""
        of_one, of_column = one.name.partition("{")[2], column.name.partition("{")[2]
        return of_one in ("", of_column) or one.name in self.options.works

    def _restarts(self, column: _Column) -> tuple[tuple[float, ...], bool]:
        """Return the restart times of ``column``'s process, and whether a restart would be visible.

        A restart resets counters and changes process ids.
        """
        known, counted = {at_s - self._zero_s for at_s in column.raw.starts_s}, False
        resets = dict[int, list[tuple[float, ...]]]()
        for one, at_s, is_sure, is_of_process in self._marks:
            if self._is_of(one, column):
                counted |= is_of_process
                known.update(at_s if is_sure else ())
                resets.setdefault(one.raw.group, []).extend([] if is_sure else [at_s])
        for each in resets.values():
            # Counters of a process restart together; one that falls alone counts something else.
            known.update(s for s, n in Counter(chain(*each)).items() if 3 * n >= len(each))
        return tuple(sorted(known)), counted

    @cached_property
    def _marks(self) -> list[tuple[_Column, tuple[float, ...], bool, bool]]:
        """The columns that show restarts: when, surely or not, and whether of a single process."""
        found = []
        for one in self._columns:
            name, role, read = unlabelled(one.name), one.meaning.role, np.isfinite(one.value)
            changed = PROCESS_ID.fullmatch(name) or RESTARTED.fullmatch(name)
            counts = role is Role.COUNTER or one.name in self.options.works
            counts = counts or (role is Role.CUMULATIVE and not _sinks(one.raw))
            if (changed or counts) and np.any(one.value[read] > 0):
                began = changes if changed else counter_resets
                at_s = began(one.t_s[read], one.value[read])
                sure = changed or UPTIME.fullmatch(name) or one.name in self.options.works
                # Of a container or machine, in which a process may restart unseen.
                is_outer = RESTARTED.fullmatch(name) or UPTIME.fullmatch(name)
                found.append((one, at_s, bool(sure), not is_outer))
        return found

    @cached_property
    def _swaps(self) -> list[_Column]:
        return [one for one in self._columns if _SWAP.search(one.name)]

    def _falls(self, column: _Column) -> Falls:
        known, counted = self._restarts(column)
        read = np.isfinite(column.value)
        t, value = column.t_s[read], column.value[read]
        # A value that is sometimes 0, such as a queue length, is not process memory.
        unknown = not column.meaning.known and bool(np.min(value, initial=np.inf) > 0)
        memory = column.meaning.unit is Unit.BYTES or unknown
        if self.options.never_restarted or not memory or not column.meaning.higher_is_worse:
            return Falls(known)
        # A series labelled with a process id belongs to one process.
        counted = counted or bool(_OF_PROCESS.search(column.name))
        falls = level_falls(t, value, known, counted=counted)
        for other in self._swaps:
            if other.raw.group == column.raw.group and other.raw is not column.raw:
                falls = swapped_out(t, value, other.value[read], falls)
        return falls

    def _steady_s(self) -> float | None:
        if self.options.steady_at is None:
            return None
        steady_s = self._given_steady_s(self.options.steady_at)
        end_s = max(float(c.t_s.max()) for c in self.file.columns if c.t_s.size) - self._zero_s
        if steady_s >= end_s:
            raise UsageError(
                f"{self.options.steady_at}: {self.file.source} ends {format_duration(end_s)} after "
                "its start, so nothing would be judged; give an earlier time.",
                option="--steady-at",
            )
        return steady_s

    def _given_steady_s(self, text: str) -> float:
        # An epoch time is longer than any valid duration.
        with suppress(ValueError):
            return parse_duration_s(text)
        with suppress(BadTimeError):
            moment = parse_times([text])
            if moment.absolute == self._absolute:
                return max(0.0, float(moment.t_s[0]) - self._zero_s)
        counts = "dates" if self._absolute else "seconds from its start"
        raise UsageError(
            f"{text}: neither a duration (10m) nor a time as {self.file.source} writes it "
            f"({counts}).",
            option="--steady-at",
        )


def _are_bytes(columns: Sequence[RawColumn]) -> bool:
    """Return whether ``columns`` are in bytes as their names suggest: a script may write KB."""
    largest = max((np.nanmax(c.value, initial=0.0) for c in columns), default=0.0)
    resident = [c.value for c in columns if unlabelled(c.name).rpartition(".")[2] == "rss"]
    # Averages have fractions.
    split = any(np.any(v % _PAGE > 0) and not np.any(v % 1 > 0) for v in resident)
    return bool(largest >= _PROCESS_BYTES and (largest > _PROCESS_KIB or not split))


def _said(unread: JudgedSeries) -> str:
    return f"{unread.name}: {unread.result.reason}: not judged"


def _may_measure(name: str, cell: str) -> bool:
    """Return whether ``cell`` looks like a number or, in a column of memory, begins like one."""
    begins = is_memory(name) and _BEGINS_LIKE_NUMBER.match(cell)
    return bool(begins or _NUMBER_LIKE.fullmatch(cell)) and not looks_like_time(cell)


def _numbers_rows(column: RawColumn) -> bool:
    """Return whether the column just numbers the rows: 0, 1, 2, ... or 1, 2, 3, ..."""
    value = column.value
    return value.size > 2 and bool(
        value[0] in (0.0, 1.0) and np.array_equal(value, value[0] + np.arange(value.size))
    )


def _is_clock(column: RawColumn) -> bool:
    """Return whether the column is a clock: it advances with the times, and looks like a time."""
    times = scaled(column.value, unit_in(column.name))
    if not (_OF_TIME.search(column.name) or times.absolute) or column.value.size < 3:
        return False
    lag = np.diff(times.t_s) - np.diff(column.t_s)
    # It may start again with each recording of a file.
    return bool(np.mean(np.abs(lag) <= 1.0) >= _OF_CLOCK)


def _sinks(column: RawColumn) -> bool:
    """Return whether the column often falls a little; a work counter falls only at a restart."""
    return _dips(column) > 0.01 * column.value.size


def _dips(column: RawColumn) -> int:
    """Count the falls of less than half; a restart causes larger ones."""
    value = column.value[np.isfinite(column.value)]
    return int(((np.diff(value) < 0) & (value[1:] > 0.5 * value[:-1])).sum())


def _best_first(columns: Sequence[_Column]) -> list[_Column]:
    """Sort counters: the best one for requests, then the best for tokens, then all others.

    Short names come first: ``requests_total`` is more useful than ``requests_rejected_total``.
    """

    def rank(column: _Column) -> tuple[int, int]:
        kind = next(i for i, pattern in enumerate(_WORKS) if re.search(pattern, column.name, re.I))
        return kind, len(column.name)

    ranked = sorted(columns, key=rank)
    tokens = next((i for i, c in enumerate(ranked) if "token" in c.name.lower()), 0)
    if tokens:
        ranked.insert(1, ranked.pop(tokens))
    return ranked


def _as_level(column: _Column) -> _Column:
    return replace(column, meaning=replace(column.meaning, role=Role.LEVEL, may_count=False))


@contextmanager
def _named(option: str, text: str) -> Iterator[None]:
    """Turn a ``ValueError`` raised inside into a usage error on ``option``, given as ``text``."""
    try:
        yield
    except ValueError as error:
        raise UsageError(f"{text}: {error}.", option=option) from error
