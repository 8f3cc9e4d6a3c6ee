"""What of a store may go: old results by rules, none that is being written or that others need.

Only directories directly in the store whose content proves that they are a run, a comparison or a
night of ours are touched, and none that holds anything else; no link is followed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Final

from hybridbench.errors import RunDirectoryError
from hybridbench.history.points import history_facts
from hybridbench.records.verdict import VerdictKind
from hybridbench.rundir.layout import CELLS, KEEP, LOCK
from hybridbench.rundir.listing import EntryKind, RunSummary, find_runs, list_runs
from hybridbench.rundir.lock import locked_run
from hybridbench.rundir.proof import foreign_files, is_ours
from hybridbench.rundir.reader import read_manifest

_DAY_S: Final = 86400.0
_GOING: Final = ".pruned-"
_TOMBSTONE: Final = ".hybridbench-pruned.json"
_TOMBSTONE_SCHEMA: Final = "hybridbench.pruned/1"
_UNPROVEN: Final = "its content does not prove that hybridbench made it"
_FOREIGN_NAMED: Final = 3


@dataclass(frozen=True)
class Rules:
    """What is kept; what no rule keeps goes.

    Args:
        keep: the newest so many of each kind, model, profile and plan; of runs, of those that
            `history` puts into one history and that have the same defects.
        keep_days: those that began less than so many days ago.
        keep_failed: those whose answer is not good.
        leaks: leaks may go too; without it they stay.
        damaged: what cannot be read may go too.
    """

    keep: int | None = None
    keep_days: float | None = None
    keep_failed: bool = False
    leaks: bool = False
    damaged: bool = False


class Fate(StrEnum):
    """What becomes of a directory."""

    KEPT = "kept"
    GOES = "goes"


@dataclass(frozen=True)
class Doom:
    """One directory and what becomes of it, with the reason.

    ``is_foreign``: it stays because not all of it is ours, which nobody asked for.
    """

    entry: RunSummary
    fate: Fate
    why: str
    is_foreign: bool = False


@dataclass(frozen=True)
class Gone:
    """A directory that was deleted, or why it was not."""

    path: Path
    size_bytes: int
    problem: str = ""


def doomed(store: Path, rules: Rules, now_wall_s: float) -> list[Doom]:
    """What becomes of everything in ``store``, newest first; nothing is changed."""
    entries = list_runs(store)
    proven = [entry for entry in entries if is_ours(entry.path)]
    last_good = _last_good_nights(proven)
    ranks = _ranks(proven)
    return [
        _fate(entry, rules, now_wall_s, ranks[entry.path], last_good=entry.path in last_good)
        if entry.path in ranks
        else Doom(entry, Fate.KEPT, _UNPROVEN, is_foreign=True)
        for entry in entries
    ]


def remove(store: Path, dooms: Sequence[Doom]) -> Iterator[Gone]:
    """Delete what goes, one after the other; what cannot be deleted is told and stays."""
    root = store.resolve()
    for left in root.glob(f"{_GOING}*"):
        # A deletion that was cut off.
        if left.is_dir() and not left.is_symlink() and _is_going(left):
            with contextlib.suppress(OSError):
                _delete(left)
    for doom in dooms:
        path = doom.entry.path
        if doom.fate is not Fate.GOES:
            continue
        if path.is_symlink() or path.resolve().parent != root:
            yield Gone(path, 0, f"{path} does not lie in {store}")
            continue
        try:
            yield Gone(path, _remove(path))
        except (RunDirectoryError, OSError) as error:
            yield Gone(path, 0, str(error))


def size_of(path: Path) -> int:
    """Bytes on the disk of all files below ``path``, links not followed."""
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total


def _fate(
    entry: RunSummary, rules: Rules, now_wall_s: float, rank: int, *, last_good: bool
) -> Doom:
    kept = next(_protected(entry, rules, last_good=last_good), None)
    if kept is None and not entry.problem:
        kept = next(_ruled(entry, rules, now_wall_s, rank), None)
    if kept is not None:
        return Doom(entry, Fate.KEPT, kept)
    foreign = _foreign(entry.path)
    if foreign:
        return Doom(entry, Fate.KEPT, foreign, is_foreign=True)
    return Doom(entry, Fate.GOES, "damaged" if entry.problem else "no rule keeps it")


def _protected(entry: RunSummary, rules: Rules, *, last_good: bool) -> Iterator[str]:
    """Why it stays whatever the rules say."""
    if entry.writer is not None:
        yield f"process {entry.writer} writes it"
    if (entry.path / KEEP).exists():
        yield f"a file {KEEP} lies in it"
    if entry.problem and not rules.damaged:
        yield "damaged; --damaged lets it go"
    if last_good:
        yield "the last good night of its plan"
    leaks = (entry.verdict or "").startswith(VerdictKind.LEAK.value)
    if leaks and entry.exit_code != 0 and not rules.leaks:
        yield "a leak; --leaks lets it go"


def _ruled(entry: RunSummary, rules: Rules, now_wall_s: float, rank: int) -> Iterator[str]:
    """The rules that keep it."""
    if rules.keep is not None and rank < rules.keep:
        yield f"among the newest {rules.keep}"
    if rules.keep_days is not None and _is_young(entry.started_wall_s, now_wall_s, rules.keep_days):
        yield f"younger than {rules.keep_days:g} days"
    if rules.keep_failed and entry.exit_code != 0:
        yield f"its answer is {entry.verdict or 'not known'}"


def _is_young(started_wall_s: float | None, now_wall_s: float, days: float) -> bool:
    # What does not say when it began is not called old.
    return started_wall_s is None or now_wall_s - started_wall_s < days * _DAY_S


def _foreign(path: Path) -> str:
    """Why it stays although no rule keeps it: not all that lies in it is ours; or empty."""
    files = list(islice(foreign_files(path), _FOREIGN_NAMED + 1))
    if not files:
        return ""
    named = ", ".join(str(file) for file in files[:_FOREIGN_NAMED])
    more = " and more" if len(files) > _FOREIGN_NAMED else ""
    return f"hybridbench did not write {named}{more} in it; move that away first"


def _ranks(entries: Sequence[RunSummary]) -> dict[Path, int]:
    """How many of the same group are newer."""
    seen: dict[tuple[str, ...], int] = defaultdict(int)
    ranks: dict[Path, int] = {}
    for entry in entries:
        key = _group(entry)
        ranks[entry.path] = seen[key]
        # A directory that cannot be read takes no place from one that can.
        seen[key] += not entry.problem
    return ranks


def _group(entry: RunSummary) -> tuple[str, ...]:
    """Within it the newest are kept: what cannot be compared does not stand in for each other.

    A healthy run is the baseline of no run with a defect, and none of another collector, device,
    trace or load.
    """
    key = (entry.kind.value, entry.model, entry.profile)
    if entry.kind is not EntryKind.RUN or entry.problem:
        return key
    try:
        manifest = read_manifest(entry.path)
    except RunDirectoryError:
        return key
    facts = sorted(history_facts(manifest).items())
    return (*key, *sorted(entry.defects), *(f"{name}={value}" for name, value in facts))


def _last_good_nights(entries: Sequence[RunSummary]) -> set[Path]:
    """The newest good night of each plan: what the next one is compared with."""
    found: dict[str, Path] = {}
    for entry in entries:
        if entry.kind is EntryKind.NIGHT and entry.exit_code == 0:
            found.setdefault(entry.profile, entry.path)
    return set(found.values())


def _remove(path: Path) -> int:
    """Delete ``path`` while nobody can begin to write in it; returns the bytes that were freed."""
    size = size_of(path)
    with contextlib.ExitStack() as locks:
        cells = path / CELLS
        for written in (path, *([cells] if cells.is_dir() else []), *find_runs(path)):
            locks.enter_context(locked_run(written))
        # Once more: somebody may have put something there since it was looked at.
        foreign = _foreign(path) if is_ours(path) else _UNPROVEN
        if foreign:
            raise RunDirectoryError(f"{path}: {foreign}")
        # Under a name that no listing shows: half a directory would look like a damaged run.
        going = path.with_name(f"{_GOING}{path.name}")
        path.rename(going)
    (going / LOCK).unlink(missing_ok=True)
    _delete(going)
    return size


def _delete(going: Path) -> None:
    """Delete what was renamed; until it is gone, a file in it says what it is."""
    told = going / _TOMBSTONE
    told.write_text(json.dumps({"schema": _TOMBSTONE_SCHEMA}) + "\n", "utf-8")
    for path in going.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path != told:
            path.unlink()
    told.unlink()
    going.rmdir()


def _is_going(left: Path) -> bool:
    """Whether ``left`` is what a deletion of ours left behind."""
    try:
        said = json.loads((left / _TOMBSTONE).read_text("utf-8"))
    except (OSError, ValueError):
        # Cut off right after it was renamed, or by an earlier version.
        return is_ours(left) and not _foreign(left)
    return isinstance(said, dict) and said.get("schema") == _TOMBSTONE_SCHEMA
