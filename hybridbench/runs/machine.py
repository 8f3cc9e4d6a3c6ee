"""Where a run took place: machine, interpreter and source state, for the manifest."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import hybridbench
from hybridbench.records.manifest import Git, Interpreter, Machine
from hybridbench.sampling.headroom import memory_limit

_GIT_PATIENCE_S = 5.0
_CHANGES = ("status", "--porcelain", "--untracked-files=no")


def machine_facts() -> Machine:
    """Return CPU, memory, kernel and load; nothing that identifies the machine."""
    limit = memory_limit()
    return Machine(
        system=platform.system(),
        kernel=platform.release(),
        architecture=platform.machine(),
        cpu=_field(Path("/proc/cpuinfo"), "model name") or platform.processor(),
        cpus=os.cpu_count(),
        cpus_usable=len(os.sched_getaffinity(0)),
        memory_total_kib=_field(Path("/proc/meminfo"), "MemTotal"),
        swap_total_kib=_field(Path("/proc/meminfo"), "SwapTotal"),
        load_average_1m=os.getloadavg()[0],
        memory_limit_bytes=None if limit is None else limit.size_bytes,
        memory_limit_source=None if limit is None else limit.source,
    )


def interpreter_facts() -> Interpreter:
    """Describe the Python that runs parent and worker."""
    return Interpreter(
        implementation=sys.implementation.name,
        version=platform.python_version(),
        build=" ".join(platform.python_build()),
        compiler=platform.python_compiler(),
    )


def git_state() -> Git | None:
    """Return commit, branch and whether files differ from it; None outside a checkout."""
    root = Path(hybridbench.__file__).parents[1]
    if not (root / ".git").exists():
        return None
    commit = git(root, "rev-parse", "HEAD", patience_s=_GIT_PATIENCE_S)
    if commit is None:
        return None
    return Git(
        commit=commit,
        branch=git(root, "rev-parse", "--abbrev-ref", "HEAD", patience_s=_GIT_PATIENCE_S),
        dirty=bool(git(root, *_CHANGES, patience_s=_GIT_PATIENCE_S)),
    )


def git(root: Path, *arguments: str, patience_s: float = 120.0) -> str | None:
    """Return git's output in the repository at ``root``; None if it fails or is not installed."""
    command = shutil.which("git")
    if command is None:
        return None
    try:
        done = subprocess.run(
            # Without optional locks: an interrupted `git status` could leave the index locked.
            [command, "--no-optional-locks", "-C", str(root), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=patience_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _field(path: Path, name: str) -> str | None:
    """Return the value of the first ``name : value`` line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.split("kB")[0].strip()
    return None
