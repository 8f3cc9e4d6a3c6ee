"""Measure how much memory and disk is left before the machine, not the engine, ends the run.

Memory is limited by the machine and by the control group of this process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
# Version 1 writes "no limit" as the largest page-aligned number.
UNLIMITED_BYTES = 2**60


@dataclass(frozen=True)
class MemoryLimit:
    """The most memory that a process here can get, and what sets the limit."""

    size_bytes: int
    source: str  # "cgroup" or "MemAvailable"
    folder: Path | None = field(default=None, compare=False)  # of the group that sets it


def memory_limit(proc: Path = _PROC, root: Path = _CGROUP_ROOT) -> MemoryLimit | None:
    """Return the cgroup's limit if it has one, else the memory currently available."""
    for name in ("memory.max", "memory.limit_in_bytes"):
        for folder in memory_folders(proc, root):
            size_bytes = number_in(folder / name)
            if size_bytes is not None and size_bytes < UNLIMITED_BYTES:
                return MemoryLimit(size_bytes, "cgroup", folder)
    available = available_bytes()
    return None if available is None else MemoryLimit(available, "MemAvailable")


def oom_kills(proc: Path = _PROC, root: Path = _CGROUP_ROOT) -> int | None:
    """Return how many processes of this cgroup were OOM-killed so far; None if unknown."""
    for folder in memory_folders(proc, root):
        for name in ("memory.events", "memory.oom_control"):
            count = stat_field(folder / name, "oom_kill")
            if count is not None:
                return count
    return None


@dataclass(frozen=True)
class Headroom:
    """Bytes left of a limit, and the source of the limit."""

    left_bytes: int
    limit_bytes: int
    source: str


def memory_headroom(proc: Path = _PROC, root: Path = _CGROUP_ROOT) -> Headroom | None:
    """Return how much memory a process here can still get, from its cgroup or from the machine.

    This is the smaller of the two; None if neither is known.  Page cache that the kernel can drop
    counts as free.
    """
    found = [room for room in (_of_machine(), _of_group(proc, root)) if room is not None]
    return min(found, key=lambda room: room.left_bytes, default=None)


def disk_headroom(path: Path) -> Headroom | None:
    """Return how much an ordinary user can still write to the file system of ``path``."""
    try:
        usage = psutil.disk_usage(str(path))
    except OSError:
        return None
    return Headroom(usage.free, usage.total, str(path))


@dataclass
class Floor:
    """An alarm for when the remaining amount falls below a floor.

    The floor is ``share`` of the limit, between ``least_bytes`` and ``most_bytes``, but at most
    half of what was left at first, so that small machines can run at all.
    """

    read: Callable[[], Headroom | None]
    share: float
    least_bytes: int
    most_bytes: int
    _floor_bytes: float | None = field(default=None, init=False)

    def breached(self) -> Headroom | None:
        """Return the headroom if it is below the floor, otherwise None."""
        room = self.read()
        if room is None:
            return None
        if self._floor_bytes is None:
            wanted = min(max(self.share * room.limit_bytes, self.least_bytes), self.most_bytes)
            self._floor_bytes = min(wanted, room.left_bytes / 2)
        return room if room.left_bytes < self._floor_bytes else None


def available_bytes() -> int | None:
    """Return the memory available without swapping; None if unknown."""
    room = _of_machine()
    return None if room is None else room.left_bytes


def used_bytes(folder: Path) -> int | None:
    """Return the memory of the cgroup at ``folder``, without file cache that can be dropped."""
    used = number_in(folder / "memory.current")
    if used is None:
        used = number_in(folder / "memory.usage_in_bytes")
    if used is None:
        return None
    for name in ("inactive_file", "total_inactive_file"):
        cached = stat_field(folder / "memory.stat", name)
        if cached is not None:
            return max(0, used - cached)
    return used


def memory_folders(proc: Path, root: Path, process: str = "self") -> list[Path]:
    """Return possible folders of a process's memory cgroup: version 2 first, nearest first."""
    folders = []
    for line in _lines(proc / process / "cgroup"):
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        relative = path.lstrip("/")
        if not controllers:
            folders += [root / relative, root / "unified" / relative, root]
        elif "memory" in controllers.split(","):
            folders += [root / "memory" / relative, root / "memory"]
    return folders


def _of_machine() -> Headroom | None:
    try:
        memory = psutil.virtual_memory()
    except (OSError, KeyError):  # no such file, or no such line in it
        return None
    return Headroom(memory.available, memory.total, "machine")


def _of_group(proc: Path, root: Path) -> Headroom | None:
    limit = memory_limit(proc, root)
    if limit is None or limit.folder is None:
        return None
    used = used_bytes(limit.folder)
    return None if used is None else Headroom(limit.size_bytes - used, limit.size_bytes, "cgroup")


def stat_field(path: Path, name: str) -> int | None:
    """Return the number after ``name`` in a file of names and numbers."""
    for line in _lines(path):
        words = line.split()
        if words[:1] == [name] and len(words) > 1 and words[1].isdigit():
            return int(words[1])
    return None


def number_in(path: Path) -> int | None:
    """Return the number in a file; None if it contains anything else, such as "max"."""
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
