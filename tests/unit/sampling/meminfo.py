"""A ``/proc/meminfo`` with chosen values."""

from __future__ import annotations

from pathlib import Path

# psutil warns about missing lines.
_OTHERS = ("Buffers", "Cached", "SReclaimable", "Shmem", "Active", "Inactive", "Slab")


def write_meminfo(proc: Path, total_kib: int, available_kib: int) -> None:
    """Write ``proc/meminfo``; all other values are 0."""
    lines = {"MemTotal": total_kib, "MemFree": 0, "MemAvailable": available_kib}
    lines |= dict.fromkeys(_OTHERS, 0)
    (proc / "meminfo").write_text("".join(f"{name}: {kib} kB\n" for name, kib in lines.items()))
