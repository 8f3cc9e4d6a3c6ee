"""One version during a comparison: its worker, its run directory, and the blocks it serves.

Between blocks it is parked: drained, probed, and without requests.  Within a block it may be frozen
while another version has its slice.  The run's time excludes parked and frozen time, so that the
run can be judged like a soak.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from hybridbench.compare.active_clock import ActiveClock
from hybridbench.compare.launching import Launch, StartedWorker, with_started
from hybridbench.compare.meter import (
    BlockDriver,
    Edges,
    RememberingSink,
    Tally,
    block_values,
)
from hybridbench.compare.plan import ComparePlan
from hybridbench.compare.sides import Side
from hybridbench.compare.traffic import BlockTraffic, block_workload
from hybridbench.foundation.clock import Clock
from hybridbench.foundation.errors import RunDirectoryError
from hybridbench.records import events
from hybridbench.records.manifest import Manifest
from hybridbench.records.messages import Drain, Ready
from hybridbench.rundir.layout import WORKER_STDERR
from hybridbench.rundir.lock import locked_run
from hybridbench.rundir.truth import add_truth
from hybridbench.rundir.writer import RunWriter
from hybridbench.runs.answers import answer_check_of, record_answers
from hybridbench.runs.bench_failure import record_bench_failure
from hybridbench.runs.crash import record_crash
from hybridbench.runs.interrupts import Interrupts
from hybridbench.runs.log_watch import LogWatch
from hybridbench.runs.loop import RunContext, WorkerLostError
from hybridbench.runs.manifest import (
    planned_manifest,
    profile_of_length,
    with_counts,
    with_segment,
)
from hybridbench.runs.plan import Segment
from hybridbench.runs.recorder import Recorder
from hybridbench.runs.status import View
from hybridbench.runs.steps import SoakSteps
from hybridbench.runs.wire_loop import WireLoop, make_wire_loop
from hybridbench.sampling.headroom import oom_kills
from hybridbench.sampling.sampler import StarvationSource
from hybridbench.targets.bundled import BundledTarget

_STOP_PATIENCE_S = 10.0
_SAMPLE_PATIENCE_S = 10.0
_SCAN_PATIENCE_S = 30.0
_WARM_UP_LIMIT_S = 120.0
# A longer block is cut short: such a slow version is measured by the requests it finished.
_BLOCK_TIMES_MAX = 8.0
_BLOCK_LEAST_LIMIT_S = 60.0
_CUT = "a block was cut after {:.0f} s: this version is slow"


@dataclass(frozen=True)
class CompareContext:
    """State shared by all versions of a comparison."""

    plan: ComparePlan
    directory: Path
    clock: Clock
    interrupts: Interrupts
    cpu: int | None = None  # to which all workers are pinned


@dataclass(frozen=True)
class BlockDone:
    """The start of a block, on the monotonic clock, and its values by metric."""

    start_s: float
    values: Mapping[str, float]


@dataclass
class _Block:
    """The current block."""

    begun_s: float
    before: Mapping[str, float]
    clock: ActiveClock = field(default_factory=ActiveClock)
    draining: bool = False  # all of its requests were submitted
    give_up_s: float = math.inf


@dataclass(frozen=True)
class _Worker:
    """One worker process and the objects connected to it."""

    started: StartedWorker
    loop: WireLoop
    steps: SoakSteps
    driver: BlockDriver
    starvation: StarvationSource


class LiveSide:
    """Owns the version's run directory from ``open`` to ``close``, and its worker within.

    If a worker dies or hangs, that is the version's outcome: ``lost`` describes it, and the
    version is not used any more.
    """

    def __init__(self, side: Side, label: str, context: CompareContext) -> None:
        self.side = side
        self.label = label
        self.run_dir = context.directory / label
        self.lost: str | None = None
        self._context = context
        self._plan = context.plan.of_side(side, context.directory)
        self._traffic = BlockTraffic()
        self._block = _Block(0.0, {})
        self._held = ExitStack()
        self._launched: tuple[Launch, BundledTarget] | None = None
        self._worker: _Worker | None = None
        self._parked_at_s: float | None = None
        self._served_s = 0.0
        self._processes = 0
        self._kills_before = oom_kills()
        self._started_wall_s = context.clock.wall_s()
        self._manifest = Manifest()

    def open(self) -> None:
        """Make the run directory.

        Raises:
            RunDirectoryError: it cannot be written.
        """
        clock = self._context.clock
        version = {"name": self.side.name, "kind": self.side.kind, **self.side.origin.stored()}
        self._manifest = msgspec.structs.replace(
            planned_manifest(self._plan, self.label, self._started_wall_s), version=version
        )
        self._writer = self._held.enter_context(RunWriter(self.run_dir, self._manifest, clock))
        self._held.enter_context(locked_run(self.run_dir))
        self._sink = RememberingSink(self._writer)
        self._recorder = Recorder(self._sink, clock, clock.monotonic_s())
        self._log_watch = LogWatch(self.run_dir / WORKER_STDERR, self._recorder)
        self._recorder.enter("boot")
        self._parked_at_s = clock.monotonic_s()

    @property
    def manifest(self) -> Manifest:
        """The manifest of the run so far."""
        return self._manifest

    @property
    def ready(self) -> Ready:
        """The worker's ``Ready`` message."""
        return self._at_work().started.ready

    def launch(self) -> None:
        """Launch the first or the next worker; ``start`` waits until it is ready.

        Raises:
            WorkerFailedError: the system cannot start it.
        """
        context, stderr_path = self._context, self.run_dir / WORKER_STDERR
        launch = Launch(self.side, self._plan, stderr_path, context.interrupts, context.cpu)
        begun = launch.begin()
        self._held.callback(self._stop_process, begun)
        self._launched = (launch, begun)

    def start(self) -> None:
        """Wait until the launched worker is ready; each later worker begins a new segment.

        Raises:
            ConfigError: it cannot be built as requested; the worker's message.
            WorkerFailedError: it cannot be started, or speaks another wire protocol.
            StartRefusedError: the comparison was interrupted.
        """
        assert self._launched is not None, "nothing was launched"
        context, (launch, begun) = self._context, self._launched
        self._launched = None
        # Exclude the time in which the other workers were built.
        self._leave_out_rest()
        if self._processes:
            self._recorder.event(events.Segment(self._processes))
        started = launch.finish(begun)
        if started.target is not begun:
            self._held.callback(self._stop_process, started.target)
        self._describe(started)
        run = RunContext(context.clock, self._recorder, context.interrupts, View(), self._log_watch)
        driver = BlockDriver(self._traffic, started.target)
        starvation = StarvationSource(started.ready.pid)
        loop = make_wire_loop(self._plan, run, started.target, driver, started.ready, starvation)
        # Forks or reference answers within a block would count as its time.
        loop.heap_scans_wanted = False
        loop.answers = answer_check_of(self._plan, started.ready, context.clock, share=0.0)
        steps = SoakSteps(self._plan, loop)
        self._worker = _Worker(started, loop, steps, driver, starvation)
        self._processes += 1
        self._park()

    def warm_up(self, seed: int, calibrate_s: float) -> float:
        """Serve until the engine is steady; then measure for ``calibrate_s``.

        Returns:
            Requests per second during that time; 0 without a measurement.
        """
        worker = self._unparked("warmup")
        wanted = self._plan.profile.warmup.requests
        self._begin(None, seed, "w.")
        loop, driver = worker.loop, worker.driver
        begun_s = loop.now_s

        def is_warm() -> bool:
            warm = loop.steady is not None and driver.tally.ended >= wanted
            return warm or loop.interrupted

        loop.run_until(is_warm, begun_s + _WARM_UP_LIMIT_S)
        measured_s, before = loop.now_s, driver.tally.ended
        loop.run_until(lambda: loop.interrupted, measured_s + calibrate_s)
        rate = (driver.tally.ended - before) / max(loop.now_s - measured_s, 1e-9)
        self._traffic.stop()
        self._block = _Block(begun_s, {})
        self._serve_on(worker, math.inf)
        self._served_s += loop.now_s - begun_s
        self._rest(worker)
        return rate if calibrate_s > 0 else 0.0

    def begin_block(self, seed: int, requests: int, tag: str, phase: str) -> None:
        """Prepare a block and freeze; ``go_on`` serves it.

        Raises:
            WorkerLostError: the worker died or hangs; see ``record_loss``.
        """
        worker = self._unparked(phase)
        worker.steps.record_steady()
        before = self._reading(worker)
        self._sink.peak_rss_bytes = 0.0
        worker.driver.tally = Tally()
        self._block = _Block(worker.loop.now_s, before)
        self._begin(requests, seed, tag)
        self._freeze(worker)

    def go_on(self, slice_s: float) -> bool:
        """Serve the block for ``slice_s`` and freeze; return whether the block has ended.

        Raises:
            WorkerLostError: the worker died or hangs; see ``record_loss``.
        """
        worker = self._at_work()
        self._thaw(worker)
        over = self._serve_on(worker, worker.loop.now_s + slice_s)
        self._freeze(worker)
        return over

    def end_block(self) -> BlockDone:
        """Drain, probe and park after a block; return its values.

        Raises:
            WorkerLostError: the worker died or hangs; see ``record_loss``.
        """
        worker, block = self._at_work(), self._block
        self._thaw(worker)
        start_s = self._traffic.first_submit_s or block.begun_s
        tally = worker.driver.tally
        lasted_s = block.clock.between(start_s, tally.last_end_s) if tally.ended else 0.0
        self._served_s += block.clock.between(block.begun_s, worker.loop.now_s)
        after, peak_rss_bytes = self._reading(worker), self._sink.peak_rss_bytes
        self._rest(worker)
        edges = Edges(
            lasted_s=lasted_s,
            own_share=lasted_s / (tally.last_end_s - start_s) if lasted_s > 0 else 1.0,
            before=block.before,
            after=after,
            peak_rss_bytes=peak_rss_bytes,
            rest_bytes=self._sink.rest_bytes,
        )
        return BlockDone(start_s, block_values(tally, edges))

    def retire(self) -> None:
        """Shut the worker down; another may be launched."""
        self._leave_out_rest()
        self._leave(self._at_work())
        self._worker = None
        self._parked_at_s = self._context.clock.monotonic_s()

    def finish(self) -> None:
        """Account for every slot, measure the reclaimable memory, and stop the worker."""
        worker = self._unparked("idle")
        worker.steps.drain()
        worker.steps.last_checkpoint()
        if not worker.loop.interrupted:
            worker.steps.reclaim()
        self._leave(worker)
        self._recorder.enter("done")
        record_answers(worker.loop, self._plan.options.answers_s)

    def record_loss(self, lost: WorkerLostError) -> None:
        """Record in the run how the worker was lost; leave no process behind."""
        self.lost = lost.detail
        if self._worker is not None:
            target = self._worker.started.target
            # A frozen process could not dump its stack.
            target.thaw()
            record_crash(
                target,
                self._recorder,
                self._context.clock,
                lost,
                self._kills_before,
                target.dump_stack,
            )

    def record_failure(self, error: Exception) -> None:
        """Record in the run that the bench failed during the comparison."""
        record_bench_failure(self.run_dir, self._recorder, "the comparison", error, ended_run=True)

    def close(self) -> None:
        """Finish the log and the manifest; release the worker and the directory in any case."""
        with self._held:
            # Coverage requirements and limits depend on the duration of the actual traffic.
            self._manifest = msgspec.structs.replace(
                self._manifest,
                ended_wall_s=self._context.clock.wall_s(),
                profile=profile_of_length(self._manifest, self._plan, max(self._served_s, 1.0)),
                planned_duration_s=self._served_s,
            )
            with contextlib.suppress(RunDirectoryError):
                self._log_watch.finish()
            with contextlib.suppress(RunDirectoryError):
                self._writer.update_manifest(self._manifest)

    # Parts of a block.

    def _begin(self, requests: int | None, seed: int, tag: str) -> None:
        worker = self._at_work()
        vocab = worker.started.ready.vocab_size
        self._traffic.begin(block_workload(self._plan.profile, vocab, seed), requests, tag)

    def _serve_on(self, worker: _Worker, until_s: float) -> bool:
        """Serve until the block ends or ``until_s`` (monotonic); return whether it has ended."""
        loop, traffic, block = worker.loop, self._traffic, self._block
        if not block.draining:
            cut_s = loop.now_s + self._limit_s - block.clock.between(block.begun_s, loop.now_s)
            if not loop.run_until(lambda: traffic.all_submitted, min(until_s, cut_s)):
                if loop.now_s < cut_s:
                    return False
                self._recorder.note(_CUT.format(self._limit_s))
                traffic.stop()
            # Otherwise requests that an operator action paused would never end.
            worker.loop.target.post(Drain())
            block.draining = True
            block.give_up_s = loop.now_s + self._plan.drain_limit_s
        over = loop.run_until(lambda: traffic.done, min(until_s, block.give_up_s))
        return over or loop.now_s >= block.give_up_s

    @property
    def _limit_s(self) -> float:
        """The time limit of a block, in the version's own time."""
        return max(_BLOCK_LEAST_LIMIT_S, _BLOCK_TIMES_MAX * self._context.plan.block_s)

    def _rest(self, worker: _Worker) -> None:
        """Count, probe and park after a block; none of it is measured."""
        loop = worker.loop
        # Scan the heap still in the traffic's phase, so that the scan is part of the judged time.
        loop.post_heap_scan()
        loop.wait_for(loop.no_scan_open, _SCAN_PATIENCE_S)
        worker.steps.checkpoint_at_rest()
        self._manifest = msgspec.structs.replace(
            with_counts(self._manifest, self._traffic.counts()), workload=self._traffic.describe()
        )
        self._park()

    def _freeze(self, worker: _Worker) -> None:
        worker.started.target.freeze()
        worker.starvation.park()
        self._block.clock.freeze(worker.loop.now_s)

    def _thaw(self, worker: _Worker) -> None:
        """Continue after a freeze; exclude the frozen time from the run."""
        clock = self._block.clock
        if not clock.is_frozen:
            return
        now_s = worker.loop.now_s
        self._recorder.leave_out(clock.thaw(now_s))
        worker.starvation.unpark()
        worker.loop.heard()
        worker.started.target.thaw()

    def _reading(self, worker: _Worker) -> Mapping[str, float]:
        """Return fresh counters of the worker, from a sample taken now."""
        loop, sink = worker.loop, self._sink
        # A pending sample was requested earlier: wait for it first.
        loop.wait_for(lambda: not loop.sample_open, _SAMPLE_PATIENCE_S)
        seen = sink.samples
        worker.loop.sampler.restart(loop.now_s)
        loop.wait_for(lambda: sink.samples > seen, _SAMPLE_PATIENCE_S)
        return sink.counters

    def _park(self) -> None:
        self._at_work().starvation.park()
        self._parked_at_s = self._context.clock.monotonic_s()

    def _leave_out_rest(self) -> None:
        if self._parked_at_s is not None:
            self._recorder.leave_out(self._context.clock.monotonic_s() - self._parked_at_s)
            self._parked_at_s = None

    def _unparked(self, phase: str) -> _Worker:
        worker, now_s = self._at_work(), self._context.clock.monotonic_s()
        # This side is still frozen if another version was lost during the block.
        self._thaw(worker)
        if self._parked_at_s is not None:
            self._leave_out_rest()
            worker.starvation.unpark()
        worker.loop.heard()
        worker.loop.sampler.restart(now_s)
        if phase != "idle":
            worker.loop.resume()
            self._recorder.enter(phase)
        return worker

    # The process.

    def _describe(self, started: StartedWorker) -> None:
        segment = self._segment() if self._processes else None
        plan = self._plan if segment is None else replace(self._plan, segment=segment)
        described = with_started(self._manifest, plan, self.side, started, self._traffic.describe())
        self._manifest = with_segment(described, plan, started.ready, self._started_wall_s)
        self._writer.update_manifest(self._manifest)

    def _segment(self) -> Segment:
        return Segment(
            self.run_dir, self._processes, self._recorder.now_s, 0.0, self._served_s, self._manifest
        )

    def _leave(self, worker: _Worker) -> None:
        worker.steps.stop()
        if worker.loop.truth is not None:
            add_truth(self.run_dir, worker.loop.truth)
        worker.started.target.stop(_STOP_PATIENCE_S)

    def _stop_process(self, target: BundledTarget) -> None:
        """Kill the process if it still runs."""
        if target.exit_status() is None:
            target.kill()

    def _at_work(self) -> _Worker:
        assert self._worker is not None, "the side was not started"
        return self._worker
