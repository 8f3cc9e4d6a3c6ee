"""What a soak loop connects, put together for one worker that is ready."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hybridbench.clock import Clock
from hybridbench.runs.driver import Driver
from hybridbench.runs.interrupts import Interrupts
from hybridbench.runs.log_watch import LogWatch
from hybridbench.runs.loop import LoopParts
from hybridbench.runs.plan import SoakPlan
from hybridbench.runs.recorder import Recorder
from hybridbench.runs.status import RunStatus, View
from hybridbench.runs.watchdog import Watchdog
from hybridbench.sampling.cadence import Beat, CensusPace
from hybridbench.sampling.sampler import (
    HarnessSource,
    ProcessSource,
    PssSource,
    Sampler,
    StarvationSource,
    TimedSource,
)
from hybridbench.targets.messages import Ready
from hybridbench.targets.target import Target

_PSS_INTERVAL_S = 20.0


@dataclass(frozen=True)
class RunRoom:
    """What outlives a worker: where the run is written, who watches it, who may end it."""

    clock: Clock
    recorder: Recorder
    interrupts: Interrupts
    view: View
    log_watch: LogWatch | None = None
    on_evidence: Callable[[], None] | None = None


def loop_parts(
    plan: SoakPlan,
    room: RunRoom,
    target: Target,
    driver: Driver,
    ready: Ready,
    starvation: StarvationSource | None = None,
) -> LoopParts:
    """The parts for a worker that said ``ready``; ``starvation`` is given by who parks it."""
    clock = room.clock
    now_s, cadence = clock.monotonic_s(), plan.cadence
    sources = [
        TimedSource(ProcessSource(ready.pid)),
        TimedSource(HarnessSource()),
        TimedSource(starvation or StarvationSource(ready.pid)),
        TimedSource(PssSource(ready.pid), Beat(_PSS_INTERVAL_S, now_s)),
    ]
    return LoopParts(
        target=target,
        driver=driver,
        sampler=Sampler(sources, Beat(cadence.sample_every_s, now_s), clock),
        census_pace=CensusPace(cadence.collectible_every_s, now_s, plan.stall_max_s),
        recorder=room.recorder,
        watchdog=Watchdog(plan.watchdog_s, now_s),
        interrupts=room.interrupts,
        view=room.view,
        status=RunStatus(
            title=f"{plan.model} / {plan.profile.name}",
            model_note=ready.model_note,
            duration_s=plan.traffic_s,
        ),
        clock=clock,
        log_watch=room.log_watch,
        on_evidence=room.on_evidence,
    )
