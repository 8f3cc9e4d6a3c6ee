"""A child that works, fails, hangs or dies: the parent always ends it and reports the cause."""

from __future__ import annotations

import mmap
import os
import signal
from typing import NoReturn

import pytest

from hybridbench.sampling.forked_child import (
    MemoryRange,
    exclude_from_forks,
    fork_child,
    include_in_forks,
)

PATIENCE_S = 60.0


def test_the_answer_comes_whole_however_long_it_is() -> None:
    child = fork_child(lambda: b"x" * 3_000_000, (), PATIENCE_S)
    child.wait()

    assert len(child.answer) == 3_000_000
    assert child.failure == ""


def test_an_error_in_the_child_is_a_failure_and_stays_there() -> None:
    def fail() -> NoReturn:
        raise ValueError("not the parent's business")

    child = fork_child(fail, (), PATIENCE_S)
    child.wait()

    assert child.failure == "the child ended with status 1"
    assert not child.answer


def test_a_child_that_is_killed_says_by_which_signal() -> None:
    def die() -> bytes:
        os.kill(os.getpid(), signal.SIGKILL)
        return b""

    child = fork_child(die, (), PATIENCE_S)
    child.wait()

    assert child.failure == "the child ended with status -9"


def test_a_child_past_its_deadline_is_killed_and_reaped() -> None:
    def hang() -> bytes:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.pause()
        return b""

    child = fork_child(hang, (), 0.05)
    child.wait()

    assert child.failure == "the child took too long and was killed"
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_descriptors_to_close_are_closed_in_the_child_alone() -> None:
    read_end, write_end = os.pipe()

    def look() -> bytes:
        try:
            os.fstat(write_end)
        except OSError:
            return b"closed"
        return b"open"

    child = fork_child(look, (write_end,), PATIENCE_S)
    child.wait()

    assert child.answer == b"closed"
    os.fstat(write_end)
    os.close(read_end)
    os.close(write_end)


def test_killing_twice_does_nothing_more() -> None:
    def hang() -> bytes:
        signal.pause()
        return b""

    child = fork_child(hang, (), PATIENCE_S)
    child.kill()
    child.kill()

    assert child.is_done()


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
