"""Read a run directory into a RunRecord, wherever in a file the writer was killed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
from msgspec.structs import replace

from hybridbench.analysis.record import (
    BUNDLED_DRIVERS,
    SCRAPED,
    LatencySeries,
    RunRecord,
    Series,
    observed_drivers,
)
from hybridbench.foundation.labels import labelled, unlabelled
from hybridbench.foundation.metrics import spec_of
from hybridbench.records.events import (
    Event,
    IdleLook,
    Note,
    OtherEvent,
    Phase,
    ProcessStarted,
    read_event,
)
from hybridbench.records.json_value import JsonValue
from hybridbench.records.manifest import OBSERVED
from hybridbench.records.processes import ProcessSample
from hybridbench.rundir.layout import EVENTS, SAMPLES
from hybridbench.rundir.lines import EVENT, SAMPLE, SampleLine, read_lines
from hybridbench.rundir.manifest import read_manifest

# A counter that ends this long, or this many samples, before the others was withdrawn; if its page
# had failed, it would have kept its last values.
_WITHDRAWN_S, _WITHDRAWN_SAMPLES = 30.0, 3.0


def read_run(path: Path) -> RunRecord:
    """Read the run stored at ``path``.

    An incomplete last line is dropped, and damaged lines are skipped; events of kind ``note`` at
    the end report both.  Phases and processes without events are taken from the samples.

    Raises:
        RunDirectoryError: there is no run, or a later version wrote it.
    """
    manifest = read_manifest(path)
    samples = read_lines(path / SAMPLES, SAMPLE)
    stored = read_lines(path / EVENTS, EVENT)
    columns = _Columns()
    for sample in samples.lines:
        columns.add(sample)
    # The decoder cannot express the recursive JSON type, but produces only that.
    events = [
        read_event(line.t, line.kind, cast("dict[str, JsonValue]", line.data))
        for line in stored.lines
    ]
    if not any(isinstance(event, Phase) for event in events):
        events += columns.phases
    if not any(isinstance(event, ProcessStarted) for event in events):
        events += columns.started
    events.sort(key=lambda event: event.t_s)
    end_s = max([columns.last_s, *(event.t_s for event in events)])
    notes = [*samples.notes(SAMPLES), *stored.notes(EVENTS), *columns.notes()]
    damaged = {e.kind for e in events if isinstance(e, OtherEvent) and e.is_damaged}
    if damaged:
        kinds = ", ".join(sorted(damaged))
        notes.append(
            f"events that are damaged, or from before version 0.1.0, are left out: {kinds}"
        )
    events += [Note(text, t_s=end_s) for text in notes]
    series = columns.series()
    watched = manifest.target.kind == OBSERVED
    if watched:
        after_s = max(_WITHDRAWN_S, _WITHDRAWN_SAMPLES * (manifest.cadence.sample_s or 0.0))
        series, events = _without_withdrawn(series, events, after_s)
    drivers = observed_drivers(series) if watched else BUNDLED_DRIVERS
    return RunRecord(manifest, series, tuple(events), columns.latencies(), drivers)


def _without_withdrawn(
    series: dict[str, Series], events: list[Event], after_s: float
) -> tuple[dict[str, Series], list[Event]]:
    """Drop counters that were reported only at first, before it was noticed that several processes
    serve the metrics page in turn, each with its own counts.
    """
    end_s = max((float(one.t_s[-1]) for one in series.values() if len(one)), default=0.0)
    gone = {
        name
        for name, one in series.items()
        if name.startswith(SCRAPED) and len(one) and end_s - one.t_s[-1] > after_s
    }
    if not gone:
        return series, events
    kept = [
        replace(event, counters={n: v for n, v in event.counters.items() if n not in gone})
        if isinstance(event, IdleLook)
        else event
        for event in events
    ]
    return {name: one for name, one in series.items() if name not in gone}, kept


@dataclass
class _Columns:
    """Samples turned into one pair of columns per metric."""

    times: dict[str, list[float]] = field(default_factory=dict)
    values: dict[str, list[float]] = field(default_factory=dict)
    counted: dict[str, list[tuple[float, int, int]]] = field(default_factory=dict)
    phases: list[Phase] = field(default_factory=list)
    started: list[ProcessStarted] = field(default_factory=list)
    seen: dict[tuple[str, ...], tuple[int, float]] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    out_of_order: int = 0
    last_s: float = 0.0

    def add(self, sample: SampleLine) -> None:
        self.last_s = max(self.last_s, sample.t)
        if not self.phases or self.phases[-1].phase != sample.phase:
            self.phases.append(Phase(sample.phase, sample.phase, t_s=sample.t))
        late = self._add_all(sample.t, sample.m)
        for process in sample.processes:
            self._see(sample.t, process)
            labels = process.labels
            own = {labelled(name, labels): value for name, value in process.m.items()}
            late |= self._add_all(sample.t, own)
        self.out_of_order += late
        for name, counts in sample.latencies.items():
            self.counted.setdefault(name, []).extend((sample.t, b, n) for b, n in counts.items())

    def _add_all(self, t_s: float, values: Mapping[str, float]) -> bool:
        """Add ``values``; return whether one of them went back in time."""
        late = False
        for name, value in values.items():
            times = self.times.get(name)
            if times is None:
                if spec_of(name) is None:
                    self.unknown.add(unlabelled(name))
                    continue
                times = self.times[name] = []
                self.values[name] = []
            # Slow probes may have their own line, so time must increase only within each metric.
            if times and t_s <= times[-1]:
                late = True
                continue
            times.append(t_s)
            self.values[name].append(value)
        return late

    def _see(self, t_s: float, process: ProcessSample) -> None:
        key = tuple(process.labels.values())
        if self.seen.get(key) != process.incarnation:
            self.seen[key] = process.incarnation
            role, pid, host, rank = process.role, process.pid, process.host, process.rank
            self.started.append(ProcessStarted(role, pid, host, rank, t_s=t_s))

    def series(self) -> dict[str, Series]:
        return {
            name: Series(name, np.array(times, np.float64), np.array(self.values[name], np.float64))
            for name, times in self.times.items()
        }

    def latencies(self) -> dict[str, LatencySeries]:
        found = {}
        for name, rows in self.counted.items():
            t_s, bucket, count = (np.array(column) for column in zip(*rows, strict=True))
            found[name] = LatencySeries(t_s, bucket, count)
        return found

    def notes(self) -> Iterator[str]:
        if self.unknown:
            names = ", ".join(sorted(self.unknown))
            yield f"metrics this version does not know are left out: {names}"
        if self.out_of_order:
            samples = "1 sample" if self.out_of_order == 1 else f"{self.out_of_order} samples"
            yield f"{samples} of {SAMPLES} skipped: time went backwards"
