"""From a run directory back to a RunRecord, whatever byte the writer was killed at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Generic, TypeVar, cast

import msgspec
import numpy as np

from hybridbench.analysis.record import RunEvent, RunRecord, Series
from hybridbench.errors import ErrorCode, RunDirectoryError
from hybridbench.foreign import (
    DOCUMENT_BYTES_MAX,
    RECORDS_BYTES_MAX,
    TIME_S_MAX,
    WALL_S_MAX,
    ForeignDataError,
    check_plain,
    read_bytes,
    read_text,
)
from hybridbench.metrics import spec_of
from hybridbench.records.json_value import JsonValue
from hybridbench.rundir.layout import EVENTS, MANIFEST, NOTE, PHASE, SAMPLES
from hybridbench.rundir.manifest import manifest_from_text


def read_run(path: Path) -> RunRecord:
    """The run stored at ``path``.

    A torn last line is dropped, a damaged line in the middle skipped, and each of these told in
    an event of kind ``note`` at the end.  Where no event tells the phases, the samples do.

    Raises:
        RunDirectoryError: when there is no run, or a later version wrote it.
    """
    manifest = read_manifest(path)
    samples = _read_lines(path / SAMPLES, _SAMPLE)
    stored = _read_lines(path / EVENTS, _EVENT)
    columns = _Columns()
    for sample in samples.lines:
        columns.add(sample)
    # The decoder cannot spell the recursive JSON type, and yields nothing else.
    events = [RunEvent(e.t, e.kind, cast("dict[str, JsonValue]", e.data)) for e in stored.lines]
    if not any(event.kind == PHASE for event in events):
        events += columns.phases
    events.sort(key=lambda event: event.t_s)
    end_s = max([columns.last_s, *(event.t_s for event in events)])
    notes = [*samples.notes(SAMPLES), *stored.notes(EVENTS), *columns.notes()]
    events += [RunEvent(end_s, NOTE, {"text": text}) for text in notes]
    return RunRecord(manifest, columns.series(), tuple(events))


def read_manifest(path: Path) -> dict[str, JsonValue]:
    """The manifest of the run at ``path``.

    Raises:
        RunDirectoryError: when it is missing, damaged, or of a later version.
    """
    file = path / MANIFEST
    try:
        text = read_text(file, DOCUMENT_BYTES_MAX)
    except FileNotFoundError as error:
        raise RunDirectoryError(
            f"{path} is not a run directory: it has no {MANIFEST}", code=ErrorCode.NOT_FOUND
        ) from error
    except ForeignDataError as error:
        raise RunDirectoryError(f"{file} {error}", code=ErrorCode.DAMAGED) from error
    except OSError as error:
        raise RunDirectoryError(
            f"cannot read {file}: {error.strerror}", code=ErrorCode.NOT_READABLE
        ) from error
    return manifest_from_text(text, file)


# A line whose time is none of a run is damaged.
_Time = Annotated[float, msgspec.Meta(ge=-TIME_S_MAX, le=TIME_S_MAX)]


class SampleLine(msgspec.Struct):
    """One line of samples.jsonl."""

    t: _Time
    m: dict[str, float]
    phase: str = ""
    wall: Annotated[float, msgspec.Meta(ge=0.0, le=WALL_S_MAX)] = 0.0


class EventLine(msgspec.Struct):
    """One line of events.jsonl."""

    t: _Time
    kind: str
    data: dict[str, object] = {}


_SAMPLE = msgspec.json.Decoder(SampleLine)
_EVENT = msgspec.json.Decoder(EventLine)
_Line = TypeVar("_Line", SampleLine, EventLine)


def decoded_sample(line: bytes) -> SampleLine | None:
    """The sample in ``line``, or None for a damaged one."""
    return _decoded(line, _SAMPLE)


@dataclass
class _Read(Generic[_Line]):
    """The lines of a file that could be read, and what could not."""

    lines: list[_Line] = field(default_factory=list)
    torn: bool = False
    damaged: int = 0
    missing: bool = False

    def notes(self, name: str) -> Iterator[str]:
        if self.missing:
            yield f"{name} is missing"
        if self.torn:
            yield f"the last line of {name} was torn and is left out"
        if self.damaged:
            yield f"{self.damaged} damaged {_plural('line', self.damaged)} of {name} skipped"


@dataclass
class _Columns:
    """Samples turned into one pair of columns per metric."""

    times: dict[str, list[float]] = field(default_factory=dict)
    values: dict[str, list[float]] = field(default_factory=dict)
    phases: list[RunEvent] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)
    out_of_order: int = 0
    last_s: float = 0.0

    def add(self, sample: SampleLine) -> None:
        self.last_s = max(self.last_s, sample.t)
        if not self.phases or self.phases[-1].data["phase"] != sample.phase:
            self.phases.append(RunEvent(sample.t, PHASE, {"phase": sample.phase}))
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

    def series(self) -> dict[str, Series]:
        return {
            name: Series(name, np.array(times, np.float64), np.array(self.values[name], np.float64))
            for name, times in self.times.items()
        }

    def notes(self) -> Iterator[str]:
        if self.unknown:
            names = ", ".join(sorted(self.unknown))
            yield f"metrics this version does not know are left out: {names}"
        if self.out_of_order:
            count = self.out_of_order
            yield f"{count} {_plural('sample', count)} of {SAMPLES} went back in time, skipped"


def _read_lines(path: Path, decoder: msgspec.json.Decoder[_Line]) -> _Read[_Line]:
    read: _Read[_Line] = _Read()
    try:
        data = read_bytes(path, RECORDS_BYTES_MAX)
    except FileNotFoundError:
        return _Read(missing=True)
    except ForeignDataError as error:
        raise RunDirectoryError(f"{path} {error}", code=ErrorCode.DAMAGED) from error
    except OSError as error:
        raise RunDirectoryError(
            f"cannot read {path}: {error.strerror}", code=ErrorCode.NOT_READABLE
        ) from error
    *whole, tail = data.split(b"\n")
    read.lines, read.damaged = _decode_all(whole, decoder)
    if tail:
        # A cut just before the newline leaves a whole line; any other cut leaves no JSON object.
        last = _decoded(tail, decoder)
        read.torn = last is None
        if last is not None:
            read.lines.append(last)
    return read


def _decode_all(
    raw: Sequence[bytes], decoder: msgspec.json.Decoder[_Line]
) -> tuple[list[_Line], int]:
    lines, damaged = [], 0
    for text in raw:
        line = _decoded(text, decoder)
        if line is not None:
            lines.append(line)
        # An empty line is how the writer ends one that the disk refused to take whole.
        elif text:
            damaged += 1
    return lines, damaged


def _decoded(text: bytes, decoder: msgspec.json.Decoder[_Line]) -> _Line | None:
    try:
        line = decoder.decode(text)
        if isinstance(line, EventLine):
            check_plain(line.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ForeignDataError):
        return None
    return line


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"
