"""A target under soak that is only observed: no traffic of ours, and nothing is asked of it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from msgspec.structs import replace

from hybridbench.records.manifest import OBSERVED, Manifest, Model, TargetFacts
from hybridbench.runs.begun import BegunRun
from hybridbench.runs.loop import RunLoop
from hybridbench.runs.manifest import begun_manifest
from hybridbench.runs.plan import RunPlan
from hybridbench.runs.status import RunStatus
from hybridbench.runs.steps import SoakSteps
from hybridbench.sampling.cadence import Beat
from hybridbench.sampling.sampler import HarnessSource, Sampler, StealSource, TimedSource
from hybridbench.targets.target import NOT_SHOWN, Capability, Observe


class ObservedUnderSoak:
    """A target that has the port *observe*.

    Args:
        launch: starts the target, or finds it; its stderr goes to the file that is given.
        shows: what can be seen of it.
    """

    def __init__(
        self,
        plan: RunPlan,
        launch: Callable[[Path], Observe],
        shows: Collection[Capability] = (Capability.PROCESS_MEMORY,),
    ) -> None:
        self._plan = plan
        self._launch = launch
        self._shows = shows
        self._target: Observe | None = None

    @property
    def plan(self) -> RunPlan:
        return self._plan

    @property
    def dump_stack(self) -> None:
        return None

    @property
    def segment(self) -> None:
        return None

    def planned(self, run_id: str, started_wall_s: float) -> Manifest:
        return begun_manifest(self._plan, run_id, started_wall_s)

    def launch(self, stderr_path: Path) -> Observe:
        self._target = self._launch(stderr_path)
        return self._target

    def begin(self, run: BegunRun) -> SoakSteps:
        target, context = self._target, run.context
        assert target is not None, "nothing was launched"
        can = tuple(sorted(self._shows))
        facts = TargetFacts(kind=OBSERVED, pid=target.pid, capabilities=can)
        missing = tuple(text for name, text in NOT_SHOWN.items() if name not in can)
        model = Model(name=self._plan.name, device="", dtype="")
        run.describe(
            replace(run.manifest, target=facts, capabilities=can, not_seen=missing, model=model)
        )
        beat = Beat(self._plan.cadence.sample_every_s, context.clock.monotonic_s())
        sources = [TimedSource(HarnessSource()), TimedSource(StealSource())]
        sampler = Sampler(sources, beat, context.clock)
        status = RunStatus(self._plan.title, self._plan.traffic_s)
        return SoakSteps(self._plan, RunLoop(context, target, sampler, status))

    def end(self, run: BegunRun) -> None:
        """Nothing of it is ours to give back."""
