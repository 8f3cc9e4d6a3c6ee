"""Measure the growth of healthy runs in their first minutes, and derive limits from it.

Four profiles of different kinds are soaked for twenty minutes with several seeds; the first minutes
of these runs serve as shorter runs.  The limit for a length is 1.5 times the worst upper bound.  It
is never below the amount by which a healthy process may settle in that time, because smaller growth
is not reported as a leak.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

import typer
from msgspec import structs

from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.analysis.trend.terms import settles_by
from hybridbench.foundation.errors import ExitCode, HybridbenchError
from hybridbench.foundation.metrics import COLLECTIBLE, MEMORY
from hybridbench.records.events import Phase
from hybridbench.records.finding import VerdictKind
from hybridbench.records.verdict import MetricResult
from hybridbench.rundir.cut import is_finished
from hybridbench.rundir.reader import read_run
from hybridbench.targets.own_process import own_command
from hybridbench.workload.catalog import load_profile

# One profile each for steady load, churn, sessions and bursts.
PROFILES: Final = ("steady-decode", "chat-churn", "session-churn", "burst-idle")
LENGTHS_S: Final = (120.0, 180.0, 240.0, 300.0, 420.0, 600.0, 1200.0)
GROWTH_GB_PER_H: Final = (0.0, 0.2, 1.0, 3.7, 10.0)
RECORDED_S: Final = 1200.0
_FIRST_SEED: Final = 101
_ROOM: Final = 1.5
# Share of a run; the rest is warm-up.
_JUDGED_SHARE: Final = 0.9
# A length whose limit would exceed this has no limit: growth of 1 GB/h must never be CLEAN.
_MOST_BYTES_PER_H: Final = 0.9e9
# Requirements on the growth table.  Of runs of at least this length, this share must be CLEAN
# without growth, and this share must be LEAK from this growth on (that of sglang#25770).  The last
# one is growth that must never be CLEAN.
_DECIDES_FROM_S: Final = 300.0
_DECIDED_SHARE: Final = 0.9
_LEAK_GB_PER_H: Final = 3.7
_NEVER_CLEAN_GB_PER_H: Final = 1.0
# The sampling intervals of a run of the shortest length.
_CADENCE: Final = ("probe.sample_every=1s", "probe.collectible_every=3s", "checkpoint.every=60s")
_PATIENCE_S: Final = 600.0


@dataclass(frozen=True)
class Recording:
    """One healthy run of twenty minutes."""

    profile: str
    seed: int
    record: RunRecord


@dataclass(frozen=True)
class LimitRow:
    """Results of one profile's recordings at one length, in bytes per hour.

    ``open_count`` is the number of runs that grew by more than a process may settle, so that no
    limit makes them CLEAN.
    """

    profile: str
    length_s: float
    runs: int
    open_count: int
    memory_upper: float
    settles: float

    @property
    def limit(self) -> float | None:
        """The limit on private memory; None if the length has none."""
        least = max(_ROOM * self.memory_upper, self.settles)
        if least > _MOST_BYTES_PER_H:
            return None
        return _rounded_up(least / 2**20) * 2**20


@dataclass(frozen=True)
class GrowthRow:
    """Verdicts of runs of one length with growth added to their private memory."""

    length_s: float
    gb_per_h: float
    verdicts: tuple[VerdictKind, ...]

    def count(self, kind: VerdictKind) -> int:
        """Number of runs with the verdict ``kind``."""
        return sum(verdict is kind for verdict in self.verdicts)


def wanted(seeds: int) -> list[tuple[str, int]]:
    """Profile and seed of each recording, ordered by seed."""
    return [(profile, _FIRST_SEED + index) for index in range(seeds) for profile in PROFILES]


def recordings(store: Path) -> list[Recording]:
    """The finished healthy runs of twenty minutes in ``store``."""
    found = []
    for path in sorted(store.glob("*/manifest.json")):
        try:
            record = read_run(path.parent)
        except HybridbenchError:
            continue
        manifest = record.manifest
        profile, seed = manifest.profile.name, manifest.seed
        if manifest.defects or seed is None or not is_finished(record):
            continue
        if profile in PROFILES and (manifest.planned_duration_s or 0.0) >= RECORDED_S:
            found.append(Recording(profile, seed, record))
    return found


def record_missing(
    store: Path, seeds: int, jobs: int, told: Callable[[str], None]
) -> list[Recording]:
    """Make the recordings that ``store`` lacks, ``jobs`` soaks at a time; return all of them."""
    store.mkdir(parents=True, exist_ok=True)
    have = {(r.profile, r.seed) for r in recordings(store)}
    missing = [each for each in wanted(seeds) if each not in have]
    with ThreadPoolExecutor(jobs) as pool:
        for (profile, seed), code in zip(
            missing, pool.map(lambda each: _soak(store, *each), missing), strict=True
        ):
            told(f"{profile}, seed {seed}: recorded (exit code {code})")
    asked = set(wanted(seeds))
    return [r for r in recordings(store) if (r.profile, r.seed) in asked]


def limit_rows(found: Sequence[Recording]) -> Iterator[LimitRow]:
    """The table, profile by profile."""
    for profile in PROFILES:
        own = [r.record for r in found if r.profile == profile]
        for length_s in LENGTHS_S if own else ():
            yield _limit_row(profile, length_s, own)


def growth_rows(found: Sequence[Recording]) -> Iterator[GrowthRow]:
    """Judge each length under the shipped limits with growth added."""
    for length_s in LENGTHS_S:
        for gb_per_h in GROWTH_GB_PER_H:
            verdicts = [
                judge(with_growth(beginning(r.record, length_s, shipped(r.profile)), gb_per_h)).kind
                for r in found
            ]
            yield GrowthRow(length_s, gb_per_h, tuple(verdicts))


def shipped(profile: str) -> tuple[dict[str, float], ...]:
    """The current limits of the shipped profile ``profile``, as a manifest stores them."""
    return tuple({"from_s": e.from_s, **e.by_metric()} for e in load_profile(profile).limits)


def beginning(
    record: RunRecord, length_s: float, limits: tuple[dict[str, float], ...]
) -> RunRecord:
    """Return the first ``length_s`` of traffic, as a run planned so long, under ``limits``."""
    begun_s = next(phase.t_s for phase in record.all_events(Phase) if phase.name == "warmup")
    cut = record.until(begun_s + length_s)
    stored = record.manifest.profile
    floors = load_profile(stored.name).coverage_minimums(length_s)
    profile = structs.replace(stored, limits=limits, assert_coverage=dict(floors))
    manifest = structs.replace(record.manifest, planned_duration_s=length_s, profile=profile)
    return replace(cut, manifest=manifest)


def with_growth(record: RunRecord, gb_per_h: float) -> RunRecord:
    """Return ``record`` with linear growth added to its private memory."""
    memory = record.series[MEMORY]
    added = gb_per_h * 1e9 / 3600.0 * (memory.t_s - memory.t_s[0])
    grown = Series(memory.name, memory.t_s, memory.value + added)
    return replace(record, series={**record.series, MEMORY: grown})


def missed_limits(rows: Sequence[GrowthRow]) -> Iterator[str]:
    """Yield a sentence for each cell of the growth table that contradicts ``detection.md``."""
    for row in rows:
        runs, length = len(row.verdicts), f"{row.length_s / 60:.0f} min, {row.gb_per_h:g} GB/h"
        decides = row.length_s >= _DECIDES_FROM_S
        leaks, clean = row.count(VerdictKind.LEAK), row.count(VerdictKind.CLEAN)
        if row.gb_per_h == 0 and leaks:
            yield f"{length}: {leaks} of {runs} healthy runs are LEAK"
        if row.gb_per_h == 0 and decides and clean < _DECIDED_SHARE * runs:
            yield f"{length}: only {clean} of {runs} healthy runs are CLEAN"
        if row.gb_per_h >= _NEVER_CLEAN_GB_PER_H and clean:
            yield f"{length}: {clean} of {runs} growing runs are CLEAN"
        if row.gb_per_h >= _LEAK_GB_PER_H and decides and leaks < _DECIDED_SHARE * runs:
            yield f"{length}: only {leaks} of {runs} growing runs are LEAK"


def limit_table(rows: Sequence[LimitRow]) -> list[str]:
    """Return, as Markdown, each profile's worst upper bound and the limit for each length."""
    profiles = [p for p in PROFILES if any(row.profile == p for row in rows)]
    head = [f"{p} ({next(r.runs for r in rows if r.profile == p)} runs)" for p in profiles]
    lines = [
        f"| length | {' | '.join(head)} | may settle by | limit |",
        "|---" * (len(head) + 3) + "|",
    ]
    for length_s in LENGTHS_S:
        own = {row.profile: row for row in rows if row.length_s == length_s}
        if not own:
            continue
        cells = [_cell(own[p]) for p in profiles]
        settles = max(row.settles for row in own.values()) / 2**20
        limits = [row.limit for row in own.values()]
        worst = None if None in limits else max(limit or 0.0 for limit in limits)
        limit = "none" if worst is None else f"{worst / 2**20:.0f} MiB/h"
        lines.append(
            f"| {length_s / 60:.0f} min | {' | '.join(cells)} | {settles:.0f} MiB/h | {limit} |"
        )
    return lines


