"""Lines of samples.jsonl and events.jsonl: torn ones dropped, damaged ones counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Generic, TypeVar

import msgspec

from hybridbench.errors import ErrorCode, RunDirectoryError
from hybridbench.foreign import (
    RECORDS_BYTES_MAX,
    TIME_S_MAX,
    WALL_S_MAX,
    ForeignDataError,
    check_plain,
    read_bytes,
)
from hybridbench.latency import BUCKETS

# A line whose time is none of a run is damaged.
_Time = Annotated[float, msgspec.Meta(ge=-TIME_S_MAX, le=TIME_S_MAX)]
_Bucket = Annotated[int, msgspec.Meta(ge=0, lt=BUCKETS)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


class SampleLine(msgspec.Struct):
    """One line of samples.jsonl."""

    t: _Time
    m: dict[str, float]
    phase: str = ""
    wall: Annotated[float, msgspec.Meta(ge=0.0, le=WALL_S_MAX)] = 0.0
    latencies: dict[str, dict[_Bucket, _Count]] = {}


class EventLine(msgspec.Struct):
    """One line of events.jsonl."""

    t: _Time
    kind: str
    data: dict[str, object] = {}


SAMPLE = msgspec.json.Decoder(SampleLine)
EVENT = msgspec.json.Decoder(EventLine)
_Line = TypeVar("_Line", SampleLine, EventLine)


def decoded_sample(line: bytes) -> SampleLine | None:
    """The sample in ``line``, or None for a damaged one."""
    return _decoded(line, SAMPLE)


@dataclass
class Lines(Generic[_Line]):
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


def read_lines(path: Path, decoder: msgspec.json.Decoder[_Line]) -> Lines[_Line]:
    """All lines of ``path`` that can be read.

    Raises:
        RunDirectoryError: the file is there and cannot be read.
    """
    read: Lines[_Line] = Lines()
    try:
        data = read_bytes(path, RECORDS_BYTES_MAX)
    except FileNotFoundError:
        return Lines(missing=True)
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
