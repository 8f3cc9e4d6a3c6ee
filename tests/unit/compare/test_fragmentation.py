"""Holding scattered memory while something is built, and releasing all of it."""

from __future__ import annotations

import mmap
import os

import pytest

from hybridbench.compare import alike
from hybridbench.compare.alike import scattered_pages_held
from hybridbench.sampling.headroom import MemoryLimit
from hybridbench.sampling.process import read_process_memory

MIB = 2**20


def private_mib() -> float:
    return read_process_memory(os.getpid()).anon_swap_bytes / MIB


def test_pages_are_really_held_and_really_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alike, "_MOST_BYTES", 64 * MIB)
    before = private_mib()
    with scattered_pages_held():
        within = private_mib()
    after = private_mib()

    assert within - before == pytest.approx(64, abs=8)
    assert after - before == pytest.approx(0, abs=8)


@pytest.mark.parametrize(
    ("available", "limit", "held"),
    [
        (64 * 2**30, None, 2**30),
        (8 * 2**30, None, 2**29),
        (64 * 2**30, 4 * 2**30, 2**28),
        (100 * MIB, None, 0),
        (None, None, 0),
    ],
)
def test_no_more_than_a_sixteenth_of_what_there_is_is_held(
    monkeypatch: pytest.MonkeyPatch, available: int | None, limit: int | None, held: int
) -> None:
    sizes: list[int] = []

    class Map:
        def __init__(self, descriptor: int, size: int, flags: int) -> None:
            del descriptor, flags
            sizes.append(size)
            raise MemoryError

    monkeypatch.setattr(alike, "available_bytes", lambda: available)
    cgroup = None if limit is None else MemoryLimit(limit, "cgroup")
    monkeypatch.setattr(alike, "memory_limit", lambda: cgroup)
    monkeypatch.setattr(mmap, "mmap", Map)
    ran = False

    with scattered_pages_held():
        ran = True

    assert ran, "without memory to hold, workers are built all the same"
    assert sizes == ([held] if held else [])