def growth_table(rows: Sequence[GrowthRow]) -> list[str]:
    """Return, as Markdown, LEAK / INCONCLUSIVE / CLEAN per length and rate, then other verdicts."""
    lines = [
        "| length | " + " | ".join(f"{g:g} GB/h" for g in GROWTH_GB_PER_H) + " |",
        "|---" * (len(GROWTH_GB_PER_H) + 1) + "|",
    ]
    for length_s in LENGTHS_S:
        cells = [_verdicts(row) for row in rows if row.length_s == length_s]
        lines.append(f"| {length_s / 60:.0f} min | {' | '.join(cells)} |")
    return lines


def _limit_row(profile: str, length_s: float, records: Sequence[RunRecord]) -> LimitRow:
    anything = ({"from_s": 0.0, MEMORY: 1e18, COLLECTIBLE: 1e18},)
    verdicts = [judge(beginning(record, length_s, anything)) for record in records]
    memory = [_result(verdict.metrics, MEMORY) for verdict in verdicts]
    judged_s = _JUDGED_SHARE * length_s
    base = max(m.fit_value[0] for m in memory)
    return LimitRow(
        profile=profile,
        length_s=length_s,
        runs=len(records),
        open_count=sum(m.outcome != "CLEAN" for m in memory),
        memory_upper=max(map(_upper, memory)),
        settles=settles_by(base, judged_s) / judged_s * 3600.0,
    )


