"""Revisions become files outside the checkout, and nothing of them stays."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hybridbench.compare.worktree import find_revision, git, worktree
from hybridbench.errors import UsageError

WORKER = "hybridbench/runs/worker.py"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits: the first without a worker, the second with one."""
    root = tmp_path / "repository"
    root.mkdir()
    run(root, "init", "-q", "-b", "main")
    commit(root, "README.md", "nothing yet")
    commit(root, WORKER, "first worker")
    return root


def run(root: Path, *arguments: str) -> None:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(root), *who, *arguments], check=True, capture_output=True)


def commit(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    run(root, "add", "-A")
    run(root, "commit", "-q", "-m", text)


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
    with pytest.raises(UsageError, match="is from before there was an engine worker"):
        find_revision("HEAD~1", repository)
