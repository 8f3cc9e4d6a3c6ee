"""Revisions are checked out elsewhere and removed without a trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridbench.compare.worktree import find_revision, worktree
from hybridbench.foundation.errors import UsageError
from hybridbench.runs.machine import git
from tests.unit.compare.repositories import FORMER_WORKER, WORKER, commit, make_repository, run


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repository")


def test_a_revision_is_found_with_its_subject_and_checked_out_elsewhere(repository: Path) -> None:
    (repository / WORKER).write_text("changed since")
    revision = find_revision("HEAD", repository)

    with worktree(revision) as tree:
        text = (tree / WORKER).read_text()
        registered = git(repository, "worktree", "list", "--porcelain")

    assert revision.subject == "first worker"
    assert text == "first worker"
    assert repository not in tree.parents
    assert registered is not None
    assert str(tree) in registered
    assert not tree.exists()
    assert str(tree) not in (git(repository, "worktree", "list", "--porcelain") or "")


def test_a_tree_is_gone_also_after_an_error(repository: Path) -> None:
    seen: list[Path] = []

    def fall_over_it() -> None:
        with worktree(find_revision("HEAD", repository)) as tree:
            seen.append(tree)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fall_over_it()

    assert not seen[0].exists()


def test_an_unknown_revision_is_refused_in_a_sentence(repository: Path) -> None:
    with pytest.raises(UsageError, match=r"^git:no-such: no such revision; .*"):
        find_revision("no-such", repository)


def test_a_revision_from_before_the_worker_is_refused_by_its_commit(repository: Path) -> None:
    with pytest.raises(UsageError, match="is older than the engine worker"):
        find_revision("HEAD~1", repository)


def test_a_revision_that_keeps_its_worker_where_it_was_is_started_there(repository: Path) -> None:
    run(repository, "rm", "-q", WORKER)
    commit(repository, FORMER_WORKER, "as it was")

    assert find_revision("HEAD", repository).worker_module == "hybridbench.runs.worker"
    assert find_revision("HEAD~1", repository).worker_module == "hybridbench.worker"


def test_commits_that_leave_the_package_alone_share_its_tree(repository: Path) -> None:
    before = find_revision("HEAD", repository)
    commit(repository, "README.md", "now there is something")
    beside = find_revision("HEAD", repository)
    commit(repository, WORKER, "second worker")

    changed = find_revision("HEAD", repository)

    assert before.tree == beside.tree != changed.tree
    assert before.commit != beside.commit
