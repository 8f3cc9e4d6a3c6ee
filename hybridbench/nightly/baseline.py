"""The last green run: what a nightly run is compared with, where work and machine agree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from hybridbench.errors import ExitCode, RunDirectoryError
from hybridbench.nightly.stored import read_nightly_run, write_record
from hybridbench.rates import full_rate_text
from hybridbench.records.nightly import (
    AttemptFinding,
    CellFinding,
    CellResult,
    CellState,
    NightlyRun,
)
from hybridbench.records.verdict import Rate, VerdictKind
from hybridbench.report.wording import metric_label
from hybridbench.rundir.layout import NIGHTLY, make_directory
from hybridbench.rundir.lock import locked_run

_THROUGHPUT: Final = "throughput_tokens_per_s"
# Runs that --keep-baseline leaves: enough for a fleet whose machines are of several classes.
_KEPT: Final = 30


@dataclass(frozen=True)
class GreenRun:
    """A stored nightly run that was green; ``name`` is the name of its directory."""

    name: str
    run: NightlyRun


def green_runs(places: Sequence[Path], but: Path | None = None) -> list[GreenRun]:
    """The green runs in or directly below ``places``, newest first; ``but`` is the present one's.

    What cannot be read is passed over: a damaged one is no baseline, and no reason to stop.
    """
    found: dict[Path, GreenRun] = {}
    for path in _files(places):
        if but is not None and path.parent == but.resolve():
            continue
        try:
            run = read_nightly_run(path)
        except RunDirectoryError:
            continue
        if run.green:
            found[path] = GreenRun(path.parent.name, run)
    return sorted(found.values(), key=lambda green: green.run.started_wall_s, reverse=True)


def keep_green_run(place: Path, name: str, run: NightlyRun) -> None:
    """Store a green run below ``place`` as a baseline, without its soaks; old ones are deleted.

    Raises:
        RunDirectoryError: ``place`` cannot be written.
    """
    make_directory(place)
    with locked_run(place):
        folder = place / name
        make_directory(folder)
        write_record(folder / NIGHTLY, run)
        for old in green_runs([place])[_KEPT:]:
            # Only what was made here: a directory that holds anything else stays.
            (place / old.name / NIGHTLY).unlink(missing_ok=True)
            if not any((place / old.name).iterdir()):
                (place / old.name).rmdir()


def against(cell: CellResult, earlier: Sequence[GreenRun], least_ratio: float) -> CellResult:
    """``cell`` with what is new, grown, gone or slower than in the last green run.

    That is the newest in which this cell did the same work on a machine of the same class and did
    not fail: an undecided run found nothing either.  Findings keep their verdict; only throughput
    below ``least_ratio`` makes a cell fail that did not.
    """
    for green in earlier:
        base = next((c for c in green.run.cells if _comparable(c, cell)), None)
        if base is not None:
            return _compared(cell, base, green.name, least_ratio)
    return cell


def _files(places: Sequence[Path]) -> Iterator[Path]:
    for place in places:
        if not place.is_dir():
            continue
        for path in (place / NIGHTLY, *sorted(place.glob(f"*/{NIGHTLY}"))):
            if path.is_file():
                yield path.resolve()


def _comparable(base: CellResult, cell: CellResult) -> bool:
    works = [None if one.cell is None else one.cell.work for one in (base, cell)]
    return (
        base.id == cell.id
        and base.state in (CellState.PASS, CellState.NEUTRAL)
        and base.machine_class == cell.machine_class
        and works[0] == works[1]
    )


def _compared(cell: CellResult, base: CellResult, name: str, least_ratio: float) -> CellResult:
    known = {entry.finding.signature: entry.finding for entry in base.findings if _says(entry)}
    findings = tuple(
        _with_news(entry, name, is_new=entry.finding.signature not in known)
        if _says(entry)
        else entry
        for entry in cell.findings
    )
    seen = {entry.finding.signature for entry in cell.findings}
    ratio = _ratio(cell, base)
    slow = ratio is not None and least_ratio > 0 and ratio < least_ratio
    changed = msgspec.structs.replace(
        cell,
        baseline=name,
        findings=findings,
        gone=tuple(f for signature, f in known.items() if signature not in seen),
        changes=tuple(_changes(cell, base, known, ratio)),
        throughput_ratio=ratio,
    )
    if not slow or cell.state is not CellState.PASS:
        return changed
    return msgspec.structs.replace(
        changed,
        state=CellState.FAIL,
        word="REGRESSION",
        exit_code=int(ExitCode.REGRESSION),
        headline=f"throughput is {ratio:.3f} of {name}, and the plan asks for {least_ratio:g}",
    )


def _with_news(entry: CellFinding, name: str, *, is_new: bool) -> CellFinding:
    news = f"new since {name}" if is_new else f"known in {name}"
    return msgspec.structs.replace(entry, news=news, is_new=is_new)


def _says(entry: CellFinding) -> bool:
    """Whether something was found: what stayed undecided is neither new, known nor gone."""
    return entry.finding.verdict != VerdictKind.INCONCLUSIVE


def _changes(
    cell: CellResult,
    base: CellResult,
    known: dict[tuple[str, str, str], AttemptFinding],
    ratio: float | None,
) -> Iterator[str]:
    for entry in cell.findings:
        before = known.get(entry.finding.signature)
        for rate in entry.finding.rates if before is not None else ():
            was = _same_rate(rate, before)
            if was is not None and grew(rate, was):
                yield f"{entry.finding.subject}: {_from_to(rate, was)}"
    for metric, rate in cell.growth.items():
        before_rate = base.growth.get(metric)
        if before_rate is not None and grew(rate, before_rate):
            yield f"{metric_label(metric)} grows faster: {_from_to(rate, before_rate)}"
    if ratio is not None:
        yield f"throughput ratio {ratio:.3f}"


def grew(rate: Rate, before: Rate) -> bool:
    """Whether the interval of ``rate`` lies wholly above that of ``before``."""
    return rate.lower > before.upper


def _same_rate(rate: Rate, finding: AttemptFinding | None) -> Rate | None:
    rates = () if finding is None else finding.rates
    return next((r for r in rates if (r.unit, r.per) == (rate.unit, rate.per)), None)


def _from_to(rate: Rate, was: Rate) -> str:
    return f"{full_rate_text(was)}, now {full_rate_text(rate)}"


def _ratio(cell: CellResult, base: CellResult) -> float | None:
    now, before = cell.metrics.get(_THROUGHPUT), base.metrics.get(_THROUGHPUT)
    return now / before if now and before else None
