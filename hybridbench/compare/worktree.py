"""Check out a revision of the engine: a temporary git worktree outside the checkout."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import hybridbench
from hybridbench.foundation.errors import ErrorCode, UsageError
from hybridbench.runs.machine import git
from hybridbench.targets.bundled import FORMER_WORKER_MODULE, WORKER_MODULE

_PACKAGE = "hybridbench"
# Files that identify a revision's worker module, latest first.
_WORKERS = {
    f"{_PACKAGE}/worker/__main__.py": WORKER_MODULE,
    f"{_PACKAGE}/runs/worker.py": FORMER_WORKER_MODULE,
}


@dataclass(frozen=True)
class Revision:
    """A commit of the repository at ``root``.

    ``tree`` is the git tree hash of the package: commits that change only other files share it.
    """

    root: Path
    commit: str
    subject: str
    tree: str = ""
    worker_module: str = WORKER_MODULE
    parents: tuple[str, ...] = ()


def find_revision(ref: str, root: Path | None = None) -> Revision:
    """Return the commit that ``ref`` names.

    It is looked up in the repository at ``root`` if given, else in that of the working directory if
    it holds this engine, else in the checkout that this process was imported from.

    Raises:
        UsageError: no repository, no such revision, or a revision older than the worker.
    """
    roots = [root] if root is not None else _candidates()
    if not roots:
        raise UsageError(
            f"git:{ref}: there is no git repository of hybridbench here; run this in a checkout.",
            code=ErrorCode.NOT_FOUND,
        )
    for place in roots:
        commit = git(place, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
        if commit is None:
            continue
        modules = [
            module
            for file, module in _WORKERS.items()
            if git(place, "cat-file", "-e", f"{commit}:{file}") is not None
        ]
        if not modules:
            raise UsageError(
                f"git:{ref}: {commit[:10]} is older than the engine worker; compare with a later "
                "revision.",
            )
        subject = git(place, "log", "-1", "--format=%s", commit) or ""
        parents = (git(place, "log", "-1", "--format=%P", commit) or "").split()
        tree = git(place, "rev-parse", f"{commit}:{_PACKAGE}") or ""
        return Revision(place, commit, subject, tree, modules[0], tuple(parents))
    raise UsageError(
        f"git:{ref}: no such revision; `git rev-parse {ref}` must name a commit of this "
        "repository.",
        code=ErrorCode.NOT_FOUND,
    )


@contextmanager
def worktree(revision: Revision) -> Iterator[Path]:
    """Check out ``revision`` for the duration of the block.

    Raises:
        UsageError: git cannot check it out.
    """
    # Forget worktrees of killed processes, whose temporary files are gone.
    git(revision.root, "worktree", "prune")
    with tempfile.TemporaryDirectory(prefix="hybridbench-tree-") as place:
        tree = Path(place) / revision.commit[:12]
        # Detached, so that a branch that is checked out elsewhere can be used, any number of times.
        made = git(revision.root, "worktree", "add", "--detach", str(tree), revision.commit)
        if made is None:
            raise UsageError(
                f"git cannot check out {revision.commit[:10]} into {tree}: check `git worktree "
                "list` and the free space of the temporary directory."
            )
        try:
            yield tree
        finally:
            git(revision.root, "worktree", "remove", "--force", str(tree))


def _candidates() -> list[Path]:
    """Return the repositories that may hold the engine, nearest first."""
    found: list[Path] = []
    for place in (Path.cwd(), Path(hybridbench.__file__).parents[1]):
        top = git(place, "rev-parse", "--show-toplevel")
        if top is not None and (Path(top) / _PACKAGE).is_dir() and Path(top) not in found:
            found.append(Path(top))
    return found
