"""Which time counts as runnable for a process, on a /proc made of files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hybridbench.foundation.clock import FakeClock
from hybridbench.sampling.runnable_time import RunnableTime

PID = 77


class Threads:
    """Two threads in files as in /proc; ``pass_time`` reads them twice a second."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        self.clock = FakeClock()
        self.ran_s = {1: 0.0, 2: 0.0}
        self.waited_s = {1: 0.0, 2: 0.0}
        self.state = {1: "S", 2: "S"}
        self._written: dict[Path, str] = {}
        self._write()
        self.could_run = RunnableTime(PID, self.clock.monotonic_s, proc)

    def pass_time(self, seconds: float, *, ran: float = 0.0, waited: float = 0.0) -> float:
        """Advance time, with these shares for the first thread; return the total runnable time."""
        for _ in range(round(2 * seconds)):
            self.clock.advance(0.5)
            self.ran_s[1] += 0.5 * ran
            self.waited_s[1] += 0.5 * waited
            self._write()
            self.could_run.elapsed_s()
        return self.could_run.elapsed_s()

    def _write(self) -> None:
        for tid, state in self.state.items():
            folder = self.proc / str(PID) / "task" / str(tid)
            ticks = int(self.ran_s[tid] * os.sysconf("SC_CLK_TCK"))
            fields = [state, *["0"] * 10, str(ticks), "0"]
            self._store(folder / "stat", f"{tid} (a (name) S) {' '.join(fields)}\n")
            ran_ns, waited_ns = int(self.ran_s[tid] * 1e9), int(self.waited_s[tid] * 1e9)
            self._store(folder / "schedstat", f"{ran_ns} {waited_ns} 1\n")

    def _store(self, path: Path, text: str) -> None:
        """Write a file whose text has changed; a sleeping thread's files stay as they are."""
        if self._written.get(path) != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            self._written[path] = text


@pytest.fixture
def threads(tmp_path: Path) -> Threads:
    return Threads(tmp_path)


def test_a_process_that_sleeps_could_have_run_all_the_time(threads: Threads) -> None:
    assert threads.pass_time(40.0) == pytest.approx(40.0)


def test_what_it_waited_for_a_processor_does_not_count(threads: Threads) -> None:
    assert threads.pass_time(40.0, ran=0.25, waited=0.75) == pytest.approx(10.0)


def test_a_wait_that_has_not_ended_does_not_count_either(threads: Threads) -> None:
    threads.state[1] = "R"

    assert threads.pass_time(40.0, ran=0.1) == pytest.approx(4.0)


def test_one_that_spins_could_run_while_it_runs(threads: Threads) -> None:
    threads.state[1] = "R"

    assert threads.pass_time(40.0, ran=1.0) == pytest.approx(40.0)


def test_a_thread_without_a_processor_excuses_one_that_waits_for_it(threads: Threads) -> None:
    threads.state[2] = "R"

    assert threads.pass_time(40.0) == 0.0


@pytest.mark.parametrize("state", ["T", "t", "D"])
def test_a_stopped_process_has_five_minutes(threads: Threads, state: str) -> None:
    threads.state[1] = state

    assert threads.pass_time(40.0) == 0.0
    assert threads.pass_time(300.0) == pytest.approx(40.0, abs=1.0)


def test_a_zombie_and_a_process_that_is_gone_excuse_nothing(threads: Threads) -> None:
    threads.state = {1: "Z", 2: "Z"}
    assert threads.pass_time(10.0) == pytest.approx(10.0)

    gone = RunnableTime(PID + 1, threads.clock.monotonic_s, threads.proc)
    threads.clock.advance(1.5)
    assert gone.elapsed_s() == pytest.approx(1.5)


def test_who_did_not_look_for_a_minute_counts_no_minute(threads: Threads) -> None:
    threads.clock.advance(60.0)

    assert threads.could_run.elapsed_s() == pytest.approx(2.0)


def test_the_kernels_own_files_say_it_of_a_process_that_was_stopped() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    clock = FakeClock()
    try:
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        could_run = RunnableTime(process.pid, clock.monotonic_s)
        clock.advance(1.0)
        stopped_s = could_run.elapsed_s()
        process.kill()
    finally:
        process.kill()
        process.wait()
    clock.advance(1.0)

    assert (stopped_s, could_run.elapsed_s()) == (0.0, 1.0)
