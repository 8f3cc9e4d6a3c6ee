"""Count a process's anonymous mappings by size: a leaked buffer appears many times."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Final

from hybridbench.sampling.process import ProcessGoneError

# address - address, permissions, offset, device, inode 0, then nothing but an optional name.
_ANONYMOUS: Final = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) [r-][w-][x-]p \S+ 00:00 0 *(?:\[anon:.*)?$", re.MULTILINE
)
_GUARD: Final = " ---p "
# Fewer mappings of one size are not a pattern; more sizes than this add no evidence.
_FEWEST: Final = 8
_SIZES_MAX: Final = 8


def mapping_counts(pid: int, proc: Path = Path("/proc")) -> dict[int, int]:
    """Return how many private anonymous mappings of each size in bytes ``pid`` has.

    Only sizes with eight or more mappings are included, and of these the eight with most memory;
    empty without permission to read them.  Only the list of mappings is read, not their pages: a
    millisecond per thousand mappings.

    Raises:
        ProcessGoneError: there is no such process.
    """
    try:
        text = (proc / str(pid) / "maps").read_text("utf-8", "replace")
    except PermissionError:
        return {}
    except OSError as error:
        raise ProcessGoneError from error
    counts = Counter(
        int(found[2], 16) - int(found[1], 16)
        for found in _ANONYMOUS.finditer(text)
        if _GUARD not in found[0]
    )
    repeated = [(size * count, size) for size, count in counts.items() if count >= _FEWEST]
    return {size: counts[size] for _, size in sorted(repeated, reverse=True)[:_SIZES_MAX]}
