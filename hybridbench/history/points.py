"""A stored run as a point of its history: when, what, and one value for each quantity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hybridbench.errors import RunDirectoryError
from hybridbench.history.comparable import environment, series_facts
from hybridbench.metrics import AT_REST, COLLECTIBLE, MEMORY, declared
from hybridbench.records.manifest import Git, Manifest
from hybridbench.records.stored_verdict import (
    MeasuredCost,
    MeasuredRate,
    VerdictValues,
    read_verdict_part,
)
from hybridbench.records.verdict import NO_MODEL, VerdictKind
from hybridbench.rundir.layout import VERDICT
from hybridbench.rundir.listing import find_runs
from hybridbench.rundir.lock import holder_of
from hybridbench.rundir.manifest import read_manifest
from hybridbench.thresholds.grammar import Stat


@dataclass(frozen=True)
class Value:
    """One quantity of one run; None for an end without bound or an unknown one."""

    value: float
    lower: float | None = None
    upper: float | None = None


@dataclass(frozen=True)
class Tracked:
    """What a history follows from run to run.

    Args:
        name: as a threshold would call it.
        metric: its declaration.
        stat: of the metric.
        least: the smallest change that is worth a word, in its unit; or
        least_share: as a share of what it was before.
    """

    name: str
    metric: str
    stat: Stat
    least: float = 0.0
    least_share: float = 0.0

    @property
    def higher_is_worse(self) -> bool:
        return declared(self.metric).higher_is_worse


_MIB = 2.0**20
QUANTITIES: Final[tuple[Tracked, ...]] = (
    Tracked("rss.slope", MEMORY, Stat.SLOPE, 4 * _MIB),
    Tracked("collectible.slope", COLLECTIBLE, Stat.SLOPE, 4 * _MIB),
    Tracked("throughput.mean", "throughput_tokens_per_s", Stat.MEAN, least_share=0.03),
    Tracked("ttft.p50", "ttft_ms_p50", Stat.P50, least_share=0.05),
    Tracked("itl.p50", "itl_ms_p50", Stat.P50, least_share=0.05),
    Tracked("token_ms.mean", "token_ms", Stat.MEAN, least_share=0.03),
    Tracked("hit_rate.mean", "hit_rate", Stat.MEAN, 0.01),
    Tracked("rest.last", AT_REST, Stat.LAST, 4 * _MIB, 0.02),
    Tracked("rss.max", MEMORY, Stat.MAX, 4 * _MIB, 0.02),
)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run.

    ``facts`` are those that all runs of one history share; ``version`` is the hash of the engine
    that ran with what was put into it, ``environment`` its interpreter and libraries.
    """

    run_id: str
    path: str
    started_wall_s: float
    version: str
    commit: str = ""
    environment: str
    verdict: str | None = None  # None: not judged yet
    invalid: bool = False  # what was measured proves nothing, whatever was counted
    values: Mapping[str, Value] = field(default_factory=dict)
    model: str
    profile: str
    facts: Mapping[str, str]


@dataclass(frozen=True)
class Unread:
    """A run that cannot be part of a history, and why."""

    path: str
    problem: str


def read_points(store: Path) -> tuple[list[Point], list[Unread]]:
    """The runs in ``store`` and in its nightly runs, oldest first; a damaged one stops nothing."""
    points: list[Point] = []
    unread: list[Unread] = []
    for path in find_runs(store):
        try:
            points.append(_point(path))
        except (RunDirectoryError, OSError) as error:
            unread.append(Unread(str(path), str(error)))
    points.sort(key=lambda point: (point.started_wall_s, point.run_id))
    return points, unread


def _point(path: Path) -> Point:
    manifest = read_manifest(path)
    judged = read_verdict_part(path / VERDICT, VerdictValues)
    if not judged.verdict and holder_of(path) is not None:
        raise RunDirectoryError(f"{path} is being written")
    return Point(
        path=str(path),
        run_id=manifest.run_id,
        started_wall_s=manifest.started_wall_s or 0.0,
        facts=series_facts(manifest),
        model=manifest.model.name,
        profile=manifest.profile.name,
        version=_version(manifest),
        environment=environment(manifest),
        commit=_commit(manifest.git),
        verdict=judged.verdict or None,
        invalid=VerdictKind.INVALID in {judged.verdict, *(f.verdict for f in judged.findings)},
        values=dict(_values(judged)),
    )


def _values(judged: VerdictValues) -> Iterable[tuple[str, Value]]:
    for quantity in QUANTITIES:
        found = _value(quantity, judged)
        if found is not None:
            yield quantity.name, found


def _value(quantity: Tracked, judged: VerdictValues) -> Value | None:
    found: MeasuredRate | MeasuredCost | None
    if quantity.stat is Stat.SLOPE:
        # Earlier versions stored the range of too few samples as a rate.
        measured = [m for m in judged.metrics if m.model != NO_MODEL]
        rates = [m.rate_per_hour for m in measured if m.metric == quantity.metric]
        found = rates[0] if rates else None
    else:
        wanted = (quantity.metric, quantity.stat.value)
        found = next((one for one in judged.levels if (one.metric, one.stat) == wanted), None)
        if found is None:
            found = next((one for one in judged.decay if one.name == quantity.metric), None)
    if found is None or found.value is None:
        return None
    if isinstance(found, MeasuredCost):
        return Value(found.value)
    return Value(found.value, found.lower, found.upper)


def _version(manifest: Manifest) -> str:
    engine = manifest.engine_hash[:10] or "unknown engine"
    return " + ".join((engine, *manifest.defects))


def _commit(git: Git | None) -> str:
    if git is None or not git.commit:
        return ""
    return f"{git.commit[:10]} and changes" if git.dirty else git.commit[:10]
