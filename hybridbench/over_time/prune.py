"""Deleting old results by rules, none that is being written or that others need.

Only directories directly in the results directory whose content proves that they are a run, a
comparison or a nightly run of ours are touched, and none that holds anything else; no link is
followed.
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

from hybridbench.analysis.comparison.answer import LEAK_WORDS
from hybridbench.errors import RunDirectoryError
from hybridbench.over_time.comparer import series_facts, series_key
from hybridbench.rundir.layout import CELLS, KEEP, LOCK
from hybridbench.rundir.listing import EntryKind, RunSummary, find_runs, list_runs
from hybridbench.rundir.lock import locked_run
from hybridbench.rundir.manifest import read_manifest
from hybridbench.rundir.proof import foreign_files, is_ours

_DAY_S: Final = 86400.0
_RENAMED: Final = ".pruned-"
_TOMBSTONE: Final = ".hybridbench-pruned.json"
_TOMBSTONE_SCHEMA: Final = "hybridbench.pruned/1"
_UNPROVEN: Final = "its content does not prove that hybridbench made it"
_FOREIGN_NAMED: Final = 3


@dataclass(frozen=True)
class Rules:
    """What is kept; what no rule keeps is deleted.

    Args:
        keep: the newest so many of each kind, model, profile and plan; of runs, of those that
            `history` puts into one history and that have the same defects.
        keep_days: those that began less than so many days ago.
        keep_failed: those whose verdict is not good.
        leaks: also delete leaks.
        damaged: also delete what cannot be read.
    """

    keep: int | None = None
    keep_days: float | None = None
    keep_failed: bool = False
    leaks: bool = False
    damaged: bool = False


class PruneAction(StrEnum):
    """What becomes of a directory."""

    KEEP = "keep"
    DELETE = "delete"


@dataclass(frozen=True)
class PruneDecision:
    """One directory and what becomes of it, with the reason.

    ``is_foreign``: it is kept, though no rule asks for it, because not all of it is ours.
    """

    entry: RunSummary
    action: PruneAction
    reason: str
    is_foreign: bool = False


@dataclass(frozen=True)
class Deletion:
    """A directory that was deleted, or why it was not."""

    path: Path
    size_bytes: int
    problem: str = ""


def decide(store: Path, rules: Rules, now_wall_s: float) -> list[PruneDecision]:
    """What becomes of everything in ``store``, newest first; nothing is changed."""
    entries = list_runs(store)
    proven = [entry for entry in entries if is_ours(entry.path)]
    last_green = _last_green_runs(proven)
    ranks = _ranks(proven)
    return [
        _decision(entry, rules, now_wall_s, ranks[entry.path], last_green=entry.path in last_green)
        if entry.path in ranks
        else PruneDecision(entry, PruneAction.KEEP, _UNPROVEN, is_foreign=True)
        for entry in entries
    ]


def delete(store: Path, decisions: Sequence[PruneDecision]) -> Iterator[Deletion]:
    """Delete one after the other; what cannot be deleted stays and says why."""
    root = store.resolve()
    for left in root.glob(f"{_RENAMED}*"):
        # A deletion that was cut off.
        if left.is_dir() and not left.is_symlink() and _is_unfinished(left):
            with contextlib.suppress(OSError):
                _delete_tree(left)
    for decision in decisions:
        path = decision.entry.path
        if decision.action is not PruneAction.DELETE:
            continue
        if path.is_symlink() or path.resolve().parent != root:
            yield Deletion(path, 0, f"{path} does not lie in {store}")
            continue
        try:
            yield Deletion(path, _delete(path))
        except (RunDirectoryError, OSError) as error:
            yield Deletion(path, 0, str(error))


def size_of(path: Path) -> int:
    """Bytes on the disk of all files below ``path``, links not followed."""
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total


def _decision(
    entry: RunSummary, rules: Rules, now_wall_s: float, rank: int, *, last_green: bool
) -> PruneDecision:
    kept = next(_protected(entry, rules, last_green=last_green), None)
    if kept is None and not entry.problem:
        kept = next(_ruled(entry, rules, now_wall_s, rank), None)
    if kept is not None:
        return PruneDecision(entry, PruneAction.KEEP, kept)
    foreign = _foreign(entry.path)
    if foreign:
        return PruneDecision(entry, PruneAction.KEEP, foreign, is_foreign=True)
    reason = "damaged" if entry.problem else "no rule keeps it"
    return PruneDecision(entry, PruneAction.DELETE, reason)


def _protected(entry: RunSummary, rules: Rules, *, last_green: bool) -> Iterator[str]:
    """Why it is kept whatever the rules say."""
    if entry.writer is not None:
        yield f"process {entry.writer} writes it"
    if (entry.path / KEEP).exists():
        yield f"a file {KEEP} lies in it"
    if entry.problem and not rules.damaged:
        yield "damaged; --damaged deletes it"
    if last_green:
        yield "the last green run of its plan"
    if entry.verdict in LEAK_WORDS and entry.exit_code != 0 and not rules.leaks:
        yield "a leak; --leaks deletes it"


def _ruled(entry: RunSummary, rules: Rules, now_wall_s: float, rank: int) -> Iterator[str]:
    """The rules that keep it."""
    if rules.keep is not None and rank < rules.keep:
        yield f"among the newest {rules.keep}"
    if rules.keep_days is not None and _is_young(entry.started_wall_s, now_wall_s, rules.keep_days):
        yield f"younger than {rules.keep_days:g} days"
    if rules.keep_failed and entry.exit_code != 0:
        yield f"its verdict is {entry.verdict or 'not known'}"


def _is_young(started_wall_s: float | None, now_wall_s: float, days: float) -> bool:
    # What does not say when it began is not called old.
    return started_wall_s is None or now_wall_s - started_wall_s < days * _DAY_S


def _foreign(path: Path) -> str:
    """Why it is kept although no rule says so: it holds files that are not ours; or empty."""
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
    facts: dict[str, str] = {}
    if entry.kind is EntryKind.RUN and not entry.problem:
        with contextlib.suppress(RunDirectoryError):
            facts = series_facts(read_manifest(entry.path))
    defects = sorted(entry.defects) if facts else []
    return (entry.kind.value, *series_key(entry.model, entry.profile, facts), *defects)


def _last_green_runs(entries: Sequence[RunSummary]) -> set[Path]:
    """The newest green run of each plan: what the next one is compared with."""
    found: dict[str, Path] = {}
    for entry in entries:
        if entry.kind is EntryKind.NIGHTLY and entry.exit_code == 0:
            found.setdefault(entry.profile, entry.path)
    return set(found.values())


def _delete(path: Path) -> int:
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
        renamed = path.with_name(f"{_RENAMED}{path.name}")
        path.rename(renamed)
    (renamed / LOCK).unlink(missing_ok=True)
    _delete_tree(renamed)
    return size


def _delete_tree(renamed: Path) -> None:
    """Delete what was renamed; until it is gone, a file in it says what it is."""
    tombstone = renamed / _TOMBSTONE
    tombstone.write_text(json.dumps({"schema": _TOMBSTONE_SCHEMA}) + "\n", "utf-8")
    for path in renamed.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path != tombstone:
            path.unlink()
    tombstone.unlink()
    renamed.rmdir()


def _is_unfinished(left: Path) -> bool:
    """Whether ``left`` is what a deletion of ours left behind."""
    try:
        said = json.loads((left / _TOMBSTONE).read_text("utf-8"))
    except (OSError, ValueError):
        # Cut off right after it was renamed, or by an earlier version.
        return is_ours(left) and not _foreign(left)
    return isinstance(said, dict) and said.get("schema") == _TOMBSTONE_SCHEMA
