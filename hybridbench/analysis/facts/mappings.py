"""Mappings of one size that increase in number, which indicates a buffer that is never freed."""

from __future__ import annotations

from typing import Final

import msgspec

from hybridbench.analysis.record import RunRecord
from hybridbench.foundation.units import format_bytes, format_percent

_PREFIX: Final = "mappings."
_UNIT: Final = "KiB"
_FEWEST_SAMPLES: Final = 3
# Minimum share of the memory growth; less explains nothing.
_LEAST_SHARE: Final = 0.25
# A mapping may be reserved but unused, so mappings may grow by more than memory.
_MOST_SHARE: Final = 2.0


class MappingGrowth(msgspec.Struct, frozen=True, kw_only=True):
    """Private anonymous mappings of ``size_bytes``, from ``first`` to ``last`` in number.

    ``share`` is their share of the memory growth.
    """

    size_bytes: int
    first: int
    last: int
    share: float

    @property
    def text(self) -> str:
        """A sentence of evidence."""
        share = format_percent(min(self.share, 1.0))
        return (
            f"private anonymous mappings of {format_bytes(self.size_bytes)}: {self.first:,} became "
            f"{self.last:,}, {share} of the memory growth"
        )


def mapping_growth(
    record: RunRecord, window_s: tuple[float, float], grown_bytes: float
) -> MappingGrowth | None:
    """Return the mapping size that explains most of ``grown_bytes`` in ``window_s``, or None."""
    found = []
    for name, series in record.series.items():
        size = name.removeprefix(_PREFIX).removesuffix(_UNIT)
        seen = series.between(*window_s)
        if not (name.startswith(_PREFIX) and size.isdigit()) or len(seen) < _FEWEST_SAMPLES:
            continue
        first, last = int(seen.value[0]), int(seen.value[-1])
        share = (last - first) * int(size) * 1024 / grown_bytes if grown_bytes > 0 else 0.0
        # A number that sometimes falls below its first value fluctuates and does not leak.
        if _LEAST_SHARE <= share <= _MOST_SHARE and first <= seen.value.min():
            found.append(
                MappingGrowth(size_bytes=int(size) * 1024, first=first, last=last, share=share)
            )
    return max(found, key=lambda growth: growth.share, default=None)
