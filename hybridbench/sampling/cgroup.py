"""Memory limit of the control group this process runs in, and how many the kernel killed for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
# Version 1 writes "no limit" as the largest page-aligned number.
_UNLIMITED_BYTES = 2**60


@dataclass(frozen=True)
class MemoryLimit:
    """The most memory that a process here can get, and what sets the limit."""

    size_bytes: int
    source: str  # "cgroup" or "MemAvailable"
    folder: Path | None = field(default=None, compare=False)  # of the group that sets it


def memory_limit(proc: Path = _PROC, root: Path = _CGROUP_ROOT) -> MemoryLimit | None:
    """The cgroup's limit if it has one, else what the machine has available now."""
    for name in ("memory.max", "memory.limit_in_bytes"):
        for folder in _folders(proc, root):
            size_bytes = _number(folder / name)
            if size_bytes is not None and size_bytes < _UNLIMITED_BYTES:
                return MemoryLimit(size_bytes, "cgroup", folder)
    available = available_bytes(proc)
    return None if available is None else MemoryLimit(available, "MemAvailable")


def oom_kills(proc: Path = _PROC, root: Path = _CGROUP_ROOT) -> int | None:
    """Processes of this cgroup that the kernel killed for lack of memory so far; None if untold."""
    for folder in _folders(proc, root):
        for name in ("memory.events", "memory.oom_control"):
            count = _field(folder / name, "oom_kill")
            if count is not None:
                return count
    return None


def _folders(proc: Path, root: Path) -> list[Path]:
    """Where the files of this process's memory cgroup may be, version 2 first, nearest first."""
    try:
        lines = (proc / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        relative = path.lstrip("/")
        if not controllers:
            folders += [root / relative, root / "unified" / relative, root]
        elif "memory" in controllers.split(","):
            folders += [root / "memory" / relative, root / "memory"]
    return folders


def available_bytes(proc: Path = _PROC, field: str = "MemAvailable") -> int | None:
    """One line of the machine's account of its memory, in bytes."""
    kib = _field(proc / "meminfo", f"{field}:")
    return None if kib is None else kib * 1024


def _field(path: Path, name: str) -> int | None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        words = line.split()
        if words[:1] == [name] and len(words) > 1 and words[1].isdigit():
            return int(words[1])
    return None


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
