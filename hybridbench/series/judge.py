"""From a file with somebody's series, or a stored run, to the verdict on each of them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from hybridbench.errors import ConfigError, ErrorCode, UsageError
from hybridbench.metrics import Unit
from hybridbench.records.verdict import Failure, Finding, VerdictKind, precedence
from hybridbench.rundir.layout import MANIFEST
from hybridbench.series.files import SeriesFile, read_series
from hybridbench.series.table import RawColumn
from hybridbench.series.timeline import (
    Falls,
    Timeline,
    TimelineError,
    changes,
    counter_resets,
    level_falls,
    make_timeline,
)
from hybridbench.series.times import BadTimeError, parse_moment
from hybridbench.series.trend import ExternalSeries, JudgedSeries, TrendContext, judge_series
from hybridbench.series.units import (
    PROCESS_ID,
    Meaning,
    Role,
    bare_name,
    is_gated,
    meaning_of,
    parse_unit,
    unlabelled,
)
from hybridbench.thresholds.grammar import ColumnThreshold, parse_column_threshold
from hybridbench.units import parse_duration_s

# What a reader counts in: finished requests, then requests, then tokens.
_WORKS = tuple(
    re.compile(pattern, re.I)
    for pattern in (r"finish|success|complet", r"request|iteration|calls", r"tokens?", r"")
)
_NAMES_MAX = 8
# No run is that long: a plain number beyond it is a moment.
_EPOCH_S = 1e8


@dataclass(frozen=True)
class JudgeOptions:
    """What the caller said, as given on the command line.

    Args:
        metrics: ``NAME`` or ``NAME:unit``; empty for every level.
        works: names of cumulative counters; empty for those that look like one.
        unit: of columns that tell none.
        thresholds: ``NAME<200MiB/h``.
        steady_at: a time in the file, or a duration after its start.
        lower_is_worse: columns that must not fall.
        time_column: the one with the times, where its name does not say so.
        interval_s: between two samples of a file without times.
        never_restarted: every fall is part of a sawtooth, whatever it looks like.
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


@dataclass(frozen=True)
class FileVerdict:
    """One file, judged; ``findings`` only a stored run has."""

    source: str
    kind: VerdictKind
    rows: tuple[JudgedSeries, ...]
    notes: tuple[str, ...] = ()
    not_judged: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    headline: str = ""
    failures: tuple[Failure, ...] = ()


def judge_file(path: str, options: JudgeOptions) -> FileVerdict:
    """The verdict on every column of the file that is asked for.

    Raises:
        ConfigError: the file cannot be read.
        UsageError: a name or unit of ``options`` does not fit it.
    """
    if (Path(path) / MANIFEST).is_file():
        return _judge_run(Path(path), options)
    series = read_series(path, options.time_column, options.interval_s)
    return _JudgedFile(series, options).judge()


def worst(kinds: Sequence[VerdictKind]) -> VerdictKind:
    """The one that all together come to: no file can refute what was found in another."""
    return min(kinds, key=lambda kind: precedence(kind, exact=True))


def _judge_run(path: Path, options: JudgeOptions) -> FileVerdict:
    if options != JudgeOptions():
        raise UsageError(
            f"{path}: is a run, which its own profile judges; pass {path}/samples.jsonl to judge "
            "single columns.",
            code=ErrorCode.OPTION_CONFLICT,
        )
    from hybridbench.analysis.judge import judge
    from hybridbench.metrics import declared
    from hybridbench.rundir.reader import read_run

    verdict = judge(read_run(path))
    rows = tuple(
        JudgedSeries(
            result.metric,
            VerdictKind(result.outcome),
            result,
            () if result.rate_per_request is None else (result.rate_per_request,),
            not declared(result.metric).higher_is_worse,
            unit_known=True,
        )
        for result in verdict.metrics
    )
    return FileVerdict(
        str(path),
        verdict.kind,
        rows,
        (*verdict.notes, verdict.can_rule_out),
        findings=verdict.findings,
        headline=verdict.headline,
        failures=verdict.failures,
    )


@dataclass(frozen=True)
class _Chosen:
    """A column to judge, and what it is taken for."""

    column: RawColumn
    meaning: Meaning


