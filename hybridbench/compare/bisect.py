"""Find the first commit or release that is worse than a good one; each is compared with that."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

from hybridbench.analysis.comparison.leaks import unjudged
from hybridbench.analysis.comparison.records import Change, Comparison, ComparisonVerdict, Outcome
from hybridbench.compare.store import read_comparison_manifest
from hybridbench.compare.worktree import Revision, find_revision
from hybridbench.foundation.errors import ErrorCode, RunDirectoryError, UsageError
from hybridbench.records.comparison import FINISHED
from hybridbench.records.finding import VerdictKind
from hybridbench.records.verdict import leak_kind
from hybridbench.rundir.layout import COMPARISON
from hybridbench.runs.machine import git

# A commit, or the name of a release.
Version = TypeVar("Version")
# What to search for: a leak, as kind and subject of its finding, or a crash.
Symptom: TypeAlias = tuple[str, str]
_CRASH: Symptom = ("crash", "")

_WORSE = (Change.INTRODUCED, Change.WORSE)


class Answer(StrEnum):
    """A version's result compared with the good one."""

    GOOD = "good"
    BAD = "bad"
    SKIPPED = "skipped"  # it cannot be built, or the comparison is inconclusive


@dataclass(frozen=True)
class Tried(Generic[Version]):
    """One version with its answer; ``why`` is the comparison's headline, or the error."""

    version: Version
    answer: Answer
    why: str


@dataclass(frozen=True)
class Bisected(Generic[Version]):
    """``suspects`` are the candidates for the first bad version; a single one is that version."""

    suspects: tuple[Version, ...]
    tried: tuple[Tried[Version], ...]


def commits_between(good: str, bad: str, root: Path | None = None) -> list[Revision]:
    """Return the commits from the good one to the bad one, inclusive, each after its ancestors.

    Raises:
        UsageError: one is not a commit, or the bad one does not come after the good one.
    """
    first = find_revision(good, root)
    last = find_revision(bad, first.root)
    listed = ("rev-list", "--topo-order", "--reverse", "--ancestry-path", f"{good}..{bad}")
    commits = (git(first.root, *listed) or "").split()
    if not commits:
        raise UsageError(
            f"{good} --bad {bad}: the bad commit does not come after the good one; "
            f"`git log {good}..{bad}` must list something.",
            option="--good",
            also=("--bad",),
        )
    return [first, *(find_revision(commit, first.root) for commit in commits[:-1]), last]


def releases_between(good: str, bad: str, known: Sequence[str]) -> list[str]:
    """Return the releases from the good one to the bad one, inclusive.

    They are in reverse order if the bad one is older, to search for the release that fixed a bug.

    Args:
        good, bad: release numbers.
        known: all releases, oldest first.

    Raises:
        UsageError: one is not known, or both are the same.
    """
    for option, release in (("--good", good), ("--bad", bad)):
        if release not in known:
            raise UsageError(
                f"{release}: there are {', '.join(known)}.",
                code=ErrorCode.UNKNOWN_NAME,
                option=option,
            )
    if good == bad:
        raise UsageError(f"{good} is given as both good and bad.", option="--good", also=("--bad",))
    first, last = known.index(good), known.index(bad)
    step = 1 if first < last else -1
    return [known[index] for index in range(first, last + step, step)]


def ancestry(commits: Sequence[Revision]) -> list[int]:
    """Return which of ``commits`` each one contains, for ``bisect``; history may have branches."""
    index = {revision.commit: number for number, revision in enumerate(commits)}
    contained: list[int] = []
    for number, revision in enumerate(commits):
        known = (contained[index[parent]] for parent in revision.parents if parent in index)
        contained.append(reduce(or_, known, 1 << number))
    return contained


def bisect(
    versions: Sequence[Version],
    try_one: Callable[[Version], Tried[Version]],
    contained: Sequence[int] | None = None,
) -> Bisected[Version]:
    """Search ``versions``, the first of which is good, for the first bad one, by bisection.

    The last is tried first: if it is not bad, there is nothing to search for, and ``suspects`` is
    empty.  If a version has no answer, the next best one is tried instead.

    Args:
        versions: each after those that it contains.
        try_one: compares a version with the first.
        contained: bit j of element i is set if version i contains version j; each contains itself
            and the first, and the last contains all.  Default: each contains all before it.
    """
    if contained is None:
        contained = [(2 << index) - 1 for index in range(len(versions))]
    last = len(versions) - 1
    tried = {last: try_one(versions[last])}
    if tried[last].answer is not Answer.BAD:
        return Bisected((), tuple(tried.values()))
    suspects = contained[last] & ~contained[0]
    while (middle := _middle(suspects, contained, tried)) is not None:
        tried[middle] = try_one(versions[middle])
        if tried[middle].answer is Answer.BAD:
            suspects &= contained[middle]
        elif tried[middle].answer is Answer.GOOD:
            suspects &= ~contained[middle]
    found = tuple(version for index, version in enumerate(versions) if suspects >> index & 1)
    return Bisected(found, tuple(tried.values()))


def _middle(suspects: int, contained: Sequence[int], tried: Container[int]) -> int | None:
    """Return the untried suspect that contains most nearly half of ``suspects``, or None."""
    count = suspects.bit_count()
    left = (i for i in range(len(contained)) if suspects >> i & 1 and i not in tried)
    return min(
        left,
        key=lambda i: (abs(2 * (contained[i] & suspects).bit_count() - count), i),
        default=None,
    )


def symptoms_of(comparison: Comparison, verdict: ComparisonVerdict) -> frozenset[Symptom]:
    """Return what makes the second version worse: leaks, or that it crashes or hangs where the
    first does not; empty if it is only slower.
    """
    leaks = verdict.sides[0].leaks
    worse = {(leak_kind(leak.kind), leak.subject) for leak in leaks if leak.change in _WORSE}
    first, second = (version.verdict.kind is VerdictKind.CRASHED for version in comparison.versions)
    return frozenset(worse | ({_CRASH} if second and not first else set()))


def answer_of(
    comparison: Comparison, verdict: ComparisonVerdict, symptoms: frozenset[Symptom]
) -> Answer:
    """Classify the second version of a comparison.

    In a search for leaks or a crash, only these decide: an undecided speed is no reason to skip a
    commit, and a slower one is not a bad one.
    """
    changes = {(leak_kind(leak.kind), leak.subject): leak.change for leak in verdict.sides[0].leaks}
    if symptoms & symptoms_of(comparison, verdict):
        return Answer.BAD
    run_proves = not unjudged(comparison.versions[1].verdict)
    undecided = any(changes.get(symptom) is Change.UNDECIDED for symptom in symptoms)
    if symptoms and run_proves and not undecided:
        return Answer.GOOD
    if symptoms or verdict.outcome is Outcome.INCONCLUSIVE:
        return Answer.SKIPPED
    return Answer.BAD if verdict.outcome is Outcome.REGRESSION else Answer.GOOD


def finished_comparison(store: Path, engines: Sequence[str], settings: str) -> Path | None:
    """Return the newest finished comparison of these engines with these settings, or None.

    An engine is identified by the tree of its commit, or by the name of its release.
    """
    for path in sorted(store.glob(f"*/{COMPARISON}"), reverse=True):
        try:
            stored = read_comparison_manifest(path.parent)
        except RunDirectoryError:
            continue
        compared = [version.unknown.get("tree", version.name) for version in stored.versions]
        if stored.settings == settings and compared == list(engines) and stored.ended in FINISHED:
            return path.parent
    return None
