"""JSON Lines files: append lines, repair them after a kill, read them back despite damage."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, BinaryIO, Final, Generic, TypeVar

import msgspec

from hybridbench.foundation.clock import Clock
from hybridbench.foundation.foreign import (
    RECORDS_BYTES_MAX,
    TIME_S_MAX,
    WALL_S_MAX,
    ForeignDataError,
    check_plain,
    read_bytes,
)
from hybridbench.foundation.latency import BUCKETS
from hybridbench.records.documents import reading, writing
from hybridbench.records.json_value import JsonValue
from hybridbench.records.processes import ProcessSample

SYNC_INTERVAL_S: Final = 60.0
# Significant digits of stored floats: enough for a byte in a terabyte, and half the file size.
_DIGITS: Final = 12
_BLOCK_BYTES: Final = 1 << 16
# A line whose time is out of range counts as damaged.
_Time = Annotated[float, msgspec.Meta(ge=-TIME_S_MAX, le=TIME_S_MAX)]
_Bucket = Annotated[int, msgspec.Meta(ge=0, lt=BUCKETS)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


class SampleLine(msgspec.Struct):
    """One line of samples.jsonl; ``processes`` are those with a role."""

    t: _Time
    m: dict[str, float]
    phase: str = ""
    wall: Annotated[float, msgspec.Meta(ge=0.0, le=WALL_S_MAX)] = 0.0
    latencies: dict[str, dict[_Bucket, _Count]] = {}
    processes: list[ProcessSample] = []


class EventLine(msgspec.Struct):
    """One line of events.jsonl."""

    t: _Time
    kind: str
    data: dict[str, object] = {}


SAMPLE = msgspec.json.Decoder(SampleLine)
EVENT = msgspec.json.Decoder(EventLine)
_Line = TypeVar("_Line")


def decoded_sample(line: bytes) -> SampleLine | None:
    """The sample in ``line``, or None for a damaged one."""
    return _decoded(line, SAMPLE)


def decoded_event(line: bytes) -> EventLine | None:
    """The event in ``line``, or None for a damaged one."""
    return _decoded(line, EVENT)


class LineFile:
    """An append-only file of JSON lines, unbuffered."""

    def __init__(self, path: Path, clock: Clock, sync_every_s: float = SYNC_INTERVAL_S) -> None:
        """Open ``path`` for appending; lines are written at once, and synced to disk every
        ``sync_every_s``.

        Raises:
            RunDirectoryError: it cannot be opened.
        """
        self._path = path
        self._clock = clock
        self._sync_every_s = sync_every_s
        with writing(f"open {path}"):
            self._file = path.open("ab", buffering=0)
        self._synced_s = clock.monotonic_s()
        self._torn = False

    def append(self, line: Mapping[str, JsonValue]) -> None:
        """Write one line.

        Raises:
            RunDirectoryError: it cannot be written.
        """
        text = json.dumps(line, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        data = text.encode("utf-8", "backslashreplace") + b"\n"
        if self._torn:
            # The disk was full in the middle of a line: end it, so that only that line is lost.
            data = b"\n" + data
        with writing(f"write {self._path}"):
            self._write_all(data)
            self._sync_when_due()

    def close(self) -> None:
        """Flush to disk and close the file; a second call does nothing."""
        if self._file.closed:
            return
        with self._file, writing(f"flush {self._path}"):
            os.fsync(self._file.fileno())

    def _write_all(self, data: bytes) -> None:
        self._torn = True
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]
        self._torn = False

    def _sync_when_due(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._synced_s >= self._sync_every_s:
            os.fsync(self._file.fileno())
            self._synced_s = now_s


def short(value: float) -> float:
    """``value`` as an int if integral, else rounded to ``_DIGITS`` digits."""
    if value == int(value):
        return int(value)
    return float(f"{value:.{_DIGITS}g}")


def repair_tail(path: Path) -> int:
    """Make ``path`` end with a whole line; do nothing if it is missing.

    A complete last line without a newline gets one; an incomplete one is cut off.

    Returns:
        Number of bytes cut off.

    Raises:
        RunDirectoryError: the file cannot be changed.
    """
    with writing(f"repair {path}"):
        if not path.exists():
            return 0
        with path.open("r+b") as file:
            return _repair(file)


def _repair(file: BinaryIO) -> int:
    end = file.seek(0, os.SEEK_END)
    start = _after_last_newline(file, end)
    if start == end:
        return 0
    file.seek(start)
    tail = file.read()
    if _is_object(tail):
        file.write(b"\n")
        end, start = end + 1, end + 1
    file.truncate(start)
    file.flush()
    os.fsync(file.fileno())
    return end - start


def _after_last_newline(file: BinaryIO, end: int) -> int:
    """The position after the last newline; 0 without one."""
    while end > 0:
        begin = max(0, end - _BLOCK_BYTES)
        file.seek(begin)
        found = file.read(end - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


def _is_object(text: bytes) -> bool:
    # A number or a literal could be a longer one cut short; an object is complete once closed.
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


@dataclass
class Lines(Generic[_Line]):
    """The readable lines of a file, and what is known of the others."""

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
            yield f"{self.damaged} damaged line{'s' * (self.damaged != 1)} of {name} skipped"


def read_lines(path: Path, decoder: msgspec.json.Decoder[_Line]) -> Lines[_Line]:
    """Read all intact lines of ``path``.

    Raises:
        RunDirectoryError: the file exists but cannot be read.
    """
    read: Lines[_Line] = Lines()
    try:
        with reading(path):
            data = read_bytes(path, RECORDS_BYTES_MAX)
    except FileNotFoundError:
        return Lines(missing=True)
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
        # The writer leaves an empty line after a line that did not fit on the disk.
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
