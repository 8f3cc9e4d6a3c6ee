"""Compare runs over time: which runs belong together, and whether a later one is worse.

Two commands use it.  `history` has many runs per series: it takes one number from each, learns how
much healthy runs vary, and finds the run at which a quantity changed.  `nightly` reports what is
new since one green run.  Two runs cannot show the spread between runs, so `nightly` compares
findings by signature, rates by each run's own interval, and throughput by a ratio from the plan.
`prune` keeps the newest runs of each series.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from hybridbench.analysis.change_points import Change, change_points
from hybridbench.analysis.comparison.mismatches import comparable_facts, machine_class
from hybridbench.foundation.errors import ExitCode
from hybridbench.foundation.metrics import AT_REST, COLLECTIBLE, MEMORY, declared
from hybridbench.foundation.thresholds import Stat
from hybridbench.over_time.stored import GreenRun
from hybridbench.records.finding import Rate, VerdictKind
from hybridbench.records.manifest import Manifest
from hybridbench.records.nightly import AttemptFinding, CellFinding, CellResult, CellState
from hybridbench.records.rates import full_rate_text
from hybridbench.report.wording import metric_label

THROUGHPUT: Final = "throughput_tokens_per_s"
_MIB: Final = 2.0**20
# What a run with such a verdict did not find may still be there.
_PROVES_NOTHING: Final = (VerdictKind.CRASHED, VerdictKind.INVALID)
# Upgrades of the environment are shown with the version, but do not split a series.
_OF_ENVIRONMENT: Final = frozenset({"interpreter", "torch", "numpy", "libc"})


@dataclass(frozen=True)
class Value:
    """One quantity of one run, with its interval; an infinite or unknown end is None."""

    value: float
    lower: float | None = None
    upper: float | None = None


@dataclass(frozen=True)
class Tracked:
    """A quantity that a history follows from run to run.

    Args:
        name: its name, as in a threshold.
        metric: name of the declared metric.
        stat: the statistic of the metric.
        least: the smallest change worth reporting, in the metric's unit.
        least_share: the same as a share of the median; the larger of the two applies.
    """

    name: str
    metric: str
    stat: Stat
    least: float = 0.0
    least_share: float = 0.0


QUANTITIES: Final[tuple[Tracked, ...]] = (
    Tracked("rss.slope", MEMORY, Stat.SLOPE, 4 * _MIB),
    Tracked("collectible.slope", COLLECTIBLE, Stat.SLOPE, 4 * _MIB),
    Tracked("throughput.mean", THROUGHPUT, Stat.MEAN, least_share=0.03),
    Tracked("ttft.p50", "ttft_ms_p50", Stat.P50, least_share=0.05),
    Tracked("itl.p50", "itl_ms_p50", Stat.P50, least_share=0.05),
    Tracked("token_ms.mean", "token_ms", Stat.MEAN, least_share=0.03),
    Tracked("hit_rate.mean", "hit_rate", Stat.MEAN, 0.01),
    Tracked("rest.last", AT_REST, Stat.LAST, 4 * _MIB, 0.02),
    Tracked("rss.max", MEMORY, Stat.MAX, 4 * _MIB, 0.02),
)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run of a history.

    ``facts`` are common to all runs of a series; ``version`` is a hash of the engine that ran and
    its injected defects, ``environment`` its interpreter and libraries.
    """

    run_id: str
    path: str
    started_wall_s: float
    version: str
    commit: str = ""
    environment: str
    verdict: str | None = None  # None: not judged yet
    invalid: bool = False  # its measurements are inconclusive, whatever was counted
    values: Mapping[str, Value] = field(default_factory=dict)
    model: str
    profile: str
    facts: Mapping[str, str]


@dataclass(frozen=True)
class Trend:
    """One quantity over the runs that have it, oldest first."""

    quantity: Tracked
    points: tuple[Point, ...]
    changes: tuple[Change, ...]

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(point.values[self.quantity.name].value for point in self.points)

    def is_worse(self, change: Change) -> bool:
        """Whether the change was for the worse."""
        return (change.after > change.before) is declared(self.quantity.metric).higher_is_worse


