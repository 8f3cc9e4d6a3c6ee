"""Throw-away git repositories that look like a checkout of an engine."""

from __future__ import annotations

import subprocess
from pathlib import Path

WORKER = "hybridbench/worker/__main__.py"
FORMER_WORKER = "hybridbench/runs/worker.py"


def run(root: Path, *arguments: str) -> None:
    """Run ``git`` in ``root``, independent of this machine's git settings."""
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(root), *who, *arguments], check=True, capture_output=True)


def commit(root: Path, path: str, text: str) -> None:
    """Commit ``text`` as the content of ``path``, with ``text`` as the subject."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    run(root, "add", "-A")
    run(root, "commit", "-q", "-m", text)


def make_repository(root: Path) -> Path:
    """Make a repository of two commits, the first without a worker, the second with one."""
    root.mkdir()
    run(root, "init", "-q", "-b", "main")
    commit(root, "README.md", "nothing yet")
    commit(root, WORKER, "first worker")
    return root
