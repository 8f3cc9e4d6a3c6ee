"""The thread that copies beside the steps."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from hybridbench.engine.memory.transfers import Finished, ThreadedTransfers


def test_copies_run_in_order_on_another_thread() -> None:
    transfers = ThreadedTransfers()
    seen: list[tuple[int, int]] = []

    def copy(number: int) -> None:
        seen.append((number, threading.get_ident()))

    for number in range(5):
        transfers.start(number, partial(copy, number))
    ended = transfers.wait()

    assert ended == [Finished(number) for number in range(5)]
    assert [number for number, _ in seen] == list(range(5))
    assert threading.get_ident() not in {thread for _, thread in seen}


def test_a_copy_takes_the_least_time_at_least() -> None:
    transfers, started_s = ThreadedTransfers(least_s=0.05), time.monotonic()
    copied = threading.Event()

    transfers.start(1, copied.set)
    assert copied.wait(timeout=60.0)

    assert transfers.wait() == [Finished(1)]
    assert time.monotonic() - started_s >= 0.05


def test_a_copy_under_way_is_not_waited_for() -> None:
    transfers, gate = ThreadedTransfers(), threading.Event()
    transfers.start(1, gate.wait)

    assert transfers.finished() == []

    gate.set()
    assert transfers.wait() == [Finished(1)]
    assert transfers.finished() == []


def test_a_copy_that_raises_is_told_and_the_next_one_runs() -> None:
    transfers = ThreadedTransfers()
    seen: list[int] = []

    transfers.start(1, lambda: 1 // 0)
    transfers.start(2, lambda: seen.append(2))
    failed, done = transfers.wait()

    assert failed.number == 1
    assert failed.error.startswith("ZeroDivisionError")
    assert done == Finished(2)
    assert seen == [2]


def test_the_thread_ends_with_its_copies_and_later_ones_get_another() -> None:
    transfers, gate = ThreadedTransfers(linger_s=0.0), threading.Event()
    for number in (1, 2):
        before = set(threading.enumerate())
        gate.clear()
        transfers.start(number, gate.wait)
        (thread,) = set(threading.enumerate()) - before
        gate.set()
        assert transfers.wait() == [Finished(number)]
        thread.join(timeout=60)
        assert not thread.is_alive()


@pytest.mark.parametrize("count", [0, 1])
def test_waiting_twice_waits_for_nothing(count: int) -> None:
    transfers = ThreadedTransfers()
    for number in range(count):
        transfers.start(number, lambda: None)

    assert len(transfers.wait()) == count
    assert transfers.wait() == []