@dataclass(frozen=True)
class Series:
    """Runs of one model with one profile on machines of one class.

    ``differs_in`` are the facts that distinguish it from others with the same model and profile.
    """

    model: str
    profile: str
    points: tuple[Point, ...]
    trends: tuple[Trend, ...]
    differs_in: Mapping[str, str]


def series_facts(manifest: Manifest) -> dict[str, str]:
    """Return what all runs of one series share, by key, as text."""
    facts = comparable_facts(manifest) | dict(_watched(manifest.command))
    return {key: value for key, value in facts.items() if key not in _OF_ENVIRONMENT}


def _watched(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield a watched program's command line and load, since one program serves many models.

    Only the program's file name counts, because releases are installed side by side.
    """
    if "--" not in command:
        return
    at = command.index("--")
    program, *arguments = command[at + 1 :] or ("",)
    yield "command", shlex.join((Path(program).name, *arguments))
    for word, following in pairwise(command[: at + 1]):
        option, equals, value = word.partition("=")
        if option == "--load":
            yield "load", value if equals else following


def series_key(model: str, profile: str, facts: Mapping[str, str]) -> tuple[str, ...]:
    """Return the key of a series; ``facts`` are the ``series_facts`` of any of its runs."""
    return (model, profile, *(f"{name}={value}" for name, value in sorted(facts.items())))


def environment(manifest: Manifest) -> str:
    """Return interpreter and libraries, to report changes that come with new ones."""
    facts = comparable_facts(manifest)
    return ", ".join(f"{key} {facts[key]}" for key in sorted(_OF_ENVIRONMENT) if key in facts)


def machine(manifest: Manifest) -> str:
    """Return a run's machine class, interpreter and device; equal only within one class."""
    version = ".".join((manifest.interpreter.version or "?").split(".")[:2])
    device = manifest.model.device.partition(":")[0]
    facts = machine_class(manifest).items()
    parts = [f"{key.removeprefix('machine.')} {value}" for key, value in facts]
    return ", ".join([*parts, f"Python {version}", f"on {device}"])


def series_of(points: Iterable[Point], quantities: Sequence[Tracked] = QUANTITIES) -> list[Series]:
    """Return all series, those with the newest run first.

    Runs share a series only if everything that affects their measurements agrees: profile settings,
    pools, collector and malloc mode, CPU, cores, memory and kernel.
    """
    groups: dict[tuple[str, ...], list[Point]] = defaultdict(list)
    for point in points:
        groups[series_key(point.model, point.profile, point.facts)].append(point)
    found = [_series(group, list(groups.values()), quantities) for group in groups.values()]
    return sorted(found, key=lambda series: series.points[-1].started_wall_s, reverse=True)


def against(cell: CellResult, earlier: Sequence[GreenRun], least_ratio: float) -> CellResult:
    """Return ``cell`` with what is new, grown, fixed or slower since the last green run.

    It is compared with the newest green run in which this cell did the same work on a machine of
    the same class and did not fail; an undecided result is good enough, as it found nothing either.
    Findings keep their verdict; only throughput below ``least_ratio`` makes a passing cell fail.
    """
    for green in earlier:
        base = next((c for c in green.run.cells if _is_baseline(c, cell)), None)
        if base is not None:
            return _compared(cell, base, green.name, least_ratio)
    return cell


def grew(rate: Rate, before: Rate) -> bool:
    """Whether the interval of ``rate`` lies entirely above that of ``before``."""
    return rate.lower > before.upper


def _series(
    group: Sequence[Point], groups: Sequence[Sequence[Point]], quantities: Sequence[Tracked]
) -> Series:
    first = group[0]
    others = [
        other[0].facts
        for other in groups
        if (other[0].model, other[0].profile) == (first.model, first.profile)
    ]
    names = sorted({name for facts in others for name in facts})
    apart = {
        name: first.facts.get(name, "absent")
        for name in names
        if len({facts.get(name) for facts in others}) > 1
    }
    trends = [_trend(group, quantity) for quantity in quantities]
    return Series(
        first.model,
        first.profile,
        tuple(group),
        tuple(trend for trend in trends if trend.points),
        apart,
    )


def _trend(group: Sequence[Point], quantity: Tracked) -> Trend:
    having = tuple(point for point in group if quantity.name in point.values and not point.invalid)
    value = [point.values[quantity.name].value for point in having]
    middle = sorted(abs(one) for one in value)[len(value) // 2] if value else 0.0
    least = max(quantity.least, quantity.least_share * middle)
    return Trend(quantity, having, tuple(change_points(value, least)))


def _is_baseline(base: CellResult, cell: CellResult) -> bool:
    """Whether ``cell`` may be compared with ``base``, a cell of a green run."""
    works = [None if one.cell is None else one.cell.work for one in (base, cell)]
    return (
        base.id == cell.id
        and base.state in (CellState.PASS, CellState.NEUTRAL)
        and base.machine_class == cell.machine_class
        and works[0] == works[1]
    )


def _compared(cell: CellResult, base: CellResult, name: str, least_ratio: float) -> CellResult:
    known = {entry.finding.signature: entry.finding for entry in base.findings if _says(entry)}
    now, before = cell.metrics.get(THROUGHPUT), base.metrics.get(THROUGHPUT)
    ratio = now / before if now and before else None
    changes = [*_grown(cell, base, known)]
    if ratio is not None:
        changes.append(f"throughput ratio {ratio:.3f}")
    changed = msgspec.structs.replace(
        cell,
        baseline=name,
        findings=tuple(_with_news(entry, name, known) for entry in cell.findings),
        gone=tuple(_gone(cell, known)),
        changes=tuple(changes),
        throughput_ratio=ratio,
    )
    slow = ratio is not None and least_ratio > 0 and ratio < least_ratio
    if not slow or cell.state is not CellState.PASS:
        return changed
    return msgspec.structs.replace(
        changed,
        state=CellState.FAIL,
        word="REGRESSION",
        exit_code=int(ExitCode.REGRESSION),
        headline=f"throughput is {ratio:.3f} of {name}, and the plan asks for {least_ratio:g}",
    )


def _says(entry: CellFinding) -> bool:
    """Whether something was found: undecided items are neither new, known nor fixed."""
    return entry.finding.verdict != VerdictKind.INCONCLUSIVE


_Known = Mapping[tuple[str, str, str], AttemptFinding]


def _with_news(entry: CellFinding, name: str, known: _Known) -> CellFinding:
    if not _says(entry):
        return entry
    is_new = entry.finding.signature not in known
    news = f"new since {name}" if is_new else f"known in {name}"
    return msgspec.structs.replace(entry, news=news, is_new=is_new)


def _gone(cell: CellResult, known: _Known) -> Iterator[AttemptFinding]:
    """Yield each ``known`` finding that ``cell`` would have shown if it were still there."""
    found = [entry.finding for entry in cell.findings]
    if any(one.verdict in _PROVES_NOTHING for one in found):
        return
    seen = {one.signature for one in found}
    undecided = {one.subject for one in found if one.verdict is VerdictKind.INCONCLUSIVE}
    for signature, finding in known.items():
        if signature not in seen and finding.subject not in undecided:
            yield finding


def _grown(cell: CellResult, base: CellResult, known: _Known) -> Iterator[str]:
    """Yield each rate of ``cell`` that grew, for a known finding or a gated metric."""
    for finding in (entry.finding for entry in cell.findings):
        earlier = known.get(finding.signature)
        for rate in finding.rates:
            was = None if earlier is None else earlier.rate_in(rate.unit, rate.per)
            if was is not None and grew(rate, was):
                yield f"{finding.subject}: {_from_to(was, rate)}"
    for metric, rate in cell.growth.items():
        was = base.growth.get(metric)
        if was is not None and grew(rate, was):
            yield f"{metric_label(metric)} grows faster: {_from_to(was, rate)}"


def _from_to(was: Rate, rate: Rate) -> str:
    return f"{full_rate_text(was)}, now {full_rate_text(rate)}"