@dataclass
class _JudgedFile:
    """One file with what was asked of it."""

    file: SeriesFile
    options: JudgeOptions
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.notes.extend(self.file.notes)
        starts = [float(c.t_s.min()) for c in self.file.columns if c.t_s.size]
        self._zero_s = min(starts)
        self._absolute = any(c.absolute for c in self.file.columns)
        self._timelines: dict[int, Timeline] = {}

    def judge(self) -> FileVerdict:
        thresholds = self._thresholds()
        chosen = self._chosen(thresholds)
        works = self._works()
        known = self._known_restarts(works)
        limits: dict[str, float] = {}
        for c in chosen:
            threshold = thresholds.get(c.column.name)
            if threshold is not None:
                with _named("--threshold", threshold.text):
                    limits[c.column.name] = threshold.per_hour(c.meaning.unit)
        question = TrendContext(works, self._steady_s(), limits)
        loads = self._loads(question, Falls(known))
        question = replace(question, loads=loads)
        rows: list[JudgedSeries] = []
        empty: list[str] = []
        open_loads: list[JudgedSeries] = []
        for entry in chosen:
            series = self._series(entry.column, entry.meaning)
            falls = self._falls(series, known, counted=bool(works) or self._has_pid())
            row = judge_series(series, falls, question)
            if row is None:
                empty.append(series.name)
            elif _is_open_load(row, entry.meaning):
                open_loads.append(row)
            else:
                rows.append(row)
            if entry.meaning.note:
                self.notes.append(entry.meaning.note)
        if not rows:
            rows = open_loads
        elif open_loads:
            names = ", ".join(row.name for row in open_loads)
            self.notes.append(f"undecided, and not counted because traffic varies: {names}")
        if not rows:
            raise ConfigError(
                f"{self.file.source}: {', '.join(empty[:_NAMES_MAX])}: fewer than two readings."
            )
        used = {row.name for row in (*rows, *open_loads)} | {one.name for one in (*works, *loads)}
        return FileVerdict(
            self.file.source,
            worst([row.verdict for row in rows]),
            tuple(rows),
            tuple(dict.fromkeys(self._all_notes(works, loads))),
            tuple(name for name in self.file.names() if name and name not in used),
            failures=tuple(row.failure for row in rows if row.failure is not None),
        )

    def _all_notes(
        self, works: Sequence[ExternalSeries], loads: Sequence[ExternalSeries]
    ) -> list[str]:
        said = list(self.notes)
        for timeline in self._timelines.values():
            said.extend(timeline.notes)
        for column in self.file.columns:
            if column.text_at is not None and not column.is_text:
                line, cell = column.text_at
                said.append(f"{column.name}: {cell!r} in line {line} is not a number: left out")
        if self.options.steady_at is None:
            said.append(
                "no start of steady state was given (--steady-at): the first tenth counts as "
                "warm-up, and growth is called a leak only after 45m"
            )
        if works:
            said.append("work done is read from " + ", ".join(work.name for work in works[:2]))
        if loads:
            names = ", ".join(load.name for load in loads)
            said.append(f"the effect of requests in flight ({names}) is subtracted")
        return said

    # Which columns.

    def _find(self, option: str, name: str) -> RawColumn:
        for column in self.file.columns:
            if column.name == name:
                return column
        folded = name.casefold()
        same = [
            c
            for c in self.file.columns
            if folded in (n.casefold() for n in (c.name, unlabelled(c.name), bare_name(c.name)))
        ]
        if len(same) == 1:
            return same[0]
        if same:
            raise UsageError(
                f"{name}: {len(same)} series of {self.file.source} have that name, the "
                f"first is {same[0].name}; name one with its labels.",
                option=option,
            )
        names = self.file.names()
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        there = ", ".join(names[:_NAMES_MAX]) + (", ..." if len(names) > _NAMES_MAX else "")
        hint = f"did you mean {near[0]}?" if near else f"there are {there}."
        raise UsageError(
            f"{name}: {self.file.source} has no such column; {hint}",
            code=ErrorCode.UNKNOWN_NAME,
            option=option,
        )

    def _thresholds(self) -> dict[str, ColumnThreshold]:
        found: dict[str, ColumnThreshold] = {}
        for text in self.options.thresholds:
            with _named("--threshold", text):
                threshold = parse_column_threshold(text)
            found[self._find("--threshold", threshold.name).name] = threshold
        return found

    def _chosen(self, thresholds: Mapping[str, ColumnThreshold]) -> list[_Chosen]:
        lower = {self._find("--lower-is-worse", n).name for n in self.options.lower_is_worse}
        chosen = [self._named(text) for text in self.options.metrics] or self._levels()
        for name in dict.fromkeys((*thresholds, *lower)):
            if all(entry.column.name != name for entry in chosen):
                chosen.append(self._as_level(self._find("--threshold", name)))
        if not chosen:
            raise UsageError(
                f"{self.file.source}: no column looks like a level that could leak; there are "
                f"{', '.join(self.file.names()[:_NAMES_MAX])}: choose with --metric NAME.",
                code=ErrorCode.NEEDS_OPTION,
            )
        for entry in chosen:
            self._refuse_text(entry.column)
        return [
            _Chosen(c.column, replace(c.meaning, higher_is_worse=False))
            if c.column.name in lower
            else c
            for c in chosen
        ]

    def _levels(self) -> list[_Chosen]:
        """Every level; of a run's own samples only those that gate a run."""
        levels = [
            _Chosen(column, meaning)
            for column in self.file.columns
            if not column.is_text
            and (meaning := self._meaning(column)).role in (Role.LEVEL, Role.LOAD)
            and column.name not in self.options.works
        ]
        return [entry for entry in levels if is_gated(entry.column.name)] or levels

    def _as_level(self, column: RawColumn) -> _Chosen:
        return _Chosen(column, replace(self._meaning(column), role=Role.LEVEL))

    def _named(self, text: str) -> _Chosen:
        """A column by its name, or by ``NAME:unit``; a label may hold a colon as well."""
        head, colon, unit = text.rpartition(":")
        names = self.file.names()
        if not colon or text in names or (head not in names and "{" in text):
            return self._as_level(self._find("--metric", text))
        if head in names:
            return _Chosen(self._find("--metric", head), _unit("--metric", text, unit))
        try:
            meaning = parse_unit(unit)
        except ValueError:
            return self._as_level(self._find("--metric", text))
        return _Chosen(self._find("--metric", head), meaning)

    def _refuse_text(self, column: RawColumn) -> None:
        if column.is_text and column.text_at is not None:
            line, cell = column.text_at
            raise ConfigError(
                f"{self.file.source}:{line}: column {column.name}: {cell!r} is not a number; "
                "choose a column of numbers with --metric."
            )

    def _meaning(self, column: RawColumn) -> Meaning:
        meaning = meaning_of(column.name)
        if meaning.role is Role.COUNTER and _sinks(column):
            # A number of threads, and no work done.
            meaning = replace(meaning, role=Role.LEVEL)
        if column.in_bytes and meaning.role is not Role.SHOWN:
            return replace(
                meaning, role=Role.LEVEL, unit=Unit.BYTES, factor=1.0, known=True, note=""
            )
        if not meaning.known and meaning.role is Role.LEVEL and self.options.unit is not None:
            return _unit("--unit", self.options.unit, self.options.unit)
        if not meaning.known and column.usual_unit:
            return parse_unit(column.usual_unit)
        return meaning

    # What their times are.

    def _timeline(self, column: RawColumn) -> Timeline:
        timeline = self._timelines.get(column.group)
        if timeline is None:
            try:
                timeline = make_timeline(column.t_s - self._zero_s)
            except TimelineError as error:
                raise ConfigError(f"{self.file.source}: {error}.") from error
            self._timelines[column.group] = timeline
        return timeline

    def _series(self, column: RawColumn, meaning: Meaning) -> ExternalSeries:
        timeline = self._timeline(column)
        value = column.value[timeline.rows] * meaning.factor
        return ExternalSeries(column.name, timeline.t_s, value, meaning)

    def _works(self) -> list[ExternalSeries]:
        if self.options.works:
            columns = [self._find("--work-column", name) for name in self.options.works]
        else:
            numbers = (c for c in self.file.columns if not c.is_text)
            columns = _best_first([c for c in numbers if _counts_work(self._meaning(c))])
        for column in columns:
            self._refuse_text(column)
        plain = Meaning(Role.COUNTER, Unit.COUNT)
        series = (self._series(column, plain) for column in columns)
        return [one for one in series if np.any(np.diff(one.value[np.isfinite(one.value)]) > 0)]

    def _loads(self, question: TrendContext, falls: Falls) -> list[ExternalSeries]:
        """Requests in flight; none if they grow, as requests that stay for good would."""
        loads = [
            self._series(column, meaning)
            for column in self.file.columns
            if not column.is_text and (meaning := self._meaning(column)).role is Role.LOAD
        ]
        rows = (judge_series(load, falls, question) for load in loads)
        rates = (row.result.rate_per_hour for row in rows if row is not None)
        return [] if any(rate is not None and rate.lower > 0 for rate in rates) else loads

    def _has_pid(self) -> bool:
        return any(PROCESS_ID.fullmatch(column.name) for column in self.file.columns)

    def _known_restarts(self, works: Sequence[ExternalSeries]) -> tuple[float, ...]:
        known: set[float] = set()
        for column in self.file.columns:
            if PROCESS_ID.fullmatch(column.name) and not column.is_text:
                pid = self._series(column, meaning_of(column.name))
                read = np.isfinite(pid.value)
                known.update(changes(pid.t_s[read], pid.value[read]))
        for work in works:
            read = np.isfinite(work.value)
            known.update(counter_resets(work.t_s[read], work.value[read]))
        for timeline in self._timelines.values():
            known.update(timeline.starts_s)
        return tuple(sorted(known))

    def _falls(self, series: ExternalSeries, known: Sequence[float], *, counted: bool) -> Falls:
        column = next(c for c in self.file.columns if c.name == series.name)
        known = tuple(sorted({*known, *self._timeline(column).starts_s}))
        memory = series.meaning.unit is Unit.BYTES or not series.meaning.known
        if self.options.never_restarted or not memory or not series.meaning.higher_is_worse:
            return Falls(known)
        read = np.isfinite(series.value)
        return level_falls(series.t_s[read], series.value[read], known, counted=counted)

    def _steady_s(self) -> float | None:
        text = self.options.steady_at
        if text is None:
            return None
        if text.replace(".", "", 1).isdigit() and float(text) > _EPOCH_S:
            return self._moment(text)
        try:
            return parse_duration_s(text)
        except ValueError:
            return self._moment(text)

    def _moment(self, text: str) -> float:
        try:
            moment = parse_moment(text)
        except BadTimeError as error:
            raise UsageError(
                f"{text}: neither a duration (10m) nor a time; write one as the file does.",
                option="--steady-at",
            ) from error
        if moment.absolute != self._absolute:
            counts = "dates" if self._absolute else "seconds from its start"
            raise UsageError(
                f"{text}: {self.file.source} has its times as {counts}; write the time "
                "in that form, or a duration such as 10m.",
                option="--steady-at",
            )
        return max(0.0, float(moment.t_s[0]) - self._zero_s)


