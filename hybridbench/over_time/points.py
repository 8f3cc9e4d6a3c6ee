"""A stored run as a point of its history: its start, its engine, and a value for each quantity."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hybridbench.foundation.errors import RunDirectoryError
from hybridbench.foundation.labels import unlabelled
from hybridbench.foundation.thresholds import Stat
from hybridbench.over_time.comparer import (
    QUANTITIES,
    Point,
    Tracked,
    Value,
    environment,
    series_facts,
)
from hybridbench.records.finding import VerdictKind
from hybridbench.records.manifest import Git, Manifest
from hybridbench.records.stored_verdict import (
    MeasuredRate,
    VerdictValues,
    read_verdict_part,
)
from hybridbench.rundir.layout import VERDICT
from hybridbench.rundir.listing import find_runs
from hybridbench.rundir.lock import holder_of
from hybridbench.rundir.manifest import read_manifest


@dataclass(frozen=True)
class Unread:
    """A run that cannot be part of a history, and why."""

    path: str
    problem: str


def read_points(store: Path) -> tuple[list[Point], list[Unread]]:
    """Return the runs in ``store`` and its nightly runs, oldest first; damaged ones are skipped."""
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
    found: MeasuredRate | None
    if quantity.stat is Stat.SLOPE:
        found = _growth(quantity.metric, judged)
    else:
        wanted = (quantity.metric, quantity.stat.value)
        found = next((one for one in judged.levels if (one.metric, one.stat) == wanted), None)
        if found is None:
            found = next((one for one in judged.decay if one.name == quantity.metric), None)
    if found is None or found.value is None:
        return None
    return Value(found.value, found.lower, found.upper)


def _growth(metric: str, judged: VerdictValues) -> MeasuredRate | None:
    """Return the growth of ``metric`` in the run, or the total of all its processes."""
    of_run = [m.rate_per_hour for m in judged.metrics if m.metric == metric]
    if of_run:
        return of_run[0]
    rates = [m.rate_per_hour for m in judged.metrics if unlabelled(m.metric) == metric]
    known = [rate for rate in rates if rate is not None]
    if not known or len(known) < len(rates):
        return None

    def total(ends: Iterable[float | None]) -> float | None:
        given = list(ends)
        return None if None in given else sum(end for end in given if end is not None)

    return MeasuredRate(
        total(rate.value for rate in known),
        total(rate.lower for rate in known),
        total(rate.upper for rate in known),
    )


def _version(manifest: Manifest) -> str:
    engine = manifest.engine_hash[:10] or "unknown engine"
    return " + ".join((engine, *manifest.defects))


def _commit(git: Git | None) -> str:
    if git is None or not git.commit:
        return ""
    return f"{git.commit[:10]} and changes" if git.dirty else git.commit[:10]
