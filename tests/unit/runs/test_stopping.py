"""Ending a run early."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from hybridbench.foundation.clock import FakeClock
from hybridbench.records.events import StoppedEarly
from hybridbench.records.finding import Finding, VerdictKind
from hybridbench.records.verdict import Verdict
from hybridbench.runs.stopping import Stopper, Watched
from hybridbench.sampling.headroom import Floor, Headroom
from tests.unit.made_findings import a_finding

GIB = 2**30
LEAK = a_finding("residual", VerdictKind.LEAK, "mamba", "3 state slots are missing")


@dataclass
class FakeLooks:
    """Every look takes a second and finds ``findings``."""

    clock: FakeClock
    findings: tuple[Finding, ...] = ()
    started_s: list[float] = field(default_factory=list)
    closed: bool = False
    busy: bool = False
    could_run_s: float = 0.0

    def start(self) -> None:
        self.started_s.append(self.clock.monotonic_s())
        self.busy = True

    def collect(self) -> Verdict | None:
        if not self.busy or self.clock.monotonic_s() < self.started_s[-1] + 1.0:
            return None
        self.busy = False
        kind = VerdictKind.LEAK if self.findings else VerdictKind.CLEAN
        return Verdict(kind, "", self.findings, (), (0.0, 1.0), "")

    def close(self) -> None:
        self.closed = True


@dataclass
class Machine:
    """A source of headroom, for memory or for disk."""

    left_bytes: int = 8 * GIB

    def read(self) -> Headroom:
        return Headroom(self.left_bytes, 16 * GIB, "machine")


@dataclass
class Setting:
    clock: FakeClock
    looks: FakeLooks
    memory: Machine
    disk: Machine
    stopper: Stopper

    def run(self, seconds: float) -> StoppedEarly | None:
        """Check four times a second, as the loop does; return the reason to stop, or None."""
        for _ in range(int(4 * seconds)):
            self.clock.advance(0.25)
            stop = self.stopper.check(self.clock.monotonic_s())
            if stop is not None:
                return stop
        return None


def setting(words: frozenset[str] = frozenset({"leak"}), planned_s: float = 7200.0) -> Setting:
    clock = FakeClock()
    looks, memory, disk = FakeLooks(clock), Machine(), Machine()
    stopper = Stopper(
        Watched(clock.monotonic_s, 0.0, planned_s),
        Floor(memory.read, 0.05, GIB // 2, 2 * GIB),
        Floor(disk.read, 0.0, GIB // 16, GIB // 16),
        looks,
        words,
    )
    return Setting(clock, looks, memory, disk, stopper)


def test_a_leak_that_stands_over_two_looks_ends_the_run() -> None:
    soak = setting()
    soak.looks.findings = (LEAK,)
    soak.stopper.steady()
    stop = soak.run(3000.0)

    assert stop is not None
    assert (stop.reason, "3 state slots" in stop.text) == ("leak", True)
    assert len(soak.looks.started_s) >= 2
    # Never in the first ten minutes, because a short run uses its whole length.
    assert soak.looks.started_s[0] >= 600.0
    assert soak.clock.monotonic_s() < 2000.0


def test_a_leak_ends_nothing_where_nobody_asked_for_it() -> None:
    soak = setting(words=frozenset())
    soak.looks.findings = (LEAK,)
    soak.stopper.steady()

    assert soak.run(3000.0) is None


def test_looks_are_few_and_never_two_at_a_time() -> None:
    soak = setting()

    assert soak.run(7300.0) is None
    starts = soak.looks.started_s
    assert 30 <= len(starts) <= 48
    assert min(b - a for a, b in pairwise(starts)) >= 60.0
    assert starts[-1] < 7200.0


@pytest.mark.parametrize(("which", "word"), [("memory", "memory-low"), ("disk", "disk-low")])
def test_a_machine_that_gives_out_ends_the_run_whatever_was_asked(which: str, word: str) -> None:
    soak = setting(words=frozenset())
    assert soak.run(10.0) is None
    (soak.memory if which == "memory" else soak.disk).left_bytes = GIB // 32
    stop = soak.run(10.0)

    assert stop is not None
    assert stop.reason == word
    assert "only 32.0 MiB" in stop.text
    assert soak.clock.monotonic_s() < 15.0


def test_the_look_under_way_ends_with_the_run() -> None:
    soak = setting()
    with soak.stopper:
        pass

    assert soak.looks.closed
