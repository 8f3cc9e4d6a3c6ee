"""Show what a soak would measure, its cost and its limits, before it runs: ``soak --dry-run``.

It does everything a run does before its first request, in a temporary directory, so that anything
the run would refuse is refused here.  The worker makes one heap scan and is shut down: what the
target can show and what a probe costs are measured, not guessed.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from hybridbench.analysis.trend.resolution import smallest_resolvable_rate
from hybridbench.analysis.trend.terms import LEAK_AFTER_STEADY_S
from hybridbench.foundation.clock import SystemClock
from hybridbench.foundation.errors import WorkerFailedError
from hybridbench.foundation.metrics import METRICS, Check
from hybridbench.foundation.units import format_byte_rate, format_bytes, format_duration
from hybridbench.records.documents import writing
from hybridbench.records.messages import HeapScanReply, Ready, ScanHeap, Shutdown
from hybridbench.rundir.layout import WORKER_STDERR, new_run_id
from hybridbench.rundir.lock import locked_run
from hybridbench.rundir.writer import RunWriter
from hybridbench.runs.boot import boot_worker
from hybridbench.runs.interrupts import Interrupts
from hybridbench.runs.loop import WorkerLostError
from hybridbench.runs.manifest import planned_manifest, with_worker
from hybridbench.runs.plan import SoakPlan
from hybridbench.sampling.headroom import memory_limit
from hybridbench.sampling.process import read_process_memory
from hybridbench.targets.bundled import BundledTarget
from hybridbench.targets.target import NOT_SHOWN
from hybridbench.workload.build import build_workload
from hybridbench.workload.profile import Profile
from hybridbench.workload.trace_replay import describe_trace

# Measured on stored runs of several profiles: a line of samples.jsonl with all metrics, the events
# of a checkpoint, and the fixed files (page, summary, worker log).
_SAMPLE_BYTES = 2500
_CHECKPOINT_BYTES = 6000
_FIXED_BYTES = 2 * 2**20
_SPARE_DISK = 2.0
# The warm-up ends after a number of requests, not a time; shipped profiles need this share.
_WARMUP_SHARE = 0.15
_SCAN_PATIENCE_S = 60.0
_STOP_PATIENCE_S = 5.0
_TURN_S = 0.1
# One copy of the heap, made page by page while the heap scan child walks it.
_SCAN_HEADROOM = 0.5
_INCREMENTAL_GC = ((3, 14, 0), (3, 14, 4))
_ABORTS = {"abort_queued": "queued", "abort_prefill": "prefill", "abort_decode": "decode"}


class Resolution(msgspec.Struct, frozen=True):
    """The smallest rate of one gated metric that the run can call a leak, and its limit.

    ``limit_per_h`` is None if no limit is measured for a run this short.
    """

    metric: str
    smallest_per_h: float
    limit_per_h: float | None


@dataclass(frozen=True)
class Stall:
    """The cost of one heap scan on the new worker, when the heap is smallest."""

    method: str
    stop_s: float
    child_s: float
    tracked_objects: int
    budget_s: float | None

    @property
    def left_out(self) -> bool:
        """Whether the run would stop counting garbage under traffic."""
        return self.budget_s is not None and self.stop_s > self.budget_s


@dataclass(frozen=True)
class Preview:
    """Everything that ``soak --dry-run`` prints.  Sizes in bytes, rates in bytes per hour."""

    title: str
    model_note: str
    capabilities: tuple[str, ...]
    metrics: tuple[str, ...]
    not_seen: tuple[str, ...]
    duration_s: float
    warmup_s: float
    sample_every_s: float
    heap_scan_every_s: float
    checkpoint_every_s: float
    resolutions: tuple[Resolution, ...]
    disk_needed_bytes: int
    disk_free_bytes: int
    memory_now_bytes: int
    memory_needed_bytes: int
    memory_free_bytes: int | None
    stall: Stall | None
    boot_s: float
    warnings: tuple[str, ...] = ()
    trace_note: str = ""

    @property
    def judged_s(self) -> float:
        """The length of the judged window."""
        return self.duration_s - self.warmup_s


def preview_soak(plan: SoakPlan) -> Preview:
    """Begin a run of ``plan``, ask its worker for capabilities and scan cost, and shut it down.

    Raises:
        ConfigError: the run could not start: the model, the pools or the traffic cannot be built.
        RunDirectoryError: its results cannot be written.
        WorkerFailedError: the worker did not start.
    """
    clock = SystemClock()
    trace_note = describe_trace(plan.trace, plan.profile) if plan.trace else ""
    run_id = new_run_id(clock.wall_s(), plan.model, plan.profile.name, plan.defects)
    manifest = planned_manifest(plan, run_id, clock.wall_s())
    with (
        _run_dir_for_now(plan.store, run_id) as run_dir,
        RunWriter(run_dir, manifest, clock) as writer,
        locked_run(run_dir),
    ):
        target = BundledTarget(plan.worker_launch(run_dir / WORKER_STDERR))
        try:
            ready = boot_worker(target, plan, Interrupts())
            assert ready is not None, "a preview is not interrupted"
            workload = build_workload(plan.profile, ready.vocab_size, plan.trace, plan.traffic_seed)
            writer.update_manifest(with_worker(manifest, plan, ready, workload.describe()))
            memory_bytes = read_process_memory(ready.pid).rss_bytes
            heap_scan = _heap_scan(target)
            target.post(Shutdown())
            target.exchange(_TURN_S)
        except WorkerLostError as lost:
            raise WorkerFailedError(f"the worker did not come up: {lost.detail}.") from lost
        finally:
            target.stop(_STOP_PATIENCE_S)
    preview = build_preview(plan, ready, memory_bytes, heap_scan)
    return replace(preview, trace_note=trace_note)


@contextmanager
def _run_dir_for_now(store: Path, run_id: str) -> Iterator[Path]:
    """Yield a run directory like the one in ``store``, below a temporary folder."""
    place = _existing(store)
    with ExitStack() as stack:
        with writing(f"make a run directory in {store}", "choose another --store"):
            folder = tempfile.TemporaryDirectory(prefix=".hybridbench-", dir=place)
            run_dir = Path(stack.enter_context(folder), store.absolute().relative_to(place), run_id)
            run_dir.mkdir(parents=True)
        yield run_dir


def _heap_scan(target: BundledTarget) -> HeapScanReply | None:
    """Make one heap scan of the idle worker; None if unsupported or not answered in time."""
    target.post(ScanHeap(1))
    give_up_s = target.could_run_s() + _SCAN_PATIENCE_S
    while target.could_run_s() < give_up_s:
        for message in target.exchange(_TURN_S):
            if isinstance(message, HeapScanReply):
                return None if message.error else message
    return None


def build_preview(
    plan: SoakPlan, ready: Ready, memory_bytes: int, heap_scan: HeapScanReply | None
) -> Preview:
    """Build the preview from the worker's declarations; ``heap_scan`` is None if it failed."""
    cadence = plan.cadence
    warmup_s = _WARMUP_SHARE * plan.duration_s
    limit = memory_limit()
    stall = None
    if heap_scan is not None:
        stall = Stall(
            heap_scan.method,
            heap_scan.stop_s,
            heap_scan.child_s,
            heap_scan.tracked_objects,
            plan.stall_max_s,
        )
    samples = plan.duration_s / cadence.sample_every_s
    heap_scans = plan.duration_s / cadence.collectible_every_s
    checkpoints = plan.duration_s / cadence.checkpoint_every_s
    disk = (samples + 0.2 * heap_scans) * _SAMPLE_BYTES + checkpoints * _CHECKPOINT_BYTES
    preview = Preview(
        title=f"{plan.model} / {plan.profile.name}",
        model_note=ready.model_note,
        capabilities=tuple(sorted(ready.capabilities)),
        metrics=tuple(ready.metrics),
        not_seen=tuple(t for name, t in NOT_SHOWN.items() if name not in ready.capabilities),
        duration_s=plan.duration_s,
        warmup_s=warmup_s,
        sample_every_s=cadence.sample_every_s,
        heap_scan_every_s=cadence.collectible_every_s,
        checkpoint_every_s=cadence.checkpoint_every_s,
        resolutions=tuple(_resolutions(plan, memory_bytes, plan.duration_s - warmup_s)),
        disk_needed_bytes=_FIXED_BYTES + math.ceil(disk),
        disk_free_bytes=shutil.disk_usage(_existing(plan.store)).free,
        memory_now_bytes=memory_bytes,
        memory_needed_bytes=round(memory_bytes * (1 + _SCAN_HEADROOM)),
        memory_free_bytes=None if limit is None else limit.size_bytes,
        stall=stall,
        boot_s=ready.boot_s,
    )
    return replace(preview, warnings=tuple(_warnings(plan, preview)))