def _sinks(column: RawColumn) -> bool:
    """Whether it falls a little now and then; a counter of work falls with a restart alone."""
    value = column.value[np.isfinite(column.value)]
    return int(((np.diff(value) < 0) & (value[1:] > 0.5 * value[:-1])).sum()) > 0.01 * value.size


def _best_first(columns: Sequence[RawColumn]) -> list[RawColumn]:
    """The best counter of requests, then the best of tokens, then all others."""
    ranked = sorted(columns, key=_work_rank)
    tokens = next((i for i, c in enumerate(ranked) if "token" in c.name.lower()), 0)
    if tokens:
        ranked.insert(1, ranked.pop(tokens))
    return ranked


def _is_open_load(row: JudgedSeries, meaning: Meaning) -> bool:
    asked_for = meaning.role is not Role.LOAD or row.result.limit_per_hour is not None
    return not asked_for and row.verdict is VerdictKind.INCONCLUSIVE


def _counts_work(meaning: Meaning) -> bool:
    return meaning.role is Role.COUNTER and meaning.unit is Unit.COUNT


def _work_rank(column: RawColumn) -> tuple[int, int]:
    """Short names first: ``requests_total`` says more than ``requests_rejected_total``."""
    rank = next(i for i, pattern in enumerate(_WORKS) if pattern.search(column.name))
    return rank, len(column.name)


def _unit(option: str, text: str, unit: str) -> Meaning:
    with _named(option, text):
        return parse_unit(unit)


@contextmanager
def _named(option: str, text: str) -> Iterator[None]:
    """What is wrong inside is wrong with ``option``, given as ``text``."""
    try:
        yield
    except ValueError as error:
        raise UsageError(f"{text}: {error}.", option=option) from error
