"""Anonymous mappings by size."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from hybridbench.sampling.memory_maps import mapping_counts
from hybridbench.sampling.process import ProcessGoneError

PAGE = mmap.PAGESIZE


def test_mappings_of_one_size_are_counted() -> None:
    size = 1041 * PAGE
    before = mapping_counts(os.getpid()).get(size, 0)
    # The kernel merges equal neighbours, so every second one is read-only, and none is inherited by
    # forks, unlike the mappings that were there before.
    held = [
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=prot)
        for _ in range(21)
        for prot in (mmap.PROT_READ | mmap.PROT_WRITE, mmap.PROT_READ)
    ]
    for one in held:
        one.madvise(mmap.MADV_DONTFORK)

    assert mapping_counts(os.getpid())[size] - before == len(held)
    for one in held:
        one.close()
    assert mapping_counts(os.getpid()).get(size, 0) == before


def test_files_guards_and_rare_sizes_are_no_pattern(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    lines = [
        *[f"{i * 16:x}0000-{i * 16 + 2:x}0000 rw-p 00000000 00:00 0 \n" for i in range(1, 10)],
        *[f"{i * 16:x}0000-{i * 16 + 3:x}0000 rw-p 0 00:00 0    [anon:x]\n" for i in range(20, 28)],
        *[f"{i * 16:x}0000-{i * 16 + 4:x}0000 ---p 0 00:00 0 \n" for i in range(30, 60)],
        *[f"{i * 16:x}0000-{i * 16 + 5:x}0000 rw-p 0 08:01 77 /lib/x\n" for i in range(60, 90)],
        *[f"{i * 16:x}0000-{i * 16 + 6:x}0000 rw-p 0 00:00 0 [heap]\n" for i in range(90, 99)],
        *[f"{i * 16:x}0000-{i * 16 + 7:x}0000 rw-p 0 00:00 0 \n" for i in range(100, 107)],
    ]
    (tmp_path / "7" / "maps").write_text("".join(lines))

    assert mapping_counts(7, tmp_path) == {0x20000: 9, 0x30000: 8}


def test_a_process_that_is_gone_has_none(tmp_path: Path) -> None:
    with pytest.raises(ProcessGoneError):
        mapping_counts(7, tmp_path)
