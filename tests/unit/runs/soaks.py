"""A soak assembled from fakes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hybridbench.foundation.clock import FakeClock
from hybridbench.records.manifest import Options
from hybridbench.runs.driver import Driver
from hybridbench.runs.interrupts import Interrupts
from hybridbench.runs.log_watch import LogWatch
from hybridbench.runs.loop import RunContext
from hybridbench.runs.plan import SoakPlan
from hybridbench.runs.recorder import Recorder
from hybridbench.runs.status import RunStatus
from hybridbench.runs.steps import SoakSteps
from hybridbench.runs.wire_loop import WireLoop
from hybridbench.sampling.cadence import Beat, ScanPace
from hybridbench.sampling.sampler import Sampler, TimedSource
from hybridbench.workload.catalog import load_profile
from tests.unit.runs.fakes import FakeSink, FakeTarget, FakeView, FakeWorkload


def make_plan(
    duration_s: float = 100.0,
    settings: Mapping[str, str] | None = None,
    options: Options | None = None,
) -> SoakPlan:
    """Return a plan of the smoke profile with a warm-up of 20 requests."""
    overrides = {"warmup.requests": "20", "checkpoint.every": "20s", **(settings or {})}
    return SoakPlan(
        profile=load_profile("smoke").with_overrides(overrides),
        model="qwen3-next",
        store=Path("results"),
        duration_s=duration_s,
        seed=1,
        ui="none",
        options=options or Options(),
    )


@dataclass
class FakeSoak:
    """A soak and everything that a test inspects afterwards."""

    clock: FakeClock
    target: FakeTarget
    workload: FakeWorkload
    sink: FakeSink
    interrupts: Interrupts
    view: FakeView
    loop: WireLoop
    steps: SoakSteps


def make_soak(
    plan: SoakPlan | None = None,
    view: FakeView | None = None,
    sources: Sequence[TimedSource] = (),
    clock: FakeClock | None = None,
) -> FakeSoak:
    """Return a soak that samples every second and counts garbage every four seconds."""
    plan = plan if plan is not None else make_plan()
    clock = clock if clock is not None else FakeClock(start_s=500.0)
    now_s = clock.monotonic_s()
    target, workload, sink = FakeTarget(clock), FakeWorkload(), FakeSink()
    interrupts, recorder = Interrupts(), Recorder(sink, clock, now_s)
    view = view if view is not None else FakeView()
    loop = WireLoop(
        context=RunContext(clock, recorder, interrupts, view, LogWatch(Path(os.devnull), recorder)),
        target=target,
        driver=Driver(workload, target),
        sampler=Sampler(list(sources), Beat(1.0, now_s), clock),
        scan_pace=ScanPace(4.0, now_s),
        status=RunStatus("fake", plan.duration_s),
        watchdog_s=30.0,
    )
    return FakeSoak(clock, target, workload, sink, interrupts, view, loop, SoakSteps(plan, loop))


def with_target(soak: FakeSoak, target: FakeTarget) -> None:
    """Replace the target of ``soak`` by ``target``."""
    soak.loop.target = soak.target = target
    soak.loop.driver = Driver(soak.workload, target)
