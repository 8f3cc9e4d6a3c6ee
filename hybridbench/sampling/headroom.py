"""How much memory and disk is left before the machine, not the engine, ends the run."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hybridbench.sampling.cgroup import available_bytes, memory_limit

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_PROC = Path("/proc")


@dataclass(frozen=True)
class Headroom:
    """Bytes left of a limit, and whose limit it is."""

    left_bytes: int
    limit_bytes: int
    source: str


def memory_headroom(proc: Path = _PROC, root: Path = _CGROUP_ROOT) -> Headroom | None:
    """What a process here can still get: the lesser of its control group's rest and the machine's.

    Pages of files that the kernel can drop count as free.  None where neither tells.
    """
    found = [room for room in (_of_machine(proc), _of_group(proc, root)) if room is not None]
    return min(found, key=lambda room: room.left_bytes, default=None)


def disk_headroom(path: Path) -> Headroom | None:
    """What an ordinary user can still write to the file system of ``path``."""
    try:
        stats = os.statvfs(path)
    except OSError:
        return None
    return Headroom(stats.f_bavail * stats.f_frsize, stats.f_blocks * stats.f_frsize, str(path))


@dataclass
class Floor:
    """An alarm that goes off when what is left falls under a floor.

    The floor is ``share`` of the limit between ``least_bytes`` and ``most_bytes``, but never more
    than half of what was left at first: a small machine must be able to run at all.
    """

    read: Callable[[], Headroom | None]
    share: float
    least_bytes: int
    most_bytes: int
    _floor_bytes: float | None = field(default=None, init=False)

    def breached(self) -> Headroom | None:
        """What is left, if that is too little."""
        room = self.read()
        if room is None:
            return None
        if self._floor_bytes is None:
            wanted = min(max(self.share * room.limit_bytes, self.least_bytes), self.most_bytes)
            self._floor_bytes = min(wanted, room.left_bytes / 2)
        return room if room.left_bytes < self._floor_bytes else None


def _of_machine(proc: Path) -> Headroom | None:
    left = available_bytes(proc)
    total = available_bytes(proc, "MemTotal")
    if left is None or total is None:
        return None
    return Headroom(left, total, "machine")


def _of_group(proc: Path, root: Path) -> Headroom | None:
    limit = memory_limit(proc, root)
    if limit is None or limit.folder is None:
        return None
    used = used_bytes(limit.folder)
    return None if used is None else Headroom(limit.size_bytes - used, limit.size_bytes, "cgroup")


def used_bytes(folder: Path) -> int | None:
    """Memory of the control group at ``folder`` that the kernel cannot simply drop."""
    used = None
    for name in ("memory.current", "memory.usage_in_bytes"):
        if (text := _text(folder / name)).strip().isdigit():
            used = int(text)
            break
    if used is None:
        return None
    for line in _text(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file") and value.isdigit():
            return max(0, used - int(value))
    return used


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
