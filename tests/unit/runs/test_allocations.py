"""The allocation record, the last step of a diagnosed run: when it is made, and its outcome."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridbench.records import messages as m
from hybridbench.records.events import Allocations, Note, Phase
from hybridbench.records.finding import VerdictKind
from hybridbench.records.heap import CallSite
from hybridbench.records.manifest import Options
from hybridbench.runs import allocations
from hybridbench.runs.allocations import AllocationRecord
from hybridbench.runs.leak_diagnosis import LeakDiagnosis
from hybridbench.runs.steps import SoakSteps
from tests.unit.runs.fakes import FakeJudge, Resting
from tests.unit.runs.soaks import FakeSoak, make_plan, make_soak, with_target

SITE = CallSite(4096, 3, ("keep (engine.py:7)", "step (engine.py:1)"))


class Tracked(Resting):
    """Replies to every request for an allocation record, with ``error``."""

    error = ""

    def post(self, message: m.ToWorker) -> None:
        super().post(message)
        if isinstance(message, m.TrackAllocations):
            self.extra.append(m.AllocationsTracked(self.clock.monotonic_s(), self.error))


def run(
    kind: VerdictKind, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: str = ""
) -> tuple[FakeSoak, Tracked]:
    monkeypatch.setattr(allocations, "kept_sites", lambda path, limit: [SITE][:limit])
    soak = make_soak(make_plan(duration_s=100.0))
    target = Tracked(soak.clock)
    target.error = error
    with_target(soak, target)
    diagnosis = LeakDiagnosis("auto", 0.0, soak.loop, FakeJudge(kind))
    plan = make_plan(duration_s=100.0, options=Options(memray_s=30.0))
    record = AllocationRecord(soak.loop, tmp_path / "a.bin", plan.options.memray_s)
    SoakSteps(plan, soak.loop, diagnosis=diagnosis, allocations=record).run()
    return soak, target


def names(target: Tracked) -> list[str]:
    kinds = (m.TrackAllocations, m.Resume, m.Drain, m.Flush, m.Diagnose)
    return [type(message).__name__ for message in target.posted if isinstance(message, kinds)]


def test_a_leak_is_served_on_with_its_allocations_recorded_and_flushed_before_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    soak, target = run(VerdictKind.LEAK, monkeypatch, tmp_path)

    after = names(target)[-7:]
    assert after == [
        "Diagnose", "Diagnose", "TrackAllocations", "Resume", "Drain", "Flush", "TrackAllocations",
    ]  # fmt: skip
    paths = [message.path for message in target.posted if isinstance(message, m.TrackAllocations)]
    assert paths == [str(tmp_path / "a.bin"), ""]
    (told,) = soak.sink.all_events(Allocations)
    assert told.seconds == pytest.approx(30.0, abs=1.0)
    assert told.requests > 0
    assert told.sites == (SITE,)
    begun_s = next(p.t_s for p in soak.sink.all_events(Phase) if p.name == "allocations")
    assert all(t <= begun_s for t, _, _ in soak.sink.samples), "a slowed worker is not measured"


def test_nothing_is_recorded_without_a_leak(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    soak, target = run(VerdictKind.CLEAN, monkeypatch, tmp_path)

    assert target.count(m.TrackAllocations) == 0
    assert soak.sink.all_events(Allocations) == []


def test_a_worker_that_cannot_is_let_go_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    error = "ModuleNotFoundError: No module named 'memray'"
    soak, target = run(VerdictKind.LEAK, monkeypatch, tmp_path, error)

    assert names(target)[-1] == "TrackAllocations"
    assert soak.sink.all_events(Allocations) == []
    notes = [note.text for note in soak.sink.all_events(Note)]
    assert f"allocations were not recorded: {error}" in notes
    assert target.count(m.Shutdown) == 1
