"""Idle checkpoints that flush the cache, stay idle, or end the run early."""

from __future__ import annotations

import pytest

from hybridbench.records import messages as m
from hybridbench.records.events import Checkpoint, StoppedEarly
from hybridbench.runs.steps import SoakSteps
from hybridbench.sampling.sampler import TimedSource
from tests.unit.runs.soaks import FakeSoak, make_plan, make_soak


class MemorySource:
    """A worker whose private memory is always the same."""

    def read(self) -> dict[str, float]:
        return {"rss_anon_swap_bytes": 400.0}


class StopsAt:
    """Ends the run at a given time of its own clock."""

    def __init__(self, at_s: float, word: str = "leak") -> None:
        self.at_s = at_s
        self.word = word
        self.told_steady = 0

    def check(self, now_s: float) -> StoppedEarly | None:
        return StoppedEarly(self.word, "enough is known") if now_s >= self.at_s else None

    def steady(self) -> None:
        self.told_steady += 1


def soak_with(settings: dict[str, str], duration_s: float = 100.0) -> FakeSoak:
    plan = make_plan(duration_s, settings)
    soak = make_soak(plan, sources=[TimedSource(MemorySource())])
    soak.target.steady_at_s = soak.clock.monotonic_s() + 15.0
    return soak


def stopping(soak: FakeSoak, rule: StopsAt) -> FakeSoak:
    soak.steps = SoakSteps(make_plan(100.0), soak.loop, stop_rule=rule)
    return soak


def test_every_rest_stores_the_memory_at_rest() -> None:
    soak = soak_with({})
    soak.steps.run()
    rests = [
        (phase, values)
        for _, phase, values in soak.sink.samples
        if "rest_anon_swap_bytes" in values
    ]

    assert len(rests) == len(soak.sink.all_events(Checkpoint))
    assert {phase for phase, _ in rests} == {"idle"}
    assert rests[0][1] == {"rest_anon_swap_bytes": 400.0}


def test_a_checkpoint_that_flushes_does_so_before_it_looks() -> None:
    soak = soak_with({"checkpoint.flush": "true"})
    soak.steps.run()
    kinds = [type(p) for p in soak.target.posted if isinstance(p, m.Flush | m.Checkpoint)]

    assert kinds[::2] == [m.Flush] * (len(kinds) // 2)
    assert kinds[1::2] == [m.Checkpoint] * (len(kinds) // 2)
    assert soak_with({}).target.count(m.Flush) == 0


def test_a_stretch_of_idleness_lies_between_two_looks_and_is_sampled_as_idle() -> None:
    soak = soak_with({"checkpoint.idle": "6s", "checkpoint.every": "30s"})
    soak.steps.run()
    looks = [checkpoint.t_s for checkpoint in soak.sink.all_events(Checkpoint)]
    idle = [
        t_s
        for t_s, phase, values in soak.sink.samples
        if phase == "idle" and "rss_anon_swap_bytes" in values
    ]

    assert len(looks) % 2 == 0
    for before, after in zip(looks[::2], looks[1::2], strict=True):
        assert after - before == pytest.approx(6.0, abs=0.5)
        assert sum(before < t_s < after for t_s in idle) >= 5
    indices = [checkpoint.index for checkpoint in soak.sink.all_events(Checkpoint)]
    assert indices == list(range(len(looks)))


def test_a_run_that_knows_enough_drains_looks_once_more_and_ends() -> None:
    soak = soak_with({})
    rule = StopsAt(soak.clock.monotonic_s() + 50.0)
    stopping(soak, rule).steps.run()

    assert [(e.reason, e.text) for e in soak.sink.all_events(StoppedEarly)] == [
        ("leak", "enough is known")
    ]
    assert soak.sink.phases()[-3:] == ["drain", "idle", "done"]
    assert soak.sink.events[-1].t_s == pytest.approx(50.0, abs=3.0)
    assert rule.told_steady == 1
    assert any("enough is known" in note for note in soak.view.notes)
    audits = [p.audit for p in soak.target.posted if isinstance(p, m.Checkpoint)]
    assert audits[-1] is True


def test_a_machine_without_memory_is_not_probed_once_more() -> None:
    soak = soak_with({})
    stopping(soak, StopsAt(soak.clock.monotonic_s() + 5.0, "memory-low")).steps.run()

    assert soak.target.count(m.Checkpoint) == 0
    assert soak.target.count(m.Reclaim) == 0
    assert soak.target.count(m.Shutdown) == 1
    assert soak.sink.phases()[-1] == "done"
