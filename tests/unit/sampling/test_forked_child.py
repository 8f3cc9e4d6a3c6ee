"""A child that works, fails, hangs, or dies: the parent always gets rid of it and knows why."""

from __future__ import annotations

import os
import signal
from typing import NoReturn

import pytest

from hybridbench.sampling.forked_child import fork_child

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
