from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from hybridbench.foundation.clock import FakeClock
from hybridbench.sampling.cadence import Beat
from hybridbench.sampling.forked_child import fork_child
from hybridbench.sampling.process import read_children
from hybridbench.sampling.sampler import (
    ChildrenSource,
    HarnessSource,
    ProcessSource,
    PssSource,
    Sampler,
    Source,
    StarvationSource,
    TimedSource,
)


class Counting:
    """A source that returns its number of reads; each read takes ``cost_s``."""

    def __init__(self, name: str, clock: FakeClock, cost_s: float = 0.0) -> None:
        self.name, self.clock, self.cost_s = name, clock, cost_s
        self.reads = 0

    def read(self) -> Mapping[str, float]:
        self.reads += 1
        self.clock.advance(self.cost_s)
        return {self.name: self.reads}


def test_a_sample_is_what_was_told_and_what_is_seen_with_its_lateness_and_cost() -> None:
    clock = FakeClock()
    source = Counting("rss_bytes", clock, cost_s=0.125)
    sampler = Sampler([TimedSource(source)], Beat(1.0, 0.0), clock)
    clock.advance(0.25)

    assert sampler.begin()
    assert sampler.finish({"threads": 2.0}) == {
        "threads": 2.0,
        "rss_bytes": 1.0,
        "sampler_late_s": 0.25,
        "sampler_cost_s": 0.125,
    }
    assert not sampler.begin(), "the next one is not due"
    clock.advance(1.0)
    assert sampler.begin()


def test_a_source_with_its_own_beat_is_read_at_that_beat() -> None:
    clock = FakeClock()
    fast, slow = Counting("rss_bytes", clock), Counting("pss_bytes", clock)
    sampler = Sampler([TimedSource(fast), TimedSource(slow, Beat(3.0, 0.0))], Beat(1.0, 0.0), clock)
    for _ in range(7):
        assert sampler.begin()
        sampler.finish({})
        clock.advance(1.0)

    assert fast.reads == 7
    assert slow.reads == 3


def test_an_undeclared_metric_fails() -> None:
    clock = FakeClock()
    sampler = Sampler([], Beat(1.0, 0.0), clock)

    with pytest.raises(KeyError, match="resident_bytes"):
        sampler.finish({"resident_bytes": 1.0})


def test_the_real_sources_give_declared_metrics_and_nothing_for_a_process_that_is_gone() -> None:
    pid = os.getpid()
    sources: list[Source] = [ProcessSource(pid), PssSource(pid), HarnessSource()]
    sampler = Sampler([TimedSource(source) for source in sources], Beat(1.0, 0.0), FakeClock())

    sample = sampler.finish({})

    assert {"rss_bytes", "rss_anon_swap_bytes", "threads", "harness_rss_bytes"} <= sample.keys()
    assert ProcessSource(2**30).read() == {}
    assert PssSource(2**30).read() == {}


def test_children_are_counted_once_there_was_one(tmp_path: Path) -> None:
    # The kernel cuts a name after 15 bytes, perhaps in the middle of a character.
    program = os.fsencode(tmp_path) + b"/a) Z \xc3"
    os.symlink(os.fsencode(shutil.which("sleep") or ""), program)
    live, ended = read_children(os.getpid())
    ends, lives = subprocess.Popen(["true"]), subprocess.Popen([program, "60"])
    try:
        os.waitid(os.P_PID, ends.pid, os.WEXITED | os.WNOWAIT)
        source = ChildrenSource(os.getpid())
        during = source.read()
        childless = ChildrenSource(lives.pid).read()
    finally:
        lives.kill()
        ends.wait()
        lives.wait()

    assert during == {"children": live + 1, "zombies": ended + 1}
    assert source.read() == {"children": live, "zombies": ended}
    assert childless == ChildrenSource(2**30).read() == {}


def test_the_copies_that_heap_scans_fork_are_no_children_of_the_engine() -> None:
    before, own_name = read_children(os.getpid()), Path("/proc/self/comm").read_text()

    child = fork_child(lambda: b"%d" % sum(range(10**6)), (), 60.0)
    live = read_children(os.getpid())
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    ended = read_children(os.getpid())
    child.wait()

    assert live == ended == before
    assert child.failure == ""
    assert Path("/proc/self/comm").read_text() == own_name


def test_a_sampler_that_was_parked_takes_up_its_beat_without_lateness() -> None:
    clock = FakeClock()
    sampler = Sampler([], Beat(1.0, 0.0), clock)
    clock.advance(90.0)

    sampler.restart(clock.monotonic_s())

    assert sampler.begin()
    assert sampler.finish({})["sampler_late_s"] == 0.0
    assert sampler.next_s == 91.0


def test_what_was_stolen_while_a_process_was_parked_is_not_its_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    ticks = os.sysconf("SC_CLK_TCK")

    def stolen(seconds: int) -> None:
        times = f"0 0 0 0 0 0 0 {seconds * ticks} 0 0"
        (tmp_path / "stat").write_text(f"cpu {times}\ncpu0 {times}\n")

    source = StarvationSource(7, tmp_path)
    stolen(10)
    source.park()
    stolen(60)
    source.unpark()
    stolen(61)

    assert source.read()["host_steal_s"] == pytest.approx(11.0)
