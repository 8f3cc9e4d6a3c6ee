"""List the contents of a store: runs, comparisons and nightly runs, including damaged ones."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from hybridbench.foundation.errors import RunDirectoryError
from hybridbench.foundation.foreign import (
    DOCUMENT_BYTES_MAX,
    ForeignDataError,
    open_regular,
    read_bytes,
    read_json,
)
from hybridbench.records.comparison import comparison_manifest_from_json
from hybridbench.records.nightly import CellHead, NightlyHead
from hybridbench.records.stored_verdict import VerdictHead, read_verdict_part
from hybridbench.rundir.layout import (
    CELL,
    CELLS,
    COMPARISON,
    EVENTS,
    MANIFEST,
    NIGHTLY,
    SAMPLES,
    VERDICT,
)
from hybridbench.rundir.lines import SampleLine, decoded_event, decoded_sample
from hybridbench.rundir.lock import holder_of
from hybridbench.rundir.manifest import read_manifest
from hybridbench.rundir.ours import is_foreign

_TAIL_BYTES: Final = 1 << 17
# A nightly run contains cells, a cell contains attempts, and an attempt contains runs.
_DEPTH: Final = 6
_CELL_OF_NIGHTLY: Final = f"{CELLS}/*/{CELL}"


class EntryKind(StrEnum):
    """Kind of a directory in a store."""

    RUN = "run"
    COMPARISON = "comparison"
    NIGHTLY = "night"


@dataclass(frozen=True)
class RunSummary:
    """One row of a listing; ``problem``, if any, says why the rest is empty.

    For a comparison, ``model`` and ``profile`` are those of its versions, whose names are in
    ``defects``; for a nightly run, ``profile`` is the name of its plan.
    """

    path: Path
    run_id: str
    kind: EntryKind = EntryKind.RUN
    model: str = ""
    profile: str = ""
    defects: tuple[str, ...] = ()
    started_wall_s: float | None = None
    duration_s: float | None = None  # time of the last readable sample or event
    verdict: str | None = None  # None: not judged yet
    headline: str = ""  # as stored: for runs and comparisons, begins with the verdict
    bare_headline: str = ""  # without the verdict
    exit_code: int | None = None  # of the verdict; 0 is good
    problem: str = ""
    writer: int | None = None  # PID of the process that is writing it


def list_runs(store: Path) -> list[RunSummary]:
    """The results directly in ``store``, newest first; empty if ``store`` does not exist."""
    found = [(kind_of(path), path) for path in _folders(store)]
    entries = [_summary(kind, path) for kind, path in found if kind is not None]
    return _newest_first(entries)


def list_store(store: Path) -> list[RunSummary]:
    """The results in ``store`` and in its plain folders, such as results/nightly."""
    plain = [path for path in _folders(store) if kind_of(path) is None]
    entries = [entry for folder in (store, *plain) for entry in list_runs(folder)]
    return _newest_first(entries)


def find_runs(store: Path) -> Iterator[Path]:
    """The soaks in ``store`` and in its nightly runs, but not the runs of comparisons.

    Links are not followed.
    """
    yield from _runs_below(store, _DEPTH)


def kind_of(path: Path) -> EntryKind | None:
    """Return what kind of directory ``path`` is; None if it is not ours."""
    try:
        if (path / COMPARISON).is_file() and not is_foreign(path / COMPARISON):
            return EntryKind.COMPARISON
        if (path / NIGHTLY).is_file() and not is_foreign(path / NIGHTLY):
            return EntryKind.NIGHTLY
        if (path / MANIFEST).exists() or (path / SAMPLES).exists():
            return EntryKind.RUN
        if any(path.glob(_CELL_OF_NIGHTLY)):
            return EntryKind.NIGHTLY
    except OSError:
        return None
    return None


def last_sample(path: Path) -> SampleLine | None:
    """The last intact sample; reads only the end of the file, which may be long."""
    return next(filter(None, map(decoded_sample, _last_lines(path))), None)


def _recorded_s(path: Path) -> float | None:
    """Time of the last sample or event, as in the run's report; None without samples."""
    sample = last_sample(path / SAMPLES)
    if sample is None:
        return None
    event = next(filter(None, map(decoded_event, _last_lines(path / EVENTS))), None)
    return sample.t if event is None else max(sample.t, event.t)


