"""Delete old results by rules, never those in use or needed by others.

Only directories directly in the results directory whose content identifies them as our runs,
comparisons or nightly runs are touched, and only if they contain nothing else; links are not
followed.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from hybridbench.analysis.comparison.answer import LEAK_WORDS
from hybridbench.compare.store import read_comparison_manifest
from hybridbench.foundation.errors import RunDirectoryError
from hybridbench.over_time.comparer import series_facts, series_key
from hybridbench.over_time.stored import green_runs
from hybridbench.rundir.layout import CELLS, KEEP, LOCK, MARKERS, RECORDED, WRITTEN_PAGES
from hybridbench.rundir.listing import EntryKind, RunSummary, find_runs, list_runs
from hybridbench.rundir.lock import locked_run
from hybridbench.rundir.manifest import read_manifest
from hybridbench.rundir.ours import is_ours

_DAY_S: Final = 86400.0
_NOT_OURS: Final = "its contents do not identify it as written by hybridbench"
_FOREIGN_NAMED: Final = 3
_KNOWN: Final = RECORDED | WRITTEN_PAGES
# The folders around a nightly run's results hold a lock and command output.
_AROUND_RESULTS: Final = frozenset({LOCK, "console.txt"})
# Left behind by a process that was killed in write_atomically.
_PART: Final = re.compile(r"\.(?P<name>.+)\.\d+-[0-9a-f]{6}\.part")


@dataclass(frozen=True)
class Rules:
    """What is kept; everything else is deleted.

    Args:
        keep: keep the newest N of each kind, model, profile and plan; runs also need the same
            `history` series and the same defects to count together.
        keep_days: keep those that began less than this many days ago.
        keep_failed: keep those whose verdict is not good.
        leaks: also delete leaks.
        damaged: also delete what cannot be read.
    """

    keep: int | None = None
    keep_days: float | None = None
    keep_failed: bool = False
    leaks: bool = False
    damaged: bool = False


@dataclass(frozen=True)
class PruneDecision:
    """One directory, whether it will be deleted, and the reason."""

    entry: RunSummary
    to_delete: bool
    reason: str


def decide(store: Path, rules: Rules, now_wall_s: float) -> list[PruneDecision]:
    """Decide about everything in ``store``, oldest first, without changing anything."""
    entries = list_runs(store)
    ranks = _ranks([entry for entry in entries if is_ours(entry.path)])
    baselines = _baselines(store)

    def reason_to_keep(entry: RunSummary) -> str:
        if entry.path not in ranks:
            return _NOT_OURS
        rank, is_baseline = ranks[entry.path], entry.path in baselines
        return next(_reasons_to_keep(entry, rules, now_wall_s, rank, is_baseline), "")

    comparisons = [entry for entry in entries if entry.kind is EntryKind.COMPARISON]
    needed = _compared([entry for entry in comparisons if reason_to_keep(entry)])
    decisions = []
    for entry in reversed(entries):
        user = needed.get(entry.path.resolve())
        kept = reason_to_keep(entry) or (f"{user} compares it" if user else "")
        reason = kept or ("damaged" if entry.problem else "no rule keeps it")
        decisions.append(PruneDecision(entry, not kept, reason))
    return decisions


def delete(store: Path, path: Path) -> None:
    """Delete ``path``, a result directly in ``store``, after locking it against writers.

    An interrupted deletion leaves a directory that is still recognisable as ours, so that the next
    one finishes it.

    Raises:
        RunDirectoryError: it lies elsewhere, is being written, or contains foreign files.
        OSError: it cannot be deleted, or not completely.
    """
    if path.is_symlink() or path.resolve().parent != store.resolve():
        raise RunDirectoryError(f"{path} is not in {store}")
    with contextlib.ExitStack() as locks:
        cells = path / CELLS
        for written in (path, *([cells] if cells.is_dir() else []), *find_runs(path)):
            locks.enter_context(locked_run(written))
        # Check again: a file may have been added in the meantime.
        foreign = _foreign(path)
        if foreign:
            raise RunDirectoryError(f"{path}: {foreign}")
        _delete_tree(path)


def size_of(path: Path) -> int:
    """Return the disk usage in bytes of all files below ``path``, without following links."""
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total


def _reasons_to_keep(
    entry: RunSummary, rules: Rules, now_wall_s: float, rank: int, is_baseline: bool
) -> Iterator[str]:
    """Yield reasons to keep ``entry``: those independent of rules first, the slowest last."""
    if entry.writer is not None:
        yield f"process {entry.writer} is writing it"
    if (entry.path / KEEP).exists():
        yield f"it contains a file named {KEEP}"
    if entry.problem and not rules.damaged:
        yield "damaged; --damaged deletes it"
    if is_baseline:
        yield "the last green run of its plan"
    if entry.verdict in LEAK_WORDS and entry.exit_code != 0 and not rules.leaks:
        yield "a leak; --leaks deletes it"
    if not entry.problem:
        yield from _rules_that_keep(entry, rules, now_wall_s, rank)
    foreign = _foreign(entry.path)
    if foreign:
        yield foreign


def _rules_that_keep(
    entry: RunSummary, rules: Rules, now_wall_s: float, rank: int
) -> Iterator[str]:
    if rules.keep is not None and rank < rules.keep:
        yield f"among the newest {rules.keep}"
    if rules.keep_days is not None:
        began_s = entry.started_wall_s
        # An unknown start time does not count as old.
        if began_s is None or now_wall_s - began_s < rules.keep_days * _DAY_S:
            yield f"younger than {rules.keep_days:g} days"
    if rules.keep_failed and entry.exit_code != 0:
        yield f"its verdict is {entry.verdict or 'not known'}"


def _foreign(path: Path) -> str:
    """Explain why ``path`` is kept whatever the rules: parts are not ours; empty if all are."""
    if not is_ours(path):
        return _NOT_OURS
    files = list(islice(_foreign_files(path), _FOREIGN_NAMED + 1))
    if not files:
        return ""
    named = ", ".join(str(file) for file in files[:_FOREIGN_NAMED])
    more = " and more" if len(files) > _FOREIGN_NAMED else ""
    return f"hybridbench did not write {named}{more} in it; move that away first"


def _foreign_files(path: Path) -> Iterator[Path]:
    """Yield what is below ``path`` and was not written by us; relative to ``path``, which is ours.

    A file is ours if it has a known name in a directory whose content is ours; a link never is.
    """
    for folder, folders, files in os.walk(path):
        place = Path(folder)
        known = _KNOWN if is_ours(place) else _AROUND_RESULTS
        for name in sorted(files):
            part = _PART.fullmatch(name)
            ours = name in known or (part is not None and part["name"] in known)
            if not ours or (place / name).is_symlink():
                yield (place / name).relative_to(path)
        links = (name for name in sorted(folders) if (place / name).is_symlink())
        yield from ((place / name).relative_to(path) for name in links)


def _ranks(entries: Sequence[RunSummary]) -> dict[Path, int]:
    """Return for each of ``entries`` (newest first) how many entries of its group are newer."""
    seen: dict[tuple[str, ...], int] = defaultdict(int)
    ranks: dict[Path, int] = {}
    for entry in entries:
        key = _group(entry)
        ranks[entry.path] = seen[key]
        # An unreadable directory does not take the place of a readable one.
        seen[key] += not entry.problem
    return ranks


def _group(entry: RunSummary) -> tuple[str, ...]:
    """Return the group within which the newest are kept: only comparable runs share one.

    A healthy run is not a baseline for a run with a defect, or with another collector, device,
    trace or load.
    """
    facts: dict[str, str] = {}
    if entry.kind is EntryKind.RUN and not entry.problem:
        with contextlib.suppress(RunDirectoryError):
            facts = series_facts(read_manifest(entry.path))
    defects = sorted(entry.defects) if facts else []
    return (entry.kind.value, *series_key(entry.model, entry.profile, facts), *defects)


def _compared(comparisons: Sequence[RunSummary]) -> dict[Path, str]:
    """Return the runs that ``comparisons`` need, each with the name of one of them.

    Without its runs, a comparison of stored runs can no longer be read.
    """
    needed: dict[Path, str] = {}
    for entry in comparisons:
        with contextlib.suppress(RunDirectoryError):
            for version in read_comparison_manifest(entry.path).versions:
                needed.setdefault((entry.path / version.run).resolve(), entry.path.name)
    return needed


def _baselines(store: Path) -> set[Path]:
    """Return the newest green run of each plan, with which the next one will be compared."""
    newest: dict[str, Path] = {}
    for green in green_runs([store]):
        newest.setdefault(green.run.plan.name, store / green.name)
    return set(newest.values())


def _delete_tree(path: Path) -> None:
    """Delete ``path``, the markers of every folder last; delete a link, not its target."""
    # The lock goes last of all, so that a waiter finds it held until the end.
    for inner in sorted(path.iterdir(), key=lambda one: (one.name == LOCK, one.name in MARKERS)):
        if inner.is_dir() and not inner.is_symlink():
            _delete_tree(inner)
        else:
            inner.unlink()
    path.rmdir()
