"""A soak continues beyond its planned time until its verdict is decided, or until its limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from hybridbench.foundation.clock import Clock
from hybridbench.records.events import Checkpoint, Extended, ExtensionEnded, Phase
from hybridbench.records.finding import VerdictKind
from hybridbench.records.verdict import Verdict
from hybridbench.runs.steps import SoakSteps
from hybridbench.runs.stopping import Extension
from tests.unit.made_findings import a_finding
from tests.unit.runs.soaks import FakeSoak, make_plan, make_soak

OPEN, CLEAN, FAILS = VerdictKind.INCONCLUSIVE, VerdictKind.CLEAN, None
# Longer than a headline may be.
SAID = "private memory: growing by 1.00 GiB/h" + "; one reason more" * 10


@dataclass
class ScriptedLooks:
    """Each look takes a second and returns the next verdict in the script; the last one repeats."""

    clock: Clock
    script: Sequence[VerdictKind | None]
    started: int = 0
    closed: bool = False
    could_run_s: float = 0.0
    _ready_s: float | None = field(default=None, init=False)

    @property
    def busy(self) -> bool:
        return self._ready_s is not None

    def start(self) -> None:
        self.started += 1
        self._ready_s = self.clock.monotonic_s() + 1.0

    def collect(self) -> Verdict | None:
        if self._ready_s is None or self.clock.monotonic_s() < self._ready_s:
            return None
        self._ready_s = None
        kind = self.script[min(self.started, len(self.script)) - 1]
        return None if kind is None else _verdict(kind)

    def close(self) -> None:
        self.closed = True


def _verdict(kind: VerdictKind) -> Verdict:
    open_ = a_finding("undecided", OPEN, "rss_anon_swap_bytes", SAID, data={"needed_s": 600.0})
    return Verdict(kind, f"{SAID[:100]}…", (open_,) if kind is OPEN else (), (), None, "")


def run(*script: VerdictKind | None, limit_s: float = 600.0) -> tuple[FakeSoak, ScriptedLooks]:
    soak = make_soak(make_plan(duration_s=100.0))
    soak.target.steady_at_s = soak.clock.monotonic_s() + 15.0
    looks = ScriptedLooks(soak.clock, script)
    recorder, status = soak.loop.context.recorder, soak.loop.status
    extension = Extension(limit_s, looks, recorder, soak.view, status)
    SoakSteps(make_plan(duration_s=100.0), soak.loop, extension=extension).run()
    return soak, looks


def traffic_s(soak: FakeSoak) -> float:
    """Return when the last drain began; traffic begins at 0."""
    return [phase.t_s for phase in soak.sink.all_events(Phase) if phase.name == "drain"][-1]


def test_a_run_that_is_decided_ends_on_time_and_says_nothing_of_an_extension() -> None:
    soak, looks = run(CLEAN)

    assert traffic_s(soak) == pytest.approx(101.0, abs=1.0)
    assert "extended" not in soak.sink.kinds()
    assert "extension_ended" not in soak.sink.kinds()
    assert (looks.started, looks.closed) == (1, True)


def test_an_open_run_goes_on_until_two_looks_agree_that_it_is_clean() -> None:
    soak, _ = run(OPEN, OPEN, CLEAN)

    # Looks at 100, 130, 160, 190 and 220 s; the last is a minute after the first clean one.
    assert traffic_s(soak) == pytest.approx(221.0, abs=2.0)
    (extended,) = soak.sink.all_events(Extended)
    assert (extended.limit_s, extended.text) == (600.0, SAID)
    assert [event.settled for event in soak.sink.all_events(ExtensionEnded)] == [True]
    assert any("undecided, extending by up to 10m" in note for note in soak.view.notes)
    assert soak.view.notes[-1].startswith("decided, ending: two interim analyses")
    assert soak.loop.status.duration_s == 700.0


def test_a_run_goes_on_if_it_is_undecided_once_its_traffic_has_ended() -> None:
    soak, _ = run(OPEN, CLEAN, CLEAN, CLEAN, OPEN, CLEAN)

    # Analyses under traffic agree at 190 s; the one without traffic does not.
    assert traffic_s(soak) == pytest.approx(280.0, abs=10.0)
    assert [event.settled for event in soak.sink.all_events(ExtensionEnded)] == [True]
    assert len(soak.sink.all_events(Extended)) == 1


def test_an_open_run_ends_at_its_limit_and_says_that_it_is_not_settled() -> None:
    soak, looks = run(OPEN, limit_s=150.0)

    assert traffic_s(soak) == pytest.approx(250.0, abs=2.0)
    assert [event.settled for event in soak.sink.all_events(ExtensionEnded)] == [False]
    assert looks.closed


def test_checkpoints_and_samples_keep_their_cadence_in_an_extension() -> None:
    soak, _ = run(OPEN, limit_s=150.0)

    times = [checkpoint.t_s for checkpoint in soak.sink.all_events(Checkpoint)]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    # A checkpoint just before the planned end is skipped, whether or not the run is extended.
    assert sum(gap > 21.0 for gap in gaps) <= 1
    assert max(gaps) <= 41.0
    sampled = [t for t, _, _ in soak.sink.samples]
    assert len(sampled) > 200


def test_looks_that_fail_do_not_keep_a_run_going() -> None:
    soak, looks = run(FAILS)

    assert looks.started == 3
    assert traffic_s(soak) < 170.0
