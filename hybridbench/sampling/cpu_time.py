"""Processor time that was asked for and not given, from /proc: a starved worker looks slow."""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")
_STEAL_FIELD = 8


def read_cpu_wait_s(pid: int, proc: Path = _PROC) -> float | None:
    """Seconds that the main thread of ``pid`` has waited in a run queue; None if untold."""
    words = _text(proc / str(pid) / "schedstat").split()
    if len(words) < 2 or not words[1].isdigit():
        return None
    return int(words[1]) / 1e9


def read_cpu_s(pid: int, proc: Path = _PROC) -> float | None:
    """Seconds that all threads of ``pid`` have run, children not counted; None if untold."""
    try:
        threads = list((proc / str(pid) / "task").iterdir())
    except OSError:
        return None
    words = [_text(thread / "schedstat").split() for thread in threads]
    ran_ns = [int(parts[0]) for parts in words if parts and parts[0].isdigit()]
    return sum(ran_ns) / 1e9 if ran_ns else None


def read_steal_s(proc: Path = _PROC) -> float | None:
    """Seconds that the hypervisor has kept from each processor, on average; None if untold."""
    lines = _text(proc / "stat").splitlines()
    words = lines[0].split() if lines else []
    processors = sum(line.startswith("cpu") for line in lines) - 1
    if len(words) <= _STEAL_FIELD or processors < 1:
        return None
    return int(words[_STEAL_FIELD]) / os.sysconf("SC_CLK_TCK") / processors


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
