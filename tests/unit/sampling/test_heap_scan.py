"""The forked heap scan counts exactly, measures true sizes, and changes nothing."""

from __future__ import annotations

import gc
import os
import select
import signal
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from hybridbench.records.heap import InstanceCount
from hybridbench.sampling.forked_child import (
    MemoryRange,
    exclude_from_forks,
    include_in_forks,
)
from hybridbench.sampling.heap_scan import ForkScan, HeapScan
from hybridbench.sampling.process import count_open_fds
from tests.unit.sampling.garbage import Node, drop_pair, undisturbed
from tests.unit.sampling.test_heap_survey import surveyed

PATIENCE_S = 120.0


@pytest.fixture(autouse=True)
def small_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Freeze all older objects, so that a child sees only those of its test."""
    gc.collect()
    gc.freeze()
    monkeypatch.setattr(gc, "unfreeze", lambda: None)


def no_nodes() -> Mapping[str, tuple[type, int]]:
    return {"Node": (Node, 0)}


def waited(taker: ForkScan) -> HeapScan | None:
    """Return the scan once its child has ended, which its time-out ensures."""
    while (report := taker.poll()) is None:
        select.select([], [], [], 0.005)
    return report


def heap_scan(**settings: object) -> HeapScan:
    taker = ForkScan(no_nodes, timeout_s=PATIENCE_S, **settings)  # type: ignore[arg-type]
    assert taker.start() > 0.0
    report = waited(taker)
    assert report is not None
    taker.close()
    return report


def bytes_of(report: HeapScan, name: str) -> int:
    return sum(row.size_bytes for row in report.types if row.type_name.endswith(name))


def test_counts_are_exact_and_the_evidence_stays_for_the_parents_own_collection() -> None:
    with undisturbed():
        for _ in range(150):
            drop_pair()
        first, second = heap_scan(), heap_scan()
        gc.enable()
        found = gc.collect()

    assert first.error == second.error == ""
    assert first.instances["Node"] == InstanceCount(live=300, expected=0, collectible=300)
    assert second.instances == first.instances
    assert second.collectible_objects >= first.collectible_objects >= 300
    assert found >= 300, "the parent's collector finds what the children only counted"


def test_what_something_still_reaches_is_retained_and_not_collectible() -> None:
    with undisturbed():
        held = [Node() for _ in range(5)]
        drop_pair()
        taker = ForkScan(lambda: {"Node": (Node, 2)}, timeout_s=PATIENCE_S)
        taker.start()
        report = waited(taker)
        del held

    assert report is not None
    counts = report.instances["Node"]
    assert (counts.live, counts.stray, counts.collectible, counts.retained) == (7, 5, 2, 3)


def test_frozen_objects_are_seen() -> None:
    surveyed("a_scan_sees_frozen_objects")


def test_finalizers_of_garbage_do_not_act_on_the_world(tmp_path: Path) -> None:
    called = tmp_path / "called"

    class Acting:
        def __init__(self) -> None:
            self.me = self
            self.folder = tempfile.TemporaryDirectory(dir=tmp_path)

        def __del__(self) -> None:
            called.touch()

    with undisturbed():
        folder = Path(Acting().folder.name)
        report = heap_scan()
        survived, acted = folder.is_dir(), called.exists()
        with pytest.warns(ResourceWarning, match="Implicitly cleaning up"):
            gc.collect()

    assert report.error == ""
    assert report.collectible_objects >= 1
    assert survived, "a weak-reference finalizer would have removed the directory"
    assert not acted, "__del__ would have made the file"
    assert called.exists(), "in the parent everything is armed as before"
    assert not folder.exists()


def test_callbacks_of_finalizers_that_hold_the_last_reference_do_not_run_either() -> None:
    seen: deque[str] = deque()
    with undisturbed():
        node = Node()
        node.other = node
        weakref.finalize(node, seen.append, "gone")
        del node
        assert heap_scan().instances["Node"].collectible == 1
        assert not seen
        gc.collect()
    assert list(seen) == ["gone"]


@pytest.mark.parametrize(
    ("make", "kind", "payload_bytes"),
    [
        (lambda: list(range(10**6, 10**6 + 2000)), "list", 2000 * (28 + 8)),
        (lambda: tuple(range(10**6, 10**6 + 2000)), "", 2000 * (28 + 8)),
        (lambda: np.zeros(4000, dtype=np.int64), "", 32_000),
        (lambda: np.zeros(4000, dtype=np.int64)[:8], "", 32_000),
        (lambda: b"x" * 20_000, "", 20_000),
        (lambda: torch.zeros(4000, dtype=torch.float64), "Tensor", 32_000),
        (lambda: torch.zeros(4000, dtype=torch.float64)[:8], "Tensor", 32_000),
    ],
    ids=["list of ints", "tuple of ints", "array", "view of array", "bytes", "tensor", "view"],
)
def test_bytes_are_those_of_the_payload(
    make: Callable[[], object], kind: str, payload_bytes: int
) -> None:
    pairs = 20
    with undisturbed():
        for _ in range(pairs):
            drop_pair(make())
        report = heap_scan()

    assert report.exact_bytes
    assert report.collectible_bytes >= bytes_of(report, kind) >= 0
    assert report.collectible_bytes / (pairs * payload_bytes) == pytest.approx(1.0, abs=0.1)


def test_a_payload_that_is_alive_elsewhere_is_not_counted_as_garbage() -> None:
    alive = np.zeros(200_000)
    tensor = torch.zeros(200_000)
    words = ["interned"] * 1000
    with undisturbed():
        for _ in range(20):
            drop_pair((alive[:4], tensor[:4], words))
        report = heap_scan()
        keeping = (alive, tensor, words)

    # Twenty dead views share the array with its live name, so at most 20/21 of it is garbage.
    assert report.collectible_bytes < alive.nbytes * 1.05
    assert report.instances["Node"].collectible == 40
    del keeping


def test_memory_that_is_not_in_the_child_does_no_harm_unless_it_is_read() -> None:
    pool = np.ones(8 * 2**20, dtype=np.uint8)
    ranges = [MemoryRange(int(pool.ctypes.data), pool.nbytes)]
    excluded = exclude_from_forks(ranges)
    try:
        with undisturbed():
            drop_pair(pool[10:20])
            healthy = heap_scan(excluded=excluded)

            def reads_the_pool() -> Mapping[str, tuple[type, int]]:
                return {"Node": (Node, int(pool[4 * 2**20]))}

            taker = ForkScan(reads_the_pool, excluded, timeout_s=PATIENCE_S)
            taker.start()
            reading = waited(taker)
    finally:
        include_in_forks(ranges)

    assert excluded
    assert healthy.error == ""
    assert healthy.collectible_bytes < 2**20, "the pool itself is not garbage"
    assert reading is not None
    assert reading.error == f"the child ended with status {-signal.SIGSEGV}"


def test_a_child_that_fails_says_why_and_one_that_hangs_is_killed() -> None:
    def fails() -> Mapping[str, tuple[type, int]]:
        raise LookupError("no such class")

    def hangs() -> Mapping[str, tuple[type, int]]:
        signal.pause()
        return {}

    failing = ForkScan(fails, timeout_s=PATIENCE_S)
    failing.start()
    failed = waited(failing)
    hanging = ForkScan(hangs, timeout_s=0.2)
    hanging.start()
    hung = waited(hanging)

    assert failed is not None
    assert failed.error == "LookupError: no such class"
    assert hung is not None
    assert "too long" in hung.error or "status -14" in hung.error


def test_only_one_scan_runs_at_a_time_and_closing_reaps_its_child() -> None:
    taker = ForkScan(no_nodes)
    taker.start()
    with pytest.raises(RuntimeError, match="a heap scan is running"):
        taker.start()
    taker.close()

    assert taker.poll() is None
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_scan_does_not_change_the_number_of_open_files() -> None:
    taker = ForkScan(no_nodes, timeout_s=PATIENCE_S)
    before = count_open_fds(os.getpid())
    counts: list[int | None] = []
    for _ in range(3):
        taker.start()
        counts.append(count_open_fds(os.getpid()))
        assert waited(taker) is not None
        counts.append(count_open_fds(os.getpid()))
    taker.close()

    assert len(set(counts)) == 1
    assert count_open_fds(os.getpid()) == before


def test_descriptors_named_are_closed_in_the_child() -> None:
    read_end, write_end = os.pipe()
    opened: list[bool] = []

    def probe() -> Mapping[str, tuple[type, int]]:
        try:
            os.fstat(write_end)
        except OSError:
            return {"closed": (Node, 0)}
        return {"open": (Node, 0)}

    taker = ForkScan(probe, close_in_child=(write_end,), timeout_s=PATIENCE_S)
    taker.start()
    report = waited(taker)
    os.close(read_end)
    os.close(write_end)

    assert report is not None
    assert list(report.instances) == ["closed"], opened