def _result(results: Sequence[MetricResult], name: str) -> MetricResult:
    return next(result for result in results if result.metric == name)


def _upper(result: MetricResult) -> float:
    """Return the upper bound of the rate; infinite with too few samples."""
    return math.inf if result.rate_per_hour is None else result.rate_per_hour.upper


def _cell(row: LimitRow) -> str:
    still = f", {row.open_count} growing" if row.open_count else ""
    return f"{row.memory_upper / 2**20:.1f} MiB/h{still}"


def _verdicts(row: GrowthRow) -> str:
    main = (VerdictKind.LEAK, VerdictKind.INCONCLUSIVE, VerdictKind.CLEAN)
    others = [k for k in VerdictKind if k not in main and row.count(k)]
    more = "".join(f", {row.count(kind)} {kind}" for kind in others)
    return " / ".join(str(row.count(kind)) for kind in main) + more


def _rounded_up(value: float) -> float:
    """Round up to a multiple of 5, or of 10 above 100."""
    step = 10.0 if value > 100.0 else 5.0
    return math.ceil(value / step) * step


def _soak(store: Path, profile: str, seed: int) -> int:
    words = [sys.executable, "-m", "hybridbench", "soak", "--profile", profile, "--seed", str(seed)]
    words += ["--duration", f"{RECORDED_S:g}s", "--extend", "0", "--stop", "never"]
    words += ["--diagnose", "never", "--ui", "none", "--store", str(store)]
    for setting in _CADENCE:
        words += ["--set", setting]
    done = subprocess.run(
        own_command(words),
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=RECORDED_S + _PATIENCE_S,
    )
    return done.returncode


def main(
    store: Annotated[Path, typer.Option(help="Directory for the recordings.")] = Path(
        "results/limits"
    ),
    seeds: Annotated[int, typer.Option(min=1, help="Recordings of each profile.")] = 5,
    jobs: Annotated[int, typer.Option(min=1, help="Soaks at a time.")] = 2,
    growth: Annotated[
        bool,
        typer.Option("--growth", help="Also judge the recordings with growth added to them."),
    ] = False,
) -> None:
    """The memory limits of short runs, from healthy soaks of 20 minutes and their beginnings.

    Safe to rerun: stored recordings are reused.  Twenty recordings take three and a half hours, two
    at a time.  The tables are Markdown.

    Exits with code 12 if the growth table contradicts docs/explanation/detection.md.
    """
    found = record_missing(store, seeds, jobs, lambda text: typer.echo(text, err=True))
    typer.echo("\n".join(limit_table(list(limit_rows(found)))))
    if growth:
        rows = list(growth_rows(found))
        typer.echo("\nLEAK / INCONCLUSIVE / CLEAN, and other verdicts\n")
        typer.echo("\n".join(growth_table(rows)))
        broken = list(missed_limits(rows))
        for sentence in broken:
            typer.echo(sentence, err=True)
        if broken:
            raise typer.Exit(int(ExitCode.REGRESSION))
