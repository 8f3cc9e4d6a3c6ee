"""Real memray: allocations that are kept are listed by function, freed ones are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridbench.sampling.allocations import AllocationTracker, is_installed, kept_sites

pytestmark = pytest.mark.skipif(not is_installed(), reason="needs hybridbench[memray]")


def keeps(kept: list[bytearray]) -> None:
    while len(kept) < 50:
        kept.append(bytearray(10_000))
    kept.append(bytearray(30_000))


def frees() -> int:
    return sum(len(bytearray(10_000)) for _ in range(500))


def test_what_is_kept_is_told_by_function_and_what_was_freed_is_not(tmp_path: Path) -> None:
    path, kept = tmp_path / "a.bin", list[bytearray]()
    tracker = AllocationTracker()
    tracker.start(path)
    keeps(kept)
    frees()
    tracker.stop()
    keeps(kept)

    sites = kept_sites(path, 10)

    here = "tests/unit/sampling/test_allocations.py"
    assert sites[0].stack[0] == f"keeps ({here}:16)"
    # 51 arrays, the list that grew, and almost nothing else.
    assert 530_000 < sites[0].size_bytes < 550_000
    assert 51 <= sites[0].count < 60
    assert sum(site.size_bytes for site in sites[1:]) < 50_000
    assert kept_sites(path, 1) == sites[:1]


def test_a_record_is_ended_once_and_a_second_may_follow(tmp_path: Path) -> None:
    tracker = AllocationTracker()
    tracker.stop()
    for name in ("a.bin", "b.bin"):
        tracker.start(tmp_path / name)
        tracker.stop()
        tracker.stop()
        assert (tmp_path / name).stat().st_size > 0


def test_a_place_that_cannot_be_written_and_a_torn_record_are_errors(tmp_path: Path) -> None:
    tracker = AllocationTracker()
    with pytest.raises(OSError, match="directory"):
        tracker.start(tmp_path / "missing" / "a.bin")
    tracker.stop()

    (tmp_path / "torn.bin").write_bytes(b"nothing that memray wrote")
    with pytest.raises(OSError, match="does not look like"):
        kept_sites(tmp_path / "torn.bin", 3)
