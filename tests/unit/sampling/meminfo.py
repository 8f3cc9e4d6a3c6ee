"""The machine's account of its memory, as a test wants it."""

from __future__ import annotations

from pathlib import Path

# psutil warns of a line that is missing.
_OTHERS = ("Buffers", "Cached", "SReclaimable", "Shmem", "Active", "Inactive", "Slab")


def write_meminfo(proc: Path, total_kib: int, available_kib: int) -> None:
    """Write ``proc/meminfo``; what the test does not ask for is 0."""
    lines = {"MemTotal": total_kib, "MemFree": 0, "MemAvailable": available_kib}
    lines |= dict.fromkeys(_OTHERS, 0)
    (proc / "meminfo").write_text("".join(f"{name}: {kib} kB\n" for name, kib in lines.items()))
