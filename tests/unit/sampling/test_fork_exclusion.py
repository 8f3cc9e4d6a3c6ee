from __future__ import annotations

import mmap

from hybridbench.sampling.fork_exclusion import (
    MemoryRange,
    exclude_from_forks,
    include_in_forks,
)

PAGE = mmap.PAGESIZE


def test_only_whole_pages_are_taken() -> None:
    assert MemoryRange(PAGE + 1, 3 * PAGE).whole_pages() == MemoryRange(2 * PAGE, 2 * PAGE)
    assert MemoryRange(PAGE, PAGE).whole_pages() == MemoryRange(PAGE, PAGE)
    assert MemoryRange(PAGE + 1, PAGE).whole_pages() is None


def test_two_ranges_overlap_or_not() -> None:
    part = MemoryRange(100, 50)
    assert part.overlaps(0, 101)
    assert part.overlaps(149, 1)
    assert part.overlaps(120, 5)
    assert not part.overlaps(0, 100)
    assert not part.overlaps(150, 10)


def test_memory_that_is_not_mapped_is_refused_and_not_reported_as_excluded() -> None:
    ranges = [MemoryRange(PAGE, 4 * PAGE)]
    assert exclude_from_forks(ranges) == ()
    include_in_forks(ranges)
