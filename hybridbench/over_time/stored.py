"""cell.json and night.json on disk: validated when read, written completely or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from hybridbench.foundation.errors import ErrorCode, RunDirectoryError
from hybridbench.records.codec import from_json, to_json
from hybridbench.records.documents import read_document
from hybridbench.records.json_value import json_text
from hybridbench.records.nightly import (
    CELL_SCHEMA,
    NIGHTLY_SCHEMA,
    CellRecord,
    NightlyRun,
    parse_max_rate,
)
from hybridbench.rundir.atomic import write_atomically
from hybridbench.rundir.layout import NIGHTLY, make_directory
from hybridbench.rundir.lock import locked_run

# Runs that --keep-baseline keeps: enough for a fleet with machines of several classes.
_KEPT: Final = 30
_Record = TypeVar("_Record", CellRecord, NightlyRun)


def read_cell(path: Path) -> CellRecord:
    """Return the cell stored in the file at ``path``.

    Raises:
        RunDirectoryError: it is damaged, or was written by a version with another format.
    """
    return _read(path, CellRecord, CELL_SCHEMA)


def read_nightly_run(path: Path) -> NightlyRun:
    """Return the nightly run stored in the file at ``path``.

    Raises:
        RunDirectoryError: it is damaged, or was written by a version with another format.
    """
    return _read(path, NightlyRun, NIGHTLY_SCHEMA)


def write_record(path: Path, record: CellRecord | NightlyRun) -> None:
    """Replace the file at ``path``.

    Raises:
        RunDirectoryError: it cannot be written.
    """
    write_atomically(path, json_text(to_json(record)))


@dataclass(frozen=True)
class GreenRun:
    """A stored nightly run that was green; ``name`` is the name of its directory."""

    name: str
    run: NightlyRun


def green_runs(places: Sequence[Path], but: Path | None = None) -> list[GreenRun]:
    """Return the green runs in or directly below ``places``, newest first, except ``but``.

    Unreadable runs are skipped: a damaged run is not a baseline, but no reason to stop.
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
    """Store a green run below ``place`` as a baseline, without its soaks; delete old ones.

    Raises:
        RunDirectoryError: ``place`` cannot be written.
    """
    make_directory(place)
    with locked_run(place):
        folder = place / name
        make_directory(folder)
        write_record(folder / NIGHTLY, run)
        # Consider neither ``place`` itself, which may be a nightly run, nor the target of a link.
        kept = [run for run in green_runs([place]) if (place / run.name / NIGHTLY).is_file()]
        for old in kept[_KEPT:]:
            # Delete only what was created here: a directory with other files stays.
            (place / old.name / NIGHTLY).unlink(missing_ok=True)
            if not any((place / old.name).iterdir()):
                (place / old.name).rmdir()


def another_engine(one: str, other: str) -> bool:
    """Whether two hashes are of different engines; an empty hash matches any."""
    return bool(one and other) and one != other


def _read(path: Path, kind: type[_Record], schema: str) -> _Record:
    stored = read_document(path, schema)
    try:
        record = from_json(stored, kind)
        for waiver in record.plan.waivers:
            if waiver.max_rate is not None:
                parse_max_rate(waiver.max_rate)
    except (msgspec.ValidationError, ValueError) as error:
        raise RunDirectoryError(
            f"{path} is damaged, or from before version 0.1.0: {error}", code=ErrorCode.DAMAGED
        ) from error
    return record


def _files(places: Sequence[Path]) -> Iterator[Path]:
    for place in places:
        if not place.is_dir():
            continue
        for path in (place / NIGHTLY, *sorted(place.glob(f"*/{NIGHTLY}"))):
            if path.is_file():
                yield path.resolve()