def _resolutions(plan: SoakPlan, memory_bytes: int, judged_s: float) -> Iterator[Resolution]:
    limits = plan.profile.limits_as_planned(plan.duration_s)
    by_metric = {
        "rss_anon_swap_bytes": limits.rss_bytes_per_h,
        # Uncollected garbage is part of process memory.
        "gc_collectible_bytes": limits.collectible_bytes_per_h or limits.rss_bytes_per_h,
    }
    for spec in METRICS:
        if spec.check is Check.TREND and spec.name in by_metric:
            # Garbage has no baseline of its own: it is part of process memory.
            least = smallest_resolvable_rate(judged_s, memory_bytes)
            yield Resolution(spec.name, max(least, spec.floor_per_hour), by_metric[spec.name])


def _existing(store: Path) -> Path:
    """Return the nearest existing parent of the store, which is on the run's disk."""
    folder = store.absolute()
    # A dangling link counts as existing: no folder can be made in its place.
    while not os.path.lexists(folder):
        folder = folder.parent
    return folder


def _warnings(plan: SoakPlan, preview: Preview) -> Iterator[str]:
    if preview.disk_free_bytes < _SPARE_DISK * preview.disk_needed_bytes:
        yield (
            f"{format_bytes(preview.disk_free_bytes)} are free under {plan.store}, and the run "
            f"writes about {format_bytes(preview.disk_needed_bytes)}"
        )
    free = preview.memory_free_bytes
    if free is not None and free < preview.memory_needed_bytes:
        yield (
            f"the worker and a heap scan need about "
            f"{format_bytes(preview.memory_needed_bytes)}, and {format_bytes(free)} are available"
        )
    yield from _length_warnings(preview)
    yield from _stall_warnings(preview.stall)
    yield from _coverage_warnings(plan)
    if _INCREMENTAL_GC[0] <= sys.version_info[:3] <= _INCREMENTAL_GC[1]:
        yield (
            "this Python collects incrementally: what it calls generation 2 is not a full "
            "collection"
        )
    if preview.stall is None:
        yield "no heap scan worked: uncollected garbage will not be measured"


