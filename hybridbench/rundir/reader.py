"""From a run directory back to a RunRecord, whatever byte the writer was killed at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np

from hybridbench.analysis.record import LatencySeries, RunRecord, Series
from hybridbench.metrics import spec_of
from hybridbench.records.events import Note, Phase, read_event
from hybridbench.records.json_value import JsonValue
from hybridbench.rundir.layout import EVENTS, SAMPLES
from hybridbench.rundir.lines import EVENT, SAMPLE, SampleLine, read_lines
from hybridbench.rundir.manifest import read_manifest


def read_run(path: Path) -> RunRecord:
    """The run stored at ``path``.

    A torn last line is dropped, a damaged line in the middle skipped, and each of these reported in
    an event of kind ``note`` at the end.  Where no event tells the phases, the samples do.

    Raises:
        RunDirectoryError: when there is no run, or a later version wrote it.
    """
    manifest = read_manifest(path)
    samples = read_lines(path / SAMPLES, SAMPLE)
    stored = read_lines(path / EVENTS, EVENT)
    columns = _Columns()
    for sample in samples.lines:
        columns.add(sample)
    # The decoder cannot spell the recursive JSON type, and yields nothing else.
    events = [
        read_event(line.t, line.kind, cast("dict[str, JsonValue]", line.data))
        for line in stored.lines
    ]
    if not any(isinstance(event, Phase) for event in events):
        events += columns.phases
    events.sort(key=lambda event: event.t_s)
    end_s = max([columns.last_s, *(event.t_s for event in events)])
    notes = [*samples.notes(SAMPLES), *stored.notes(EVENTS), *columns.notes()]
    events += [Note(text, t_s=end_s) for text in notes]
    return RunRecord(manifest, columns.series(), tuple(events), columns.latencies())


@dataclass
class _Columns:
    """Samples turned into one pair of columns per metric."""

    times: dict[str, list[float]] = field(default_factory=dict)
    values: dict[str, list[float]] = field(default_factory=dict)
    counted: dict[str, list[tuple[float, int, int]]] = field(default_factory=dict)
    phases: list[Phase] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)
    out_of_order: int = 0
    last_s: float = 0.0

    def add(self, sample: SampleLine) -> None:
        self.last_s = max(self.last_s, sample.t)
        if not self.phases or self.phases[-1].phase != sample.phase:
            self.phases.append(Phase(sample.phase, sample.phase, t_s=sample.t))
        late = False
        for name, value in sample.m.items():
            times = self.times.get(name)
            if times is None:
                if spec_of(name) is None:
                    self.unknown.add(name)
                    continue
                times = self.times[name] = []
                self.values[name] = []
            # Slow probes may arrive in a line of their own; only within a metric must time rise.
            if times and sample.t <= times[-1]:
                late = True
                continue
            times.append(sample.t)
            self.values[name].append(value)
        self.out_of_order += late
        for name, counts in sample.latencies.items():
            self.counted.setdefault(name, []).extend((sample.t, b, n) for b, n in counts.items())

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
            count = self.out_of_order
            yield f"{count} sample{'s' * (count != 1)} of {SAMPLES} went back in time, skipped"
