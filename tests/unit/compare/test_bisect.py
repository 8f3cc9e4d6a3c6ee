"""Bisection finds the first bad commit, even if some commits cannot be tried."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hybridbench.analysis.comparison.records import (
    Change,
    Comparison,
    ComparisonTerms,
    ComparisonVerdict,
    LeakComparison,
    Outcome,
    SideComparison,
    Version,
)
from hybridbench.analysis.record import RunRecord
from hybridbench.compare.bisect import (
    Answer,
    Tried,
    ancestry,
    answer_of,
    bisect,
    commits_between,
    finished_comparison,
    releases_between,
    symptoms_of,
)
from hybridbench.compare.plan import ComparePlan
from hybridbench.compare.worktree import Revision
from hybridbench.foundation.errors import ErrorCode, UsageError
from hybridbench.records.comparison import COMPARISON_SCHEMA
from hybridbench.records.finding import VerdictKind
from hybridbench.records.manifest import Manifest
from hybridbench.records.verdict import Verdict
from hybridbench.workload.catalog import load_profile
from tests.unit.compare.repositories import WORKER, commit, make_repository, run

COMMITS = [Revision(Path(), f"c{n}", f"commit {n}", f"t{n}") for n in range(17)]


class Comparer:
    """Calls every commit from ``first_bad`` on bad, and skips those in ``unusable``."""

    def __init__(self, first_bad: int, unusable: tuple[int, ...] = ()) -> None:
        self.first_bad = first_bad
        self.unusable = unusable
        self.asked: list[int] = []

    def __call__(self, revision: Revision) -> Tried[Revision]:
        index = COMMITS.index(revision)
        self.asked.append(index)
        bad = Answer.BAD if index >= self.first_bad else Answer.GOOD
        return Tried(revision, Answer.SKIPPED if index in self.unusable else bad, "")


@pytest.mark.parametrize("first_bad", range(1, 17))
def test_wherever_it_is_the_first_bad_commit_is_found_by_halving(first_bad: int) -> None:
    comparer = Comparer(first_bad)

    found = bisect(COMMITS, comparer)

    assert found.suspects == (COMMITS[first_bad],)
    assert len(comparer.asked) <= 5
    assert len(set(comparer.asked)) == len(comparer.asked)


RELEASES = ("0.5.9", "0.5.10", "0.5.10.post1", "0.5.11", "0.5.13")


def test_releases_are_searched_from_the_good_one_to_the_bad_one_in_either_direction() -> None:
    assert releases_between("0.5.9", "0.5.11", RELEASES) == list(RELEASES[:4])
    assert releases_between("0.5.13", "0.5.10", RELEASES) == list(RELEASES[:0:-1])


@pytest.mark.parametrize(
    ("good", "bad", "words"),
    [
        ("0.5.8", "0.5.11", "0.5.8: there are 0.5.9, 0.5.10"),
        ("0.5.9", "0.6", "0.6: there are"),
        ("0.5.9", "0.5.9", "0.5.9 is given as both good and bad"),
    ],
)
def test_releases_that_are_not_known_are_refused(good: str, bad: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        releases_between(good, bad, RELEASES)


def test_a_commit_that_cannot_be_tried_is_passed_over_for_its_neighbour() -> None:
    found = bisect(COMMITS, Comparer(11, unusable=(8, 4, 12)))

    skipped = [t.version.commit for t in found.tried if t.answer is Answer.SKIPPED]
    assert found.suspects == (COMMITS[11],)
    assert "c8" in skipped


def test_what_is_skipped_around_the_first_bad_commit_stays_suspect() -> None:
    found = bisect(COMMITS, Comparer(9, unusable=(8, 9, 10)))

    assert found.suspects == tuple(COMMITS[8:12])


def test_a_bad_commit_that_is_not_worse_ends_the_search_at_once() -> None:
    comparer = Comparer(99)

    found = bisect(COMMITS, comparer)

    assert found.suspects == ()
    assert comparer.asked == [16]


def test_commits_are_listed_from_the_good_one_to_the_bad_one(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "repository")
    for n in range(3):
        commit(root, WORKER, f"change {n}")

    commits = commits_between("HEAD~3", "HEAD", root)

    assert [c.subject for c in commits] == ["first worker", "change 0", "change 1", "change 2"]


def test_a_bad_commit_that_comes_before_the_good_one_is_refused(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "repository")
    commit(root, WORKER, "later")
    run(root, "branch", "elsewhere", "HEAD~1")

    with pytest.raises(UsageError) as refused:
        commits_between("HEAD", "elsewhere", root)
    assert refused.value.code is ErrorCode.OPTION_CONFLICT


# Commits with their parents, oldest first; the last but one merges b into a.
BRANCHES = {
    "good": "", "a1": "good", "a2": "a1", "b1": "a1", "a3": "a2", "b2": "b1", "a4": "a3",
    "b3": "b2", "merge": "a4 b3", "bad": "merge",
}  # fmt: skip


@pytest.mark.parametrize("culprit", [name for name in BRANCHES if name != "good"])
def test_the_first_bad_commit_is_found_on_either_of_two_branches(culprit: str) -> None:
    commits = [
        Revision(Path(), name, name, parents=tuple(parents.split()))
        for name, parents in BRANCHES.items()
    ]

    def contains(name: str) -> bool:
        return name == culprit or any(map(contains, BRANCHES[name].split()))

    def try_one(revision: Revision) -> Tried[Revision]:
        return Tried(revision, Answer.BAD if contains(revision.commit) else Answer.GOOD, "")

    found = bisect(commits, try_one, ancestry(commits))

    assert [suspect.commit for suspect in found.suspects] == [culprit]
    assert len(found.tried) <= 6


def test_a_commit_knows_its_parents_and_follows_them(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "repository")
    run(root, "checkout", "-q", "-b", "side")
    commit(root, "hybridbench/side.py", "side")
    run(root, "checkout", "-q", "main")
    commit(root, "hybridbench/main.py", "main")
    run(root, "merge", "--no-ff", "-m", "merge", "side")

    commits = commits_between("HEAD~2", "HEAD", root)

    assert {revision.subject for revision in commits[1:3]} == {"side", "main"}
    assert ancestry(commits) == [0b0001, 0b0011, 0b0101, 0b1111]


def stored(store: Path, name: str, **changes: object) -> Path:
    facts: dict[str, object] = {
        "schema": COMPARISON_SCHEMA,
        "settings": "s",
        "ended": "decided",
        "versions": [{"tree": "t1"}, {"tree": "t2"}],
    }
    directory = store / name
    directory.mkdir(parents=True)
    (directory / "comparison.json").write_text(json.dumps({**facts, **changes}))
    return directory


def test_a_finished_comparison_of_the_same_engines_and_settings_is_used_again(
    tmp_path: Path,
) -> None:
    stored(tmp_path, "1-interrupted", ended="interrupted")
    stored(tmp_path, "2-other-settings", settings="other")
    stored(tmp_path, "3-other-way-round", versions=[{"tree": "t2"}, {"tree": "t1"}])
    stored(tmp_path, "4-of-a-later-version", schema="hybridbench.comparison-plan/99")
    wanted = stored(tmp_path, "0-this-one")

    assert finished_comparison(tmp_path, ("t1", "t2"), "s") == wanted
    assert finished_comparison(tmp_path, ("t1", "t3"), "s") is None
    assert finished_comparison(tmp_path / "none", ("t1", "t2"), "s") is None


def test_settings_are_known_by_everything_but_the_versions(tmp_path: Path) -> None:
    def plan(**changes: object) -> str:
        values: dict[str, object] = {
            "sides": (),
            "profile": load_profile("smoke"),
            "model": "qwen3-next",
            "store": tmp_path,
            "seed": 1,
        }
        return ComparePlan(**{**values, **changes}).settings_digest()  # type: ignore[arg-type]

    assert plan() == plan(store=tmp_path / "elsewhere", ui="none", command=("x",))
    assert len({plan(), plan(seed=2), plan(block_s=1.0), plan(renew_every=1)}) == 4
    assert plan() != plan(profile=load_profile("smoke").with_overrides({"seed": "9"}))


def leak(change: Change) -> LeakComparison:
    return LeakComparison("residual", "kv", None, "lost", VerdictKind.LEAK, change, True)


def compared(
    outcome: Outcome, *leaks: LeakComparison, of_run: VerdictKind = VerdictKind.CLEAN
) -> tuple[Comparison, ComparisonVerdict]:
    versions = tuple(
        Version(
            name,
            "git",
            Manifest(),
            RunRecord(Manifest(), {}, ()),
            Verdict(kind, "", (), (), None, ""),
        )
        for name, kind in (("git:a", VerdictKind.CLEAN), ("git:b", of_run))
    )
    side = SideComparison(1, "git:b", outcome, outcome.value, (), leaks)
    verdict = ComparisonVerdict(outcome, outcome.value, (side,), 2, ComparisonTerms(), True)
    return Comparison(versions, (), True), verdict


LOST = frozenset({("residual", "kv")})
UNDECIDED = Outcome.INCONCLUSIVE


@pytest.mark.parametrize(
    ("outcome", "leaks", "symptoms", "answer"),
    [
        # If a leak is searched for, it decides, whatever the call on speed.
        (Outcome.REGRESSION, [leak(Change.INTRODUCED)], LOST, Answer.BAD),
        (UNDECIDED, [], LOST, Answer.GOOD),
        (UNDECIDED, [leak(Change.UNDECIDED)], LOST, Answer.SKIPPED),
        # Otherwise the whole answer decides.
        (Outcome.REGRESSION, [], frozenset(), Answer.BAD),
        (UNDECIDED, [], frozenset(), Answer.SKIPPED),
        (Outcome.SAME, [], frozenset(), Answer.GOOD),
    ],
)
def test_a_commit_is_answered_by_what_the_bad_one_showed(
    outcome: Outcome,
    leaks: list[LeakComparison],
    symptoms: frozenset[tuple[str, str]],
    answer: Answer,
) -> None:
    comparison, verdict = compared(outcome, *leaks)

    assert answer_of(comparison, verdict, symptoms) is answer


def test_a_run_that_proves_nothing_does_not_show_that_a_leak_is_not_there() -> None:
    comparison, verdict = compared(UNDECIDED, of_run=VerdictKind.INVALID)

    assert answer_of(comparison, verdict, LOST) is Answer.SKIPPED


def test_what_the_bad_commit_leaks_is_what_is_searched_for() -> None:
    leaking = compared(Outcome.REGRESSION, leak(Change.INTRODUCED))
    slower = compared(Outcome.REGRESSION, leak(Change.UNCHANGED))

    assert symptoms_of(*leaking) == LOST
    assert symptoms_of(*slower) == frozenset()


def test_a_crash_is_searched_for_where_no_leak_is_seen() -> None:
    hung = compared(Outcome.REGRESSION, of_run=VerdictKind.CRASHED)
    crash = symptoms_of(*hung)

    assert answer_of(*hung, crash) is Answer.BAD
    assert answer_of(*compared(Outcome.REGRESSION), crash) is Answer.GOOD, "it is only slower"
    assert answer_of(*hung, LOST) is Answer.SKIPPED, "nobody knows what else it would have done"
