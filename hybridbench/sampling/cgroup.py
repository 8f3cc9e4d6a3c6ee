"""Read a target's cgroup memory without page cache: what a container's limit applies to.

This includes child processes and kernel memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from hybridbench.sampling.headroom import UNLIMITED_BYTES, memory_folders, number_in, stat_field

# Names of each metric's parts in cgroup versions 2 and 1; a part with a dot is a separate file.
_PARTS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "cgroup_anon_swap_bytes": (("anon", "memory.swap.current"), ("total_rss", "total_swap")),
    "cgroup_shmem_bytes": (("shmem",), ("total_shmem",)),
    "cgroup_kernel_bytes": (("kernel",), ("memory.kmem.usage_in_bytes",)),
    "cgroup_sock_bytes": (("sock",), ("memory.kmem.tcp.usage_in_bytes",)),
}
_LIMITS: Final = ("memory.max", "memory.limit_in_bytes")
_STAT: Final = "memory.stat"

_UNSEEN = "memory of the control group, such as page tables and socket buffers"


class CgroupSource:
    """The memory cgroup of process ``pid``, unless the bench is in it and would count itself."""

    def __init__(
        self, pid: int, proc: Path = Path("/proc"), root: Path = Path("/sys/fs/cgroup")
    ) -> None:
        folder = _group(proc, root, str(pid))
        ours = _group(proc, root, "self")
        shared = folder is not None and ours is not None and ours.is_relative_to(folder)
        self._folder = None if shared else folder
        self.not_seen = ""
        if shared:
            self.not_seen = f"{_UNSEEN}: hybridbench runs in the same one"
        elif folder is None:
            self.not_seen = f"{_UNSEEN}: there is none here that accounts for it"

    def read(self) -> Mapping[str, float]:
        """Return the kernel's numbers; empty without a cgroup, or once it is gone."""
        if self._folder is None:
            return {}
        found: dict[str, float] = {}
        for metric, versions in _PARTS.items():
            for parts in versions:
                values = [_part(self._folder, part) for part in parts]
                # A kernel without swap accounting has only the first part.
                if values[0] is not None:
                    found[metric] = sum(value or 0 for value in values)
                    break
        limits = [number_in(self._folder / name) for name in _LIMITS]
        bounded = [size for size in limits if size is not None and size < UNLIMITED_BYTES]
        if bounded:
            found["cgroup_limit_bytes"] = min(bounded)
        return found


def _group(proc: Path, root: Path, process: str) -> Path | None:
    """Return the process's nearest cgroup folder with memory accounting, if any."""
    folders = (folder.resolve() for folder in memory_folders(proc, root, process))
    return next(
        (
            folder
            for folder in folders
            if _part(folder, "anon") is not None or _part(folder, "total_rss") is not None
        ),
        None,
    )


def _part(folder: Path, part: str) -> int | None:
    return number_in(folder / part) if "." in part else stat_field(folder / _STAT, part)
