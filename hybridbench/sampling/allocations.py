"""Find the calls that allocated memory that was never freed, by running a worker under memray.

A heap survey shows what holds the remaining objects; only a recording of allocations shows which
calls made them.  memray is an optional extra (``hybridbench[memray]``).  It slows the process
severalfold, so nothing may be measured at the same time.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridbench.records.heap import CallSite

if TYPE_CHECKING:
    import memray

_FRAMES: Final = 5
_ROOT: Final = str(Path(__file__).parents[2])


def is_installed() -> bool:
    """Whether memray can be imported here."""
    return importlib.util.find_spec("memray") is not None


class AllocationTracker:
    """Records this process's allocations between ``start`` and ``stop``, on all threads.

    Forked children are not recorded.
    """

    def __init__(self) -> None:
        self._tracker: memray.Tracker | None = None

    def start(self, path: Path) -> None:
        """Record into ``path`` from now on.

        Raises:
            ImportError: memray is not installed.
            OSError: the file cannot be written.
            RuntimeError: memray is already recording in this process.
        """
        import memray

        self._tracker = memray.Tracker(
            destination=memray.FileDestination(path, overwrite=True),
            # Small objects come from Python's own arenas, which rarely call malloc.
            trace_python_allocators=True,
            # One record per call stack, not per allocation: kilobytes, not gigabytes.
            file_format=memray.FileFormat.AGGREGATED_ALLOCATIONS,
        )
        self._tracker.__enter__()

    def stop(self) -> None:
        """Complete the file; do nothing if not started."""
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            tracker.__exit__(None, None, None)


def kept_sites(path: Path, limit: int) -> list[CallSite]:
    """Return the ``limit`` functions with the most memory left in the recording at ``path``.

    Raises:
        OSError: ``path`` is not a complete recording.
    """
    import memray

    by_function: dict[tuple[str, str], list[memray.AllocationRecord]] = {}
    stacks: dict[int, list[tuple[str, str, int]]] = {}
    with memray.FileReader(path) as reader:
        for record in reader.get_leaked_allocation_records(merge_threads=True):
            stack = record.stack_trace(_FRAMES)
            if stack:
                stacks[id(record)] = stack
                by_function.setdefault(stack[0][:2], []).append(record)
    found = []
    for records in by_function.values():
        most = max(records, key=lambda record: record.size)
        found.append(
            CallSite(
                sum(record.size for record in records),
                sum(record.n_allocations for record in records),
                tuple(_frame(*frame) for frame in stacks[id(most)]),
            )
        )
    return sorted(found, key=lambda site: -site.size_bytes)[:limit]


def _frame(function: str, file: str, line: int) -> str:
    short = file.removeprefix(_ROOT).lstrip("/") if file.startswith(_ROOT) else file
    return f"{function} ({short.rpartition('site-packages/')[2]}:{line})"
