"""Replay a stored run in the live view, at any speed.

View and status are the same as for a live run; only the numbers come from files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from hybridbench.foundation.clock import Clock
from hybridbench.records.events import Checkpoint, EngineViolation, Event, Phase, read_event
from hybridbench.records.heap import InstanceCount
from hybridbench.records.json_value import JsonValue
from hybridbench.records.messages import HeapScanReply
from hybridbench.rundir.layout import EVENTS, SAMPLES
from hybridbench.rundir.lines import EVENT, SAMPLE, SampleLine, read_lines
from hybridbench.rundir.manifest import read_manifest
from hybridbench.runs.interrupts import Interrupts
from hybridbench.runs.loop import TURN_S_MAX
from hybridbench.runs.status import RunStatus, View

# A soak that found a leak: its run directory as stored, without derived files and without the state
# of the checkout.
RECORDING: Final = Path(__file__).with_name("recording")

_SCAN: Final = "gc_collectible_bytes"
_INSTANCES: Final = "instances."
_ABORTS: Final = "events.abort_"


@dataclass(frozen=True)
class _Moment:
    """What arrived ``t_s`` seconds after the run began."""

    t_s: float
    seen: SampleLine | Event


def replay(run_dir: Path, lasts_s: float, view: View, clock: Clock, interrupts: Interrupts) -> bool:
    """Show the run of the bundled engine in ``run_dir`` on ``view`` within ``lasts_s`` seconds.

    Returns:
        Whether it was shown to its end; a signal stops it early.

    Raises:
        RunDirectoryError: there is no run in ``run_dir``.
    """
    manifest = read_manifest(run_dir)
    title = f"{manifest.model.name} / {manifest.profile.name}"
    status = RunStatus(title, manifest.planned_duration_s or 0.0)
    moments = _moments(run_dir)
    start_s, traffic_start_s, shown = clock.monotonic_s(), None, False
    for moment in moments:
        due_s = start_s + lasts_s * moment.t_s / (moments[-1].t_s or 1.0)
        while (left_s := due_s - clock.monotonic_s()) > 0 and interrupts.first is None:
            clock.sleep(min(left_s, TURN_S_MAX))
        if interrupts.first is not None:
            return False
        status.elapsed_s = moment.t_s
        if isinstance(moment.seen, Phase) and moment.seen.phase == "warmup":
            traffic_start_s = moment.t_s if traffic_start_s is None else traffic_start_s
        if traffic_start_s is not None:
            status.traffic_s = min(moment.t_s - traffic_start_s, status.duration_s)
        _take(status, moment.seen)
        # As in a live run, the view starts once the worker is up.
        shown = shown or isinstance(moment.seen, SampleLine)
        if shown:
            view.update(status)
    return True


def _moments(run_dir: Path) -> list[_Moment]:
    """Return what the run stored, in order of arrival: a scan is stamped with its fork's time."""
    moments: list[_Moment] = []
    arrived_s = 0.0
    for sample in read_lines(run_dir / SAMPLES, SAMPLE).lines:
        arrived_s = max(arrived_s, sample.t)
        moments.append(_Moment(arrived_s, sample))
    for line in read_lines(run_dir / EVENTS, EVENT).lines:
        # The decoder cannot express the recursive JSON type, but yields nothing else.
        data = cast("dict[str, JsonValue]", line.data)
        moments.append(_Moment(line.t, read_event(line.t, line.kind, data)))
    return sorted(moments, key=lambda moment: moment.t_s)


def _take(status: RunStatus, seen: SampleLine | Event) -> None:
    match seen:
        case SampleLine():
            status.phase = seen.phase
            if _SCAN in seen.m:
                status.saw_heap_scan(_heap_scan(seen))
            else:
                _take_counts(status, seen.m)
                status.saw_sample(seen.m)
        case Phase():
            status.phase = seen.phase
        case Checkpoint():
            status.checkpoints += 1
        case EngineViolation():
            status.suspicion = seen.message


def _take_counts(status: RunStatus, values: Mapping[str, float]) -> None:
    """Take from the engine's counters the counts that a live run gets from its client."""
    status.finished = int(values.get("events.finishes", status.finished))
    status.rejected = int(values.get("events.requests_rejected", status.rejected))
    aborts = [value for name, value in values.items() if name.startswith(_ABORTS)]
    status.aborted = int(sum(aborts)) if aborts else status.aborted


def _heap_scan(sample: SampleLine) -> HeapScanReply:
    """Rebuild the reply from which the recorder made ``sample``, as far as a view needs it."""
    counts: dict[str, dict[str, int]] = {}
    for name, value in sample.m.items():
        if name.startswith(_INSTANCES):
            class_name, _, part = name.removeprefix(_INSTANCES).rpartition(".")
            if part in InstanceCount.__struct_fields__:
                counts.setdefault(class_name, {})[part] = int(value)
    return HeapScanReply(
        probe_id=0,
        t_s=sample.t,
        method="",
        error="",
        stop_s=0.0,
        child_s=0.0,
        collectible_bytes=int(sample.m[_SCAN]),
        instances={name: InstanceCount(**parts) for name, parts in counts.items()},
    )