def _last_lines(path: Path) -> Iterator[bytes]:
    """The lines at the end of ``path``, last one first."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).split(b"\n")
    except (OSError, ForeignDataError):
        return
    yield from reversed(lines)


def _newest_first(entries: Iterable[RunSummary]) -> list[RunSummary]:
    return sorted(entries, key=lambda run: (run.started_wall_s or 0.0, run.run_id), reverse=True)


def _folders(store: Path) -> list[Path]:
    try:
        folders = [path for path in store.iterdir() if not path.name.startswith(".")]
        return [path for path in folders if path.is_dir() and not path.is_symlink()]
    except OSError:
        return []


def _runs_below(folder: Path, depth: int) -> Iterator[Path]:
    for path in sorted(_folders(folder)):
        kind = kind_of(path)
        if kind is EntryKind.RUN:
            yield path
        elif kind is not EntryKind.COMPARISON and depth > 1:
            yield from _runs_below(path, depth - 1)


def _summary(kind: EntryKind, path: Path) -> RunSummary:
    try:
        if kind is EntryKind.COMPARISON:
            return _comparison(path)
        return _nightly(path) if kind is EntryKind.NIGHTLY else _run(path)
    except (RunDirectoryError, OSError) as error:
        return RunSummary(path, path.name, kind, problem=str(error))
    except _DAMAGED as error:
        return RunSummary(path, path.name, kind, problem=f"{path / _MARKER[kind]}: {error}")


_DAMAGED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ForeignDataError)
_MARKER: Final = {
    EntryKind.RUN: MANIFEST,
    EntryKind.COMPARISON: COMPARISON,
    EntryKind.NIGHTLY: NIGHTLY,
}


def _run(path: Path) -> RunSummary:
    manifest = read_manifest(path)
    judged = read_verdict_part(path / VERDICT, VerdictHead)
    return RunSummary(
        path=path,
        run_id=manifest.run_id,
        model=manifest.model.name,
        profile=manifest.profile.name,
        defects=manifest.defects,
        started_wall_s=manifest.started_wall_s,
        duration_s=_recorded_s(path),
        verdict=judged.verdict or None,
        headline=judged.headline,
        bare_headline=judged.bare_headline,
        exit_code=judged.exit_code,
        writer=holder_of(path),
    )


def _comparison(path: Path) -> RunSummary:
    stored = read_json(path / COMPARISON)
    manifest = comparison_manifest_from_json(stored if isinstance(stored, dict) else {})
    judged = read_verdict_part(path / VERDICT, VerdictHead)
    return RunSummary(
        path=path,
        run_id=path.name,
        kind=EntryKind.COMPARISON,
        model=manifest.model,
        profile=manifest.profile,
        defects=tuple(side.name for side in manifest.versions),
        started_wall_s=manifest.started_wall_s,
        verdict=judged.word or None,
        headline=judged.headline,
        bare_headline=judged.bare_headline,
        exit_code=judged.exit_code,
        writer=_side_writer(path),
    )


def _nightly(path: Path) -> RunSummary:
    if not (path / NIGHTLY).is_file():
        return _unmerged_nightly(path)
    nightly = msgspec.json.decode(read_bytes(path / NIGHTLY, DOCUMENT_BYTES_MAX), type=NightlyHead)
    ends = (nightly.started_wall_s, nightly.ended_wall_s)
    return RunSummary(
        path=path,
        run_id=path.name,
        kind=EntryKind.NIGHTLY,
        profile=nightly.plan.name,
        started_wall_s=nightly.started_wall_s,
        duration_s=None if ends[0] is None or ends[1] is None else ends[1] - ends[0],
        verdict=nightly.word or None,
        headline=nightly.headline,
        bare_headline=nightly.headline,
        exit_code=nightly.exit_code,
        writer=holder_of(path / CELLS),
    )


def _unmerged_nightly(path: Path) -> RunSummary:
    cells = []
    for file in sorted(path.glob(_CELL_OF_NIGHTLY)):
        # A damaged cell is rerun when the nightly run is resumed.
        with contextlib.suppress(*_DAMAGED):
            cells.append(msgspec.json.decode(read_bytes(file, DOCUMENT_BYTES_MAX), type=CellHead))
    starts = [a.started_wall_s for cell in cells for a in cell.attempts if a.started_wall_s]
    return RunSummary(
        path=path,
        run_id=path.name,
        kind=EntryKind.NIGHTLY,
        profile=next((cell.plan.name for cell in cells), ""),
        started_wall_s=min(starts, default=None),
        writer=holder_of(path / CELLS),
    )


def _side_writer(path: Path) -> int | None:
    """PID of a running comparison, which holds the locks of its sides; else None."""
    writers = (holder_of(side) for side in _folders(path))
    return next((writer for writer in writers if writer is not None), None)