def _length_warnings(preview: Preview) -> Iterator[str]:
    if preview.judged_s < LEAK_AFTER_STEADY_S:
        yield (
            f"about {format_duration(preview.judged_s)} will be judged: no trend is called a leak "
            f"in less than {format_duration(LEAK_AFTER_STEADY_S)}, only exact findings count"
        )
    for one in preview.resolutions:
        if one.limit_per_h is None:
            yield (
                f"the profile has no limit for {one.metric} in a run of "
                f"{format_duration(preview.duration_s)}: it stays undecided unless --extend makes "
                "the run longer"
            )
        elif one.smallest_per_h > one.limit_per_h:
            yield (
                f"too short for its limit: {one.metric} has a minimum detectable leak of "
                f"{format_byte_rate(one.smallest_per_h)}; the limit is "
                f"{format_byte_rate(one.limit_per_h)}"
            )


def _stall_warnings(stall: Stall | None) -> Iterator[str]:
    if stall is not None and stall.left_out and stall.budget_s is not None:
        yield (
            f"counting garbage ({stall.method}) stops the engine for {stall.stop_s * 1000:.0f} ms, "
            f"above probe.max_stall_ms of {stall.budget_s * 1000:.0f}: it will be left out under "
            "traffic, and gc_collectible_bytes is not judged"
        )


def _aborts_otherwise(profile: Profile, counter: str) -> bool:
    """Whether this stage also has aborts other than those from the profile's share."""
    controls, engine = profile.controls, profile.engine
    return any((
        counter in profile.force.by_path(),
        controls.abort_all_every_s,
        controls.pause_mode == "abort" and controls.pause_every_s,
        counter == "abort_decode" and profile.aborts.disconnect,
        counter == "abort_queued" and profile.aborts.queue_timeout_s,
        counter == "abort_queued" and (engine.max_queued_requests or engine.req_waiting_timeout_s),
    ))  # fmt: skip


def _coverage_warnings(plan: SoakPlan) -> Iterator[str]:
    """Warn if the traffic may make fewer aborts than the coverage requires."""
    profile = plan.profile
    rate = profile.arrival.rate_per_s
    for counter, least in profile.coverage_minimums(plan.duration_s).items():
        if counter not in _ABORTS or plan.trace is not None or _aborts_otherwise(profile, counter):
            continue
        share = vars(profile.aborts)[_ABORTS[counter]]
        if not share:
            yield f"{counter} must reach {least}, and the profile makes none"
        elif rate is not None and rate * share * plan.duration_s < 1.5 * least:
            yield (
                f"{counter} must reach {least}: at {rate:g} requests a second about "
                f"{rate * share * plan.duration_s:.0f} are tried"
            )
